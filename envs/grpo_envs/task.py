"""Task: what a problem is, defined once and in batches.

A batch of n problems is a ``State``: a dict of numpy arrays whose first axis is the batch. Every
view (scalar, vector, text) calls the same five functions, so there is nothing to keep in step:

    ids = task.sample(rng, n, "train")      which problems             (n,)  int64
    state = task.start(ids)                 the batch at its beginning {name: (n, ...)}
    obs = task.observe(state)               what the agent sees        like ``observation_space``
    outcome = task.step(state, actions)     advance in place, judge    Outcome of (n,) arrays
    task.describe(state, i)                 one problem, as text; ``draw`` as a picture

Given a problem's id, observations and rewards are functions of the actions alone: no method but
``sample`` is random.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

# Policies learn on ``train``, settings are chosen on ``tuning``, curves are drawn on
# ``validation``, and what is reported comes from ``test``.
Split = Literal["train", "validation", "test", "tuning"]
SPLITS: tuple[Split, ...] = get_args(Split)

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
State = dict[str, NDArray[Any]]
Chat = list[dict[str, str]]  # messages with a role and a content, as chat templates take them
Observation = Any  # an array, or a dict of arrays, with the batch as the first axis

MAX_ID = 2**53  # ids travel through ``info`` as Python floats: exact up to here


@dataclass(frozen=True)
class Outcome:
    """What one step did to a batch of n episodes. While an episode goes on, all but
    ``terminated`` are 0 (no task here pays before the end)."""

    reward: FloatArray  # (n,)
    terminated: BoolArray  # (n,)
    success: FloatArray  # (n,) 1.0 where the answer is right
    components: dict[str, FloatArray]  # the parts of the reward, each (n,); always the same keys


class Task(ABC):
    """A family of problems with verifiable answers. See the module's page for the contract."""

    observation_space: spaces.Space[Any]  # of one problem
    action_space: spaces.Discrete
    component_names: ClassVar[tuple[str, ...]]
    max_steps: int  # the longest episode, in actions

    # -- problems ---------------------------------------------------------------------------------

    @abstractmethod
    def sample(self, rng: np.random.Generator, n: int, split: Split) -> IntArray:
        """Draw n problem ids, (n,), independently and with replacement."""

    @abstractmethod
    def problem_ids(self, split: Split) -> IntArray:
        """The frozen list of a split, each problem once, in an order that never changes.

        Where a split has more problems than anyone can enumerate, this is a fixed sample of it.
        """

    @abstractmethod
    def check_ids(self, ids: Any) -> IntArray:
        """Ids as (n,) int64 in their canonical form.

        Raises:
            ValueError: names the first id that is none of this task, and says what ids are.
        """

    @abstractmethod
    def split_of(self, ids: IntArray) -> NDArray[np.str_]:
        """The split of each id, (n,)."""

    # -- episodes ---------------------------------------------------------------------------------

    @abstractmethod
    def start(self, ids: IntArray) -> State:
        """A new batch of episodes. The key ``problem_id`` (n,) is always there."""

    @abstractmethod
    def observe(self, state: State) -> Observation:
        """Observations of the batch, in arrays that nobody else holds."""

    @abstractmethod
    def step(self, state: State, actions: IntArray) -> Outcome:
        """Take one action (n,) in each episode, in place. Episodes that have ended are not passed
        in again before they are started anew."""

    def action_masks(self, state: State) -> BoolArray:
        """Which actions can possibly be right next, (n, n_actions); unless a task knows better,
        all."""
        return np.ones((len(state["problem_id"]), int(self.action_space.n)), dtype=bool)

    # -- the text view ----------------------------------------------------------------------------

    @abstractmethod
    def prompts(self, ids: IntArray) -> list[str]:
        """The prompt of each problem for a language model."""

    @abstractmethod
    def score_texts(self, ids: IntArray, completions: Sequence[str]) -> Outcome:
        """Judge one completion for each problem: the same reward as the tokens would get."""

    def chats(self, ids: IntArray, examples: int = 0) -> list[Chat]:
        """Each problem as a conversation that a chat model is to go on with.

        Args:
            examples: so many problems, with their answers, come before it.

        Raises:
            ValueError: the task has fewer examples.
        """
        if examples:
            raise ValueError(f"examples={examples}: expected 0, {type(self).__name__} has none")
        return [[{"role": "user", "content": prompt}] for prompt in self.prompts(ids)]

    def score_replies(self, ids: IntArray, replies: Sequence[str]) -> Outcome:
        """Judge what a chat model answers to ``chats``. It may say more than the answer, where a
        task can tell what the answer is; else this is ``score_texts``."""
        return self.score_texts(ids, replies)

    # -- what a score means -----------------------------------------------------------------------

    oracle_score: float  # expected reward of the best policy there is

    @cached_property
    def random_score(self) -> float:
        """Expected reward of uniformly random actions on the training split (simulated: 200,000
        episodes with a fixed seed; a task that knows the value says so instead)."""
        rng = np.random.default_rng(0)
        state = self.start(self.sample(rng, 200_000, "train"))
        total, running = 0.0, len(state["problem_id"])
        while running:
            actions = rng.integers(self.action_space.n, size=running)
            outcome = self.step(state, actions)
            total += float(outcome.reward.sum())
            state = {name: array[~outcome.terminated] for name, array in state.items()}
            running = len(state["problem_id"])
        return total / 200_000

    def normalised(self, reward: float) -> float:
        """0 for random, 1 for perfect."""
        return (reward - self.random_score) / (self.oracle_score - self.random_score)

    # -- pictures ---------------------------------------------------------------------------------

    @abstractmethod
    def describe(self, state: State, i: int) -> str:
        """Episode i of the batch as text (``render_mode="ansi"``)."""

    @abstractmethod
    def draw(self, state: State, i: int) -> NDArray[np.uint8]:
        """Episode i of the batch as a card, (height, width, 3) (``render_mode="rgb_array"``)."""


def check_split(split: str) -> Split:
    """Raises ValueError unless ``split`` is one of ``SPLITS``."""
    if split not in SPLITS:
        raise ValueError(f"split={split!r}: expected one of {', '.join(SPLITS)}")
    return split


def check_whole(ids: Any, n_ids: int) -> IntArray:
    """Ids as (n,) int64; floats that are whole numbers are taken, as ``info`` has them.

    Raises:
        ValueError: names the first that is no whole number from 0 to ``n_ids`` - 1.
    """
    expected = f"expected whole numbers from 0 to {n_ids - 1}"
    array = np.asarray(ids)
    if array.ndim != 1:
        raise ValueError(f"problem ids of shape {array.shape}: expected (n,)")
    if array.dtype.kind not in "iuf":
        items = array.tolist()
        bad = next((i for i in items if type(i) is not int or not 0 <= i < n_ids), items)
        raise ValueError(f"problem id {bad!r} of type {array.dtype}: {expected}")
    good = (array >= 0) & (array < n_ids) & (array == np.floor(array))
    if not good.all():
        raise ValueError(f"problem id {array[~good][0]}: {expected}")
    return array.astype(np.int64)
