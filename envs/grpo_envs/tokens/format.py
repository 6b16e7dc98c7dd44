"""GRPO-Format-v0: arithmetic, answered as <reasoning> .. </reasoning><answer> .. </answer>."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from grpo_envs.scalar import TaskEnv
from grpo_envs.task import BoolArray, Chat, FloatArray, IntArray, Outcome
from grpo_envs.tokens.judge import TokenJudge, structure_judge
from grpo_envs.tokens.scoring import TAGS, Verdict, judge
from grpo_envs.tokens.task import TokenTask
from grpo_envs.tokens.vocabulary import PAD, TOKEN_ID
from grpo_envs.vector import TaskVectorEnv

_SLACK = 3  # tokens beyond the longest demonstration, for small detours
_FORM = "<reasoning>...</reasoning><answer>...</answer>"
_TAG_IDS = np.array([TOKEN_ID[tag] for tag in TAGS])


class FormatTask(TokenTask):
    """The value is in the answer block. ``FormatEnv`` documents the task."""

    title = "Format"
    judge: ClassVar[TokenJudge] = structure_judge()
    component_names = ("accuracy", "format")

    def __init__(
        self,
        preset: str | None = "easy",
        operators: str | Sequence[str] | None = None,
        digits: int | None = None,
        chain: int | None = None,
        max_tokens: int | None = None,
        format_weight: float = 0.5,
    ) -> None:
        if not (math.isfinite(format_weight) and format_weight >= 0):
            raise ValueError(f"format_weight={format_weight}: expected a number of at least 0")
        super().__init__(preset, operators, digits, chain, max_tokens)
        self.format_weight = float(format_weight)
        self.oracle_score = 1.0 + self.format_weight

    def prompts(self, ids: IntArray) -> list[str]:
        return [
            f"What is {text}? Think inside <reasoning> and </reasoning>, then give only the number "
            "inside <answer> and </answer>."
            for text in self.expressions(ids)
        ]

    def chats(self, ids: IntArray, examples: int = 0) -> list[Chat]:
        """Without examples the question describes the form in words. With examples a system message
        shows the form, the same solved training problems come before every question, and the
        question is short."""
        if not examples:
            return super().chats(ids)
        shown = self._shown(examples)
        before: Chat = [{"role": "system", "content": f"Answer in this form: {_FORM}"}]
        for text, answer in zip(
            self.expressions(shown), self.problems.answers(shown).tolist(), strict=True
        ):
            reply = f"<reasoning>{text} = {answer}</reasoning><answer>{answer}</answer>"
            before += [_asked(text), {"role": "assistant", "content": reply}]
        return [[*before, _asked(text)] for text in self.expressions(ids)]

    def _shown(self, examples: int) -> IntArray:
        """The first ``examples`` training problems from the middle of the fixed list."""
        there = self.problem_ids("train")
        if not 0 <= examples <= len(there) // 2:
            raise ValueError(f"examples={examples}: expected 0 to {len(there) // 2}")
        return there[len(there) // 2 :][:examples]

    def _completion_lengths(self) -> tuple[int, int]:
        longest = 4 + self.expression_tokens + self.answer_tokens + 1  # four tags and EOS
        return longest, longest + _SLACK

    def _pay(self, accuracy: FloatArray, formed: FloatArray, terminated: BoolArray) -> Outcome:
        reward = accuracy + self.format_weight * formed
        components = {"accuracy": accuracy, "format": formed}
        return Outcome(reward, terminated, accuracy * formed, components)

    def _judge_text(self, completion: str, answer: str) -> Verdict:
        return judge(completion, answer)

    def _completion_slots(
        self, expression: IntArray, value: IntArray, rng: np.random.Generator, noise: float
    ) -> IntArray:
        tags = np.tile(_TAG_IDS, (len(value), 1))[:, :, None]
        tags[rng.random(len(value)) < noise, 1] = PAD  # without </reasoning>
        parts = (tags[:, 0], expression, tags[:, 1], tags[:, 2], value, tags[:, 3])
        return np.concatenate(parts, axis=1)

    def _verdict_line(self, accuracy: float, formed: float, answer: str) -> str:
        value, shape = "right" if accuracy else "wrong", "well" if formed else "not well"
        success = "right" if accuracy and formed else "wrong"
        return f"{success}: {value} value, {shape} formed; the answer is {answer}"


def _asked(expression: str) -> dict[str, str]:
    return {"role": "user", "content": f"What is {expression}?"}


class FormatEnv(TaskEnv):
    """Write the result of an expression in a given structure, one token at a time.

    ## Description

    The problems of `GRPO-Arithmetic-v0`, answered in a given structure:

    `17+25=` → `<reasoning>17+25</reasoning><answer>42</answer><eos>`

    The reward has two components, each right or wrong, by the same rules for tokens and text.

    | component | right if |
    |---|---|
    | `accuracy` | the one `<answer>` block outside the reasoning equals the exact result |
    | `format` | the completion is one `<reasoning>` block, then one `<answer>` block, no more |

    Accuracy needs exactly one answer block with a value in it: an optional sign, then digits, not
    an expression. The content of a reasoning block is not judged; an unclosed one hides everything
    after it. The format needs something in both blocks, and no tag may be nested or repeated.

    ## Action Space

    `Discrete(24)`: the next token, from the vocabulary of `GRPO-Arithmetic-v0`. Tags are tokens.

    | action | token |
    |---|---|
    | 0 to 19 | `<pad>`, `<eos>`, digits, `-` `+` `*` `//` `mod` `(` `)` `=` |
    | 20, 21 | `<reasoning>` `</reasoning>` |
    | 22, 23 | `<answer>` `</answer>` |

    `action_masks()` marks the tokens that can still lead to a well-formed completion with a value
    in its answer, within the tokens left.

    ## Observation Space

    As in `GRPO-Arithmetic-v0`, with the prompt in fixed columns. L is 22, 36 and 60 for `easy`,
    `medium` and `hard`.

    | key | space | meaning |
    |---|---|---|
    | `tokens` | `Box(0, 23, (L,), int64)` | the prompt, then the completion, then `<pad>` |
    | `position` | `Box(0, L, (1,), int64)` | the column of the next token |
    | `mask` | `MultiBinary(L)` | 1 for tokens written so far, 0 in gaps and after them |

    ## Rewards

    | event | reward |
    |---|---|
    | the episode ends | accuracy + `format_weight` * format |
    | before the end | 0 |

    `info` has `problem_id`, `is_success`, `accuracy` and `format` at every step. A success is
    right *and* well formed. The best possible score is 1 + `format_weight`.

    ## Starting State

    A problem of the split, with uniform operators and operands.
    `reset(options={"problem_id": k})` starts problem k. Ids and splits are those of
    `GRPO-Arithmetic-v0`.

    ## Episode End

    | event | |
    |---|---|
    | `<eos>` is written | terminated |
    | `max_tokens` tokens have been written | terminated; the completion is judged as it is |

    ## Arguments

    | argument | default | |
    |---|---|---|
    | `preset`, `operators`, `digits`, `chain` | `"easy"` | as in `GRPO-Arithmetic-v0` |
    | `max_tokens` | the minimum plus 3: 16, 25, 40 | longest completion; see below |
    | `format_weight` | 0.5 | reward of the format (accuracy has 1); at least 0 |
    | `split` | `"train"` | `"train"`, `"validation"`, `"test"` or `"tuning"` |
    | `render_mode` | None | `"ansi"` (text) or `"rgb_array"` (a card) |

    The minimum of `max_tokens` leaves room to restate the problem and answer it in the structure,
    with `<eos>`: 13, 22 and 37 for `easy`, `medium` and `hard`.

    ## Vectorized environment

    `gymnasium.make_vec("GRPO-Format-v0", num_envs=1024)` is `FormatVectorEnv`: no loop over
    sub-environments.

    ## Version History

    | version | |
    |---|---|
    | v0 | first release |
    """

    task_class = FormatTask


class FormatVectorEnv(TaskVectorEnv):
    """``FormatEnv`` as a vector environment, with the arguments of ``TaskVectorEnv`` too."""

    task_class = FormatTask
