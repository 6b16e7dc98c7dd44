"""GRPO-Arithmetic-v0: write the result of an expression, one token at a time."""

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
    """The whole completion is the value. ``ArithmeticEnv`` documents the task."""

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
        """The answer is the last number in the reply."""
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

    The agent reads an expression such as `17+25=` as tokens and writes the result, one token at a
    time, then `<eos>`. The answer is right if it is a value (an optional sign, then digits) equal
    to the exact result.

    Expressions are chains of one to three operations on non-negative integers, nested to the left:
    `17+25`, `(17+25)*3`, `((417+25)*3)//68`. `//` and `mod` round down, as in Python; no problem
    divides by zero. If swapping operands cannot change the result, both orders are one problem with
    one id. This holds in a run of one operation: for all of `a+b+c`, and for `b` and `c` in
    `a-b-c`. If the first two operands can swap, a hash of the problem chooses which is shown first.

    | preset | `operators` | `digits` | `chain` | problems | example |
    |---|---|---|---|---|---|
    | `easy` | `+` | 2 | 1 | 5,050 | `17+25` |
    | `medium` | `+ - *` | 2 | 2 | 4,868,400 | `(17+25)*3` |
    | `hard` | `+ - * // mod` | 3 | 3 | 84 trillion | `((417+25)*3)//68` |

    A hash of the problem alone decides its split: 80 % train, 10 % test, 5 % validation, 5 %
    tuning. With more than 200,000 problems, `problem_ids` is a fixed sample of 2,000 in each split.

    ## Action Space

    `Discrete(24)`: the next token.

    | action | token | | action | token |
    |---|---|---|---|---|
    | 0 | `<pad>` | | 16 | `mod` |
    | 1 | `<eos>` | | 17, 18 | `(` `)` |
    | 2 to 11 | the digits 0 to 9 | | 19 | `=` |
    | 12, 13 | `-` `+` | | 20, 21 | `<reasoning>` `</reasoning>` |
    | 14, 15 | `*` `//` | | 22, 23 | `<answer>` `</answer>` |

    Every token is allowed; one that cannot be part of a value makes the answer wrong.
    `action_masks()` marks the tokens that can still lead to a value: first a sign or a digit, then
    digits, and `<eos>` only after a digit.

    ## Observation Space

    A `Dict`. L is the length of the prompt, with its gaps, plus `max_tokens`: 10, 19 and 34 for
    `easy`, `medium` and `hard`.

    | key | space | meaning |
    |---|---|---|
    | `tokens` | `Box(0, 23, (L,), int64)` | the prompt, then the completion, then `<pad>` |
    | `position` | `Box(0, L, (1,), int64)` | the column of the next token |
    | `mask` | `MultiBinary(L)` | 1 for tokens written so far, 0 in gaps and after them |

    The prompt has a column for each digit of each operand, with `<pad>` where an operand is
    shorter, so digits of equal place value line up, as on paper. The completion always begins in
    column `task.prompt_length`. For `easy`:

    | column | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 | 8 | 9 |
    |---|---|---|---|---|---|---|---|---|---|---|
    | `17+25=42` | 1 | 7 | + | 2 | 5 | = | 4 | 2 | `<eos>` | `<pad>` |
    | `99+3=102` | 9 | 9 | + | `<pad>` | 3 | = | 1 | 0 | 2 | `<eos>` |

    ## Rewards

    | event | reward |
    |---|---|
    | the episode ends with the right value | 1 |
    | it ends with anything else | 0 |
    | before the end | 0 |

    `info` has `problem_id`, `is_success` and `accuracy` at every step. The best possible score
    is 1.

    ## Starting State

    A problem of the split, with uniform operators and operands.
    `reset(options={"problem_id": k})` starts problem k.

    ## Episode End

    | event | |
    |---|---|
    | `<eos>` is written | terminated |
    | `max_tokens` tokens have been written | terminated; the completion is judged as it is |

    ## Arguments

    | argument | default | |
    |---|---|---|
    | `preset` | `"easy"` | `"easy"`, `"medium"`, `"hard"`, or None: then give the next three |
    | `operators` | the preset's | some of `+ - * // mod`, as a string (`"+-"`) or a list |
    | `digits` | the preset's | most digits of an operand, 1 to 4 |
    | `chain` | the preset's | number of operations, 1 to 3; `digits * (chain + 1)` at most 15 |
    | `max_tokens` | the minimum: 4, 8, 14 | room for the longest answer and `<eos>` |
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
    """``ArithmeticEnv`` as a vector environment, with the arguments of ``TaskVectorEnv`` too."""

    task_class = ArithmeticTask
