"""Task: the problems of an environment, defined once, in batches.

A batch of n problems is a ``State``: a dict of numpy arrays whose first axis is the batch. All
views (scalar, vector, text) call the same functions:

    ids = task.sample(rng, n, "train")      which problems             (n,)  int64
    state = task.start(ids)                 the start of the episodes  {name: (n, ...)}
    obs = task.observe(state)               what the agent sees        like ``observation_space``
    outcome = task.step(state, actions)     advance in place, judge    Outcome of (n,) arrays
    task.describe(state, i)                 one problem, as text; ``draw`` as a picture

For a given problem id, observations and rewards depend only on the actions: no method except
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

# Policies are trained on ``train`` and settings are tuned on ``tuning``. Learning curves use
# ``validation``, reported results ``test``.
Split = Literal["train", "validation", "test", "tuning"]
SPLITS: tuple[Split, ...] = get_args(Split)

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
State = dict[str, NDArray[Any]]
Chat = list[dict[str, str]]  # messages with role and content, as in chat templates
Observation = Any  # an array, or a dict of arrays, with the batch as the first axis

MAX_ID = 2**53  # ``info`` has ids as Python floats: exact up to here


@dataclass(frozen=True)
class Outcome:
    """The result of one step of n episodes. All tasks here give their reward at the end: before it
    everything is 0."""

    reward: FloatArray  # (n,)
    terminated: BoolArray  # (n,)
    success: FloatArray  # (n,) 1.0 where the answer is right
    components: dict[str, FloatArray]  # parts of the reward, each (n,); always the same keys


class Task(ABC):
    """A family of problems with verifiable answers. The module's docstring has the contract."""

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
        """All problems of a split, each once, in an order that never changes; a fixed sample if
        the split is too large to list."""

    @abstractmethod
    def check_ids(self, ids: Any) -> IntArray:
        """Ids as (n,) int64 in canonical form.

        Raises:
            ValueError: an id is invalid; names it and the valid ones.
        """

    @abstractmethod
    def split_of(self, ids: IntArray) -> NDArray[np.str_]:
        """The split of each id, (n,)."""

    # -- episodes ---------------------------------------------------------------------------------

    @abstractmethod
    def start(self, ids: IntArray) -> State:
        """A new batch of episodes. The state always has ``problem_id`` (n,)."""

    @abstractmethod
    def observe(self, state: State) -> Observation:
        """Observations of the batch, as new arrays."""

    @abstractmethod
    def step(self, state: State, actions: IntArray) -> Outcome:
        """Take one action (n,) in each episode, in place. No episode of ``state`` has ended."""

    def action_masks(self, state: State) -> BoolArray:
        """Actions that can still be right, (n, n_actions); all of them, unless overridden."""
        return np.ones((len(state["problem_id"]), int(self.action_space.n)), dtype=bool)

    # -- the text view ----------------------------------------------------------------------------

    @abstractmethod
    def prompts(self, ids: IntArray) -> list[str]:
        """The prompt of each problem for a language model."""

    @abstractmethod
    def score_texts(self, ids: IntArray, completions: Sequence[str]) -> Outcome:
        """Judge one completion per problem, with the reward that the same tokens would get."""

    def chats(self, ids: IntArray, examples: int = 0) -> list[Chat]:
        """Each problem as a conversation for a chat model to continue.

        Args:
            examples: number of solved problems to show first.

        Raises:
            ValueError: the task has fewer examples.
        """
        if examples:
            raise ValueError(f"examples={examples}: expected 0, {type(self).__name__} has none")
        return [[{"role": "user", "content": prompt}] for prompt in self.prompts(ids)]

    def score_replies(self, ids: IntArray, replies: Sequence[str]) -> Outcome:
        """Judge a chat model's replies to ``chats``. A task can override this to find the answer in
        a longer reply; the default is ``score_texts``."""
        return self.score_texts(ids, replies)

    # -- the scale of scores ----------------------------------------------------------------------

    oracle_score: float  # expected reward of the best possible policy

    @cached_property
    def random_score(self) -> float:
        """Expected reward of uniformly random actions on the training split. Simulated with 200,000
        episodes and a fixed seed; a task that knows the value overrides it."""
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
        """Rescale a reward: 0 is random, 1 is perfect."""
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
    """Ids as (n,) int64. Floats that are whole numbers are accepted: ``info`` has ids as floats.

    Raises:
        ValueError: an id is not a whole number from 0 to ``n_ids`` - 1; names it.
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
