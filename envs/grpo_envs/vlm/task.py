"""GRPO-VLM-v0: look at a picture, read a question about it, choose the right answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from grpo_envs.cards import Choice, letter, picture_card
from grpo_envs.task import IntArray, Outcome, Split, State, Task, check_whole
from grpo_envs.vlm.easy_vqa import EasyVQASource
from grpo_envs.vlm.synthetic import SyntheticSource

RIGHT, WRONG = 1.0, -0.5


class VLMTask(Task):
    """Multiple choice in one step, from one of two sources. ``VLMEnv`` documents the task.

    Raises:
        ValueError: an unknown source, an option out of range, or an option of ``synthetic`` given
            to ``easy_vqa``.
    """

    component_names = ("accuracy",)
    max_steps = 1

    def __init__(
        self,
        source: str = "easy_vqa",
        *,
        difficulty: float | None = None,
        n_choices: int | None = None,
        embed_dim: int | None = None,
    ) -> None:
        given = {"difficulty": difficulty, "n_choices": n_choices, "embed_dim": embed_dim}
        given = {name: value for name, value in given.items() if value is not None}
        self.source: EasyVQASource | SyntheticSource
        if source == "synthetic":
            options: dict[str, Any] = {"difficulty": 0.35, "n_choices": 4, "embed_dim": 128}
            self.source = SyntheticSource(**options | given)
        elif source != "easy_vqa":
            raise ValueError(f"source={source!r}: expected 'easy_vqa' or 'synthetic'")
        elif given:
            text = ", ".join(f"{name}={value}" for name, value in given.items())
            raise ValueError(f"{text}: only for source='synthetic', but source is 'easy_vqa'")
        else:
            self.source = EasyVQASource()
        n, bound = self.source.n_choices, self.source.bound
        self.observation_space = spaces.Box(-bound, bound, (self.source.embed_dim,), np.float32)
        self.action_space = spaces.Discrete(n)
        self.random_score = (RIGHT + WRONG * (n - 1)) / n
        best = self.source.bayes_accuracy
        self.oracle_score = RIGHT * best + WRONG * (1 - best)
        names = [letter(place) for place in range(n)]
        forms = ["{}", "({})", "{})", "{}."]
        self._place_of = {form.format(name): p for p, name in enumerate(names) for form in forms}

    # -- problems ---------------------------------------------------------------------------------

    def sample(self, rng: np.random.Generator, n: int, split: Split) -> IntArray:
        return self.source.sample(rng, n, split)

    def problem_ids(self, split: Split) -> IntArray:
        return self.source.problem_ids(split)

    def check_ids(self, ids: Any) -> IntArray:
        return check_whole(ids, self.source.n_ids)

    def split_of(self, ids: IntArray) -> NDArray[np.str_]:
        return self.source.split_of(ids)

    # -- episodes ---------------------------------------------------------------------------------

    def start(self, ids: IntArray) -> State:
        """``choice`` (n,) is the action taken, -1 before."""
        return {"problem_id": ids.copy(), "choice": np.full(len(ids), -1, dtype=np.int64)}

    def observe(self, state: State) -> NDArray[np.float32]:
        return self.source.observe(state["problem_id"])

    def step(self, state: State, actions: IntArray) -> Outcome:
        state["choice"][:] = actions
        return self._judge(state["problem_id"], actions)

    def _judge(self, ids: IntArray, choices: IntArray) -> Outcome:
        success = (self.source.place(ids) == choices).astype(np.float64)
        reward = success * (RIGHT - WRONG) + WRONG
        return Outcome(reward, np.ones(len(ids), dtype=bool), success, {"accuracy": success.copy()})

    # -- the text view ----------------------------------------------------------------------------

    def prompts(self, ids: IntArray) -> list[str]:
        return [f"<image>\n{self._problem(i)}\nAnswer with the letter." for i in ids.tolist()]

    def score_texts(self, ids: IntArray, completions: Sequence[str]) -> Outcome:
        """``B``, ``(B)``, ``B)`` and ``B.`` choose B, in upper or lower case, with white space
        around them; any other text is wrong."""
        if len(completions) != len(ids):
            raise ValueError(f"{len(completions)} completions for {len(ids)} problems")
        return self._judge(ids, np.array([self._choice(text) for text in completions], np.int64))

    def _choice(self, completion: str) -> int:
        """The index of the answer that a completion chooses, -1 if it chooses none."""
        word = completion.strip()
        # the upper case of some letters outside ASCII is an ASCII letter
        return self._place_of.get(word.upper(), -1) if word.isascii() else -1

    def _problem(self, problem: int) -> str:
        answers = enumerate(self.source.answers(problem))
        lines = [f"Question: {self.source.question(problem)}"]
        return "\n".join(lines + [f"{letter(place)}) {answer}" for place, answer in answers])

    # -- pictures ---------------------------------------------------------------------------------

    def _verdict(self, problem: int, choice: int) -> str | None:
        """One line; None before the choice."""
        if choice < 0:
            return None
        place = int(self.source.place(np.array([problem]))[0])
        if choice == place:
            return f"Right: {letter(place)}, reward {RIGHT:+}"
        return f"Wrong: {letter(choice)}, right is {letter(place)}, reward {WRONG:+}"

    def describe(self, state: State, i: int) -> str:
        problem, choice = int(state["problem_id"][i]), int(state["choice"][i])
        verdict = self._verdict(problem, choice)
        return self._problem(problem) + (f"\n{verdict}" if verdict else "")

    def draw(self, state: State, i: int) -> NDArray[np.uint8]:
        problem, choice = int(state["problem_id"][i]), int(state["choice"][i])
        rows = [Choice(answer) for answer in self.source.answers(problem)]
        if choice >= 0:
            place = int(self.source.place(np.array([problem]))[0])
            rows[choice] = Choice(rows[choice].text, "wrong", "chosen")
            note = "chosen, right" if choice == place else "right"
            rows[place] = Choice(rows[place].text, "right", note)
        split = self.split_of(np.array([problem]))[0]
        title = f"GRPO-VLM  {self.source.name}  {split} problem {problem}"
        question, picture = self.source.question(problem), self.source.picture(problem)
        return picture_card(title, picture, question, rows, self._verdict(problem, choice))
