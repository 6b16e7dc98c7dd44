"""The base of the token tasks: the prompt is an expression, an action is the next token.

The tokens of an episode are one row, (L,): the prompt (the expression and ``=``), then the
completion, then PAD. The prompt has a column for each digit of each operand, PAD where an operand
is shorter, so digits of equal place value line up, as on paper. The episode ends with EOS or after
``max_tokens`` tokens. The completion, without EOS, is then judged as it is.

Each step judges its token (``judge.py``), so all steps cost the same, and a batch of n episodes
takes a few operations on arrays of length n.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from grpo_envs.cards import text_card
from grpo_envs.task import BoolArray, FloatArray, IntArray, Outcome, Split, State, Task
from grpo_envs.tokens.expressions import Expressions
from grpo_envs.tokens.judge import SATURATED, TokenJudge
from grpo_envs.tokens.scoring import Verdict
from grpo_envs.tokens.vocabulary import (
    EOS,
    N_TOKENS,
    PAD,
    TOKEN_ID,
    VOCABULARY,
    close_gaps,
    decode,
    number_slots,
)


class TokenTask(Task):
    """Arithmetic, one token at a time. A subclass defines how to judge and reward a completion.

    A state has ``problem_id``, ``answer``, ``tokens`` (n, L) int8, ``position`` (the column of the
    next token), and the judge's numbers ``judge`` and ``size``.
    """

    title: ClassVar[str]
    judge: ClassVar[TokenJudge]

    def __init__(
        self,
        preset: str | None = "easy",
        operators: str | Sequence[str] | None = None,
        digits: int | None = None,
        chain: int | None = None,
        max_tokens: int | None = None,
    ) -> None:
        self.problems = Expressions(preset, operators, digits, chain)
        low, high = self.problems.answer_bounds
        self.answer_digits = len(str(max(-low, high)))
        self.answer_tokens = self.answer_digits + (low < 0)
        self.expression_tokens = self.problems.digits * (self.problems.chain + 1)
        self.expression_tokens += 3 * self.problems.chain - 2
        least, default = self._completion_lengths()
        self.max_tokens = default if max_tokens is None else max_tokens
        if self.max_tokens < least:
            raise ValueError(
                f"max_tokens={max_tokens}: expected at least {least}, for the longest answer"
            )
        self.max_steps = self.max_tokens
        self.prompt_length = self.expression_tokens + 1
        self.length = self.prompt_length + self.max_tokens
        self.action_space = spaces.Discrete(N_TOKENS)
        self.observation_space = spaces.Dict(
            tokens=spaces.Box(0, N_TOKENS - 1, (self.length,), np.int64),
            position=spaces.Box(0, self.length, (1,), np.int64),
            mask=spaces.MultiBinary(self.length),
        )

    # -- defined by subclasses --------------------------------------------------------------------

    @abstractmethod
    def _completion_lengths(self) -> tuple[int, int]:
        """The smallest ``max_tokens`` with room for every demonstration, and the default."""

    @abstractmethod
    def _pay(self, accuracy: FloatArray, formed: FloatArray, terminated: BoolArray) -> Outcome:
        """The outcome of judged completions; each argument is (n,), and 0 before the end."""

    @abstractmethod
    def _judge_text(self, completion: str, answer: str) -> Verdict:
        """Judge a completion in text."""

    @abstractmethod
    def _completion_slots(
        self, expression: IntArray, value: IntArray, rng: np.random.Generator, noise: float
    ) -> IntArray:
        """Demonstrations without prompt and EOS, as slots, (n, slots), from the slots of expression
        and value."""

    # -- problems ---------------------------------------------------------------------------------

    def sample(self, rng: np.random.Generator, n: int, split: Split) -> IntArray:
        return self.problems.sample(rng, n, split)

    def problem_ids(self, split: Split) -> IntArray:
        return self.problems.problem_ids(split)

    def check_ids(self, ids: Any) -> IntArray:
        return self.problems.check_ids(ids)

    def split_of(self, ids: IntArray) -> NDArray[np.str_]:
        return self.problems.split_of(ids)

    # -- episodes ---------------------------------------------------------------------------------

    def start(self, ids: IntArray) -> State:
        tokens = np.full((len(ids), self.length), PAD, dtype=np.int8)
        tokens[:, : self.prompt_length] = self._prompt_slots(ids)
        return {
            "problem_id": ids,
            "answer": self.problems.answers(ids),
            "tokens": tokens,
            "position": np.full(len(ids), self.prompt_length),
            "judge": np.full(len(ids), self.judge.start),
            "size": np.zeros(len(ids), dtype=np.int64),
        }

    def observe(self, state: State) -> dict[str, NDArray[Any]]:
        position = state["position"][:, None]
        mask = np.arange(self.length) < position
        mask[:, : self.prompt_length] = state["tokens"][:, : self.prompt_length] != PAD
        return {
            "tokens": state["tokens"].astype(np.int64),
            "position": position.copy(),
            "mask": mask.view(np.int8),
        }

    def step(self, state: State, actions: IntArray) -> Outcome:
        position, size, judge = state["position"], state["size"], self.judge
        state["tokens"][np.arange(len(actions)), position] = actions
        position += 1
        move = state["judge"] * N_TOKENS + actions
        np.minimum(size, SATURATED, out=size)
        size *= judge.scale[move]
        size += judge.digit[move]
        state["judge"][:] = now = judge.next_state[move]
        terminated = (actions == EOS) | (position == self.length)
        right = judge.has_value[now] & (judge.sign[now] * size == state["answer"]) & terminated
        formed = judge.well_formed[now] & terminated
        return self._pay(right.astype(np.float64), formed.astype(np.float64), terminated)

    def action_masks(self, state: State) -> BoolArray:
        """Tokens after which the grammar still allows a right completion within ``max_tokens``,
        (n, N_TOKENS); only EOS if there are none."""
        left = self.length - state["position"]
        masks: BoolArray = self.judge.to_go[state["judge"]] < left[:, None]
        masks[:, EOS] |= ~masks.any(axis=1)
        return masks

    # -- texts ------------------------------------------------------------------------------------

    def expressions(self, ids: IntArray) -> list[str]:
        """Each problem as text, such as "(17+25)*3"."""
        return [decode(row[row != PAD]) for row in self.problems.slots(ids)]

    def score_texts(self, ids: IntArray, completions: Sequence[str]) -> Outcome:
        return self._score(ids, completions, self._judge_text)

    def _score(
        self, ids: IntArray, texts: Sequence[str], judge: Callable[[str, str], Verdict]
    ) -> Outcome:
        """Judge one text per problem against its answer."""
        if len(ids) != len(texts):
            raise ValueError(
                f"{len(texts)} completions of {len(ids)} problems: expected one for each"
            )
        answers = map(str, self.problems.answers(ids).tolist())
        verdicts = list(map(judge, texts, answers))
        accuracy, formed = np.array(verdicts, dtype=np.float64).reshape(-1, 2).T
        return self._pay(accuracy, formed, np.ones(len(ids), dtype=bool))

    # -- demonstrations ---------------------------------------------------------------------------

    def demonstrations(
        self, ids: IntArray, rng: np.random.Generator, noise: float
    ) -> tuple[IntArray, BoolArray]:
        """Sequences for supervised learning: prompt, right completion, EOS.

        Args:
            ids: (n,) problems.
            noise: probability of each mistake in a sequence: an answer that is 10 too small
                (``_lose_a_ten``) and, in a structure, a missing ``</reasoning>``. The mistakes are
                always the same: above 0.5, a policy that imitates them well is wrong when greedy.

        Returns:
            tokens (n, L) int64, and the mask of the completion with its EOS, (n, L) bool.

        Raises:
            ValueError: ``noise`` is not a probability.
        """
        if not 0 <= noise <= 1:
            raise ValueError(f"noise={noise}: expected a probability from 0 to 1")
        value = self.problems.answers(ids)
        value = np.where(
            rng.random(len(ids)) < noise, _lose_a_ten(value, self.answer_digits), value
        )
        prompt = self._prompt_slots(ids)
        value_slots = number_slots(value, self.answer_digits)
        slots = self._completion_slots(prompt[:, :-1], value_slots, rng, noise)
        end = np.full((len(ids), 1), EOS)
        completion, length = close_gaps(np.concatenate((slots, end), axis=1), self.max_tokens)
        mask = np.zeros((len(ids), self.length), dtype=bool)
        mask[:, self.prompt_length :] = np.arange(self.max_tokens) < length[:, None]
        return np.concatenate((prompt, completion), axis=1), mask

    def _prompt_slots(self, ids: IntArray) -> IntArray:
        equals = np.full((len(ids), 1), TOKEN_ID["="])
        return np.concatenate((self.problems.slots(ids), equals), axis=1)

    # -- pictures ---------------------------------------------------------------------------------

    def describe(self, state: State, i: int) -> str:
        lines, verdict = self._report(state, i)
        return "\n".join([self.title, *lines, *([verdict] if verdict else [])])

    def draw(self, state: State, i: int) -> NDArray[np.uint8]:
        return text_card(self.title, *self._report(state, i))

    def _report(self, state: State, i: int) -> tuple[list[str], str | None]:
        """The problem and the tokens so far, and the verdict after the end."""
        row, position = state["tokens"][i], int(state["position"][i])
        written = row[self.prompt_length : position]
        problem = row[: self.prompt_length - 1]
        lines = [
            f"Problem: {decode(problem[problem != PAD])}",
            f"Tokens: {' '.join(VOCABULARY[token] for token in written) or '(none yet)'}",
        ]
        if len(written) < self.max_tokens and EOS not in written:
            return lines, None
        answer = str(state["answer"][i])
        accuracy, formed = self._judge_text(decode(written), answer)
        return lines, self._verdict_line(accuracy, formed, answer)

    def _verdict_line(self, accuracy: float, formed: float, answer: str) -> str:
        """One line that begins with "right" or "wrong"."""
        return f"{'right' if accuracy else 'wrong'}: the answer is {answer}"


def _lose_a_ten(value: IntArray, n_digits: int) -> IntArray:
    """Values (n,) with a magnitude 10 too small, as if a carry had been forgotten, or 10 too large
    if the magnitude is below 10. Never the right value, and never more than ``n_digits`` digits if
    the value has no more. With one-digit answers the error is 1."""
    size, unit = np.abs(value), 10 if n_digits > 1 else 1
    return np.where(value < 0, -1, 1) * np.where(size >= unit, size - unit, size + unit)
