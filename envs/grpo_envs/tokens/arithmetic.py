"""GRPO-Arithmetic-v0: the result of an expression, one token at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from grpo_envs.scalar import TaskEnv
from grpo_envs.task import BoolArray, FloatArray, IntArray, Outcome
from grpo_envs.tokens.judge import TokenJudge, value_judge
from grpo_envs.tokens.scoring import Verdict, reply_equals, value_equals
from grpo_envs.tokens.task import TokenTask
from grpo_envs.vector import TaskVectorEnv


class ArithmeticTask(TokenTask):
    """The whole completion is the value. The page is that of ``ArithmeticEnv``."""

    title = "Arithmetic"
    judge: ClassVar[TokenJudge] = value_judge()
    component_names = ("accuracy",)
    oracle_score = 1.0

    def prompts(self, ids: IntArray) -> list[str]:
        return [f"What is {text}? Answer with the number." for text in self.expressions(ids)]

    def _completion_lengths(self) -> tuple[int, int]:
        with_eos = self.answer_tokens + 1
        return with_eos, with_eos

    def _pay(self, accuracy: FloatArray, formed: FloatArray, terminated: BoolArray) -> Outcome:
        return Outcome(accuracy, terminated, accuracy, {"accuracy": accuracy})

    def score_replies(self, ids: IntArray, replies: Sequence[str]) -> Outcome:
        """The last number in a reply is its answer."""
        return self._score(ids, replies, self._judge_reply)

    def _judge_text(self, completion: str, answer: str) -> Verdict:
        return Verdict(float(value_equals(completion, answer)), 1.0)

    def _judge_reply(self, reply: str, answer: str) -> Verdict:
        return Verdict(float(reply_equals(reply, answer)), 1.0)

    def _completion_slots(
        self, expression: IntArray, value: IntArray, rng: np.random.Generator, noise: float
    ) -> IntArray:
        return value


class ArithmeticEnv(TaskEnv):
    """Write the result of an expression, one token at a time.

    ## Description

    An expression such as `17+25=` is given as tokens; the agent writes the result, one token at a
    time, and then `<eos>`. The answer counts if it is a value (an optional sign, then digits) that
    equals the exact result.

    Expressions are chains of one to three operations on non-negative integers, nested to the left:
    `17+25`, `(17+25)*3`, `((417+25)*3)//68`. `//` and `mod` round down as Python's do; a problem
    that divides by zero is none. Where operands may change places, both orders are one problem with
    one id (in a run of one operation: `a+b+c`, and `b` and `c` in `a-b-c`); if the first operation
    is such a one, a hash of the problem says which of its two operands is shown first.

    | preset | `operators` | `digits` | `chain` | problems | example |
    |---|---|---|---|---|---|
    | `easy` | `+` | 2 | 1 | 5,050 | `17+25` |
    | `medium` | `+ - *` | 2 | 2 | 4,868,400 | `(17+25)*3` |
    | `hard` | `+ - * // mod` | 3 | 3 | 84 trillion | `((417+25)*3)//68` |

    Splits are a hash of the problem, whatever the arguments: 80 % train, 10 % test, 5 %
    validation, 5 % tuning. Of more than 200,000 problems, `problem_ids` is a fixed sample of
    2,000 in each split.

    ## Action Space

    `Discrete(24)`: the next token.

    | action | token | | action | token |
    |---|---|---|---|---|
    | 0 | `<pad>` | | 16 | `mod` |
    | 1 | `<eos>` | | 17, 18 | `(` `)` |
    | 2 to 11 | the digits 0 to 9 | | 19 | `=` |
    | 12, 13 | `-` `+` | | 20, 21 | `<reasoning>` `</reasoning>` |
    | 14, 15 | `*` `//` | | 22, 23 | `<answer>` `</answer>` |

    Every token may be written; one that belongs to no value makes the answer wrong.
    `action_masks()` says which can still lead to a value: first a sign or a digit, then digits,
    and `<eos>` only after a digit.

    ## Observation Space

    A `Dict`; L is the length of the prompt, gaps included, plus `max_tokens`: 10, 19 and 34 for
    `easy`, `medium` and `hard`.

    | key | space | meaning |
    |---|---|---|
    | `tokens` | `Box(0, 23, (L,), int64)` | the prompt, then the completion, then `<pad>` |
    | `position` | `Box(0, L, (1,), int64)` | the column of the next token |
    | `mask` | `MultiBinary(L)` | 1 where a token is: neither in gaps nor from `position` on |

    The prompt stands in fixed columns, one for each place of each operand, `<pad>` where there is
    no digit: digits of equal place value line up, as on paper. The completion begins in column
    `task.prompt_length`, whatever the problem. For `easy`:

    | column | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 | 8 | 9 |
    |---|---|---|---|---|---|---|---|---|---|---|
    | `17+25=42` | 1 | 7 | + | 2 | 5 | = | 4 | 2 | `<eos>` | `<pad>` |
    | `99+3=102` | 9 | 9 | + | `<pad>` | 3 | = | 1 | 0 | 2 | `<eos>` |

    ## Rewards

    | event | reward |
    |---|---|
    | the episode ends with the right value | 1 |
    | it ends otherwise | 0 |
    | before the end | 0 |

    `info` carries `problem_id`, `is_success` and `accuracy` at every step. The best possible score
    is 1.

    ## Starting State

    A problem of the split: operators and operands are uniform. `reset(options={"problem_id": k})`
    starts problem k.

    ## Episode End

    | event | |
    |---|---|
    | `<eos>` is written | terminated |
    | `max_tokens` tokens have been written | terminated; what stands there is judged |

    ## Arguments

    | argument | default | |
    |---|---|---|
    | `preset` | `"easy"` | `"easy"`, `"medium"`, `"hard"`, or None: then give the next three |
    | `operators` | of the preset | some of `+ - * // mod`, as a string (`"+-"`) or a list |
    | `digits` | of the preset | most digits of an operand, 1 to 4 |
    | `chain` | of the preset | number of operations, 1 to 3; `digits * (chain + 1)` at most 15 |
    | `max_tokens` | the least: 4, 8, 14 in the presets | at least the longest answer and `<eos>` |
    | `split` | `"train"` | `"train"`, `"validation"`, `"test"` or `"tuning"` |
    | `render_mode` | None | `"ansi"` (text) or `"rgb_array"` (a card) |

    ## Vectorized environment

    `gymnasium.make_vec("GRPO-Arithmetic-v0", num_envs=1024)` is `ArithmeticVectorEnv`: no loop over
    sub-environments.

    ## Version History

    | version | |
    |---|---|
    | v0 | first release |
    """

    task_class = ArithmeticTask


class ArithmeticVectorEnv(TaskVectorEnv):
    """The page is that of ``ArithmeticEnv``; arguments of the vector view: ``TaskVectorEnv``."""

    task_class = ArithmeticTask
