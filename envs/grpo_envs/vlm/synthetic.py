"""Synthetic matching problems for GRPO-VLM: unlimited, of known difficulty, without stored data.

A counter-based hash (``hashing.py``) computes problem p from p, so a problem is the same in every
batch, view and process.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from grpo_envs.hashing import UInt64Array, below, counters, draws, normals
from grpo_envs.task import MAX_ID, IntArray, Split

EVALUATION = 2000  # problems in test, and in validation and tuning together
RANGES: dict[Split, tuple[int, int]] = {  # first id, and one after the last
    "validation": (0, EVALUATION // 2),
    "tuning": (EVALUATION // 2, EVALUATION),
    "test": (EVALUATION, 2 * EVALUATION),
    "train": (2 * EVALUATION, MAX_ID),
}


class SyntheticSource:
    """Which of ``n_choices`` candidate concepts does a noisy query show?

    There are k = ``embed_dim // (n_choices + 1)`` orthonormal concepts in k dimensions. A problem
    has ``n_choices`` different candidates, and one of them is right. The observation is the query,
    then the candidates, k coordinates each. The query has ``embed_dim - n_choices * k``
    coordinates: R times the right concept plus independent noise of standard deviation
    ``difficulty``. R is one orthonormal map for all problems. The agent has to learn R.

    Raises:
        ValueError: an option is out of range, or there are too few dimensions for ``n_choices``
            different concepts.
    """

    name = "synthetic"
    n_ids = MAX_ID

    def __init__(self, difficulty: float, n_choices: int, embed_dim: int) -> None:
        if not 0 <= difficulty < math.inf:
            raise ValueError(f"difficulty={difficulty}: expected a finite number, at least 0")
        if n_choices < 2:
            raise ValueError(f"n_choices={n_choices}: expected at least 2")
        if embed_dim < n_choices * (n_choices + 1):
            raise ValueError(
                f"embed_dim={embed_dim} is too small for n_choices={n_choices}: {n_choices} "
                f"different concepts need at least {n_choices * (n_choices + 1)} dimensions"
            )
        self.difficulty, self.n_choices, self.embed_dim = float(difficulty), n_choices, embed_dim
        self.k = embed_dim // (n_choices + 1)
        self.query_dim = embed_dim - n_choices * self.k
        # draws: the right position, the candidates, then noise, two values from each draw
        self._counters = counters(1 + n_choices + (self.query_dim + 1) // 2)
        self._concepts = _orthonormal(self.k, self.k, seed=0).astype(np.float32)
        rotation = _orthonormal(self.query_dim, self.k, seed=1)
        # R c for every concept c, as a table: a matrix product's rounding depends on the batch
        self._queries = (self._concepts @ rotation.T).astype(np.float32)  # (k, query_dim)
        # ``normals`` stay below 6, and the coordinates of a unit vector are at most 1
        self.bound = 1.0 + 6.0 * self.difficulty

    @property
    def bayes_accuracy(self) -> float:
        """Success rate of the best policy: the integral of phi(x) Phi(x + 1/sigma)^(n - 1) dx.

        The scores of the candidates, R' query . c_j, are independent normals with standard
        deviation sigma and mean 1 for the right one, 0 for the others. The best policy takes the
        largest. The integral uses the trapezoid rule, exact to rounding for so smooth a function.
        """
        if self.difficulty == 0:
            return 1.0
        x = np.linspace(-9, 9, 721)
        shift = 1 / self.difficulty
        cumulative = np.array([0.5 * math.erfc(-(t + shift) / math.sqrt(2)) for t in x])
        density = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
        return float(np.sum(density * cumulative ** (self.n_choices - 1)) * (x[1] - x[0]))

    # -- splits -----------------------------------------------------------------------------------

    def sample(self, rng: np.random.Generator, n: int, split: Split) -> IntArray:
        """n ids, (n,), uniform over the split."""
        return rng.integers(*RANGES[split], size=n)

    def problem_ids(self, split: Split) -> IntArray:
        """All ids of the split; for the training split the first 2,000."""
        first, end = RANGES[split]
        return np.arange(first, min(end, first + EVALUATION))

    def split_of(self, ids: IntArray) -> NDArray[np.str_]:
        """The split of each id, (n,)."""
        names = np.array(["validation", "tuning", "test", "test", "train"])
        return names[np.minimum(ids // (EVALUATION // 2), 4)]

    # -- problems ---------------------------------------------------------------------------------

    def place(self, ids: IntArray) -> IntArray:
        """The position of the right candidate, (n,), uniform over the positions."""
        return below(draws(ids, self._counters[:1]), self.n_choices)[:, 0]

    def candidates(self, ids: IntArray) -> IntArray:
        """The candidate concepts in order, (n, n_choices), all different in a row."""
        return self._without_repeats(draws(ids, self._counters[1 : 1 + self.n_choices]))

    def _without_repeats(self, bits: UInt64Array) -> IntArray:
        """Position j draws a rank among the concepts that positions 0..j-1 have not taken."""
        chosen = below(bits, self.k - np.arange(self.n_choices))
        for j in range(1, self.n_choices):
            for taken in np.sort(chosen[:, :j], axis=1).T:
                chosen[:, j] += chosen[:, j] >= taken
        return chosen

    def observe(self, ids: IntArray) -> NDArray[np.float32]:
        """Query, then candidates: (n, embed_dim)."""
        n, choices = len(ids), self.n_choices
        bits = draws(ids, self._counters)
        place = below(bits[:, 0], choices)
        candidates = self._without_repeats(bits[:, 1 : 1 + choices])
        observations = np.empty((n, self.embed_dim), dtype=np.float32)
        query, blocks = observations[:, : self.query_dim], observations[:, self.query_dim :]
        query[:] = self._queries[candidates[np.arange(n), place]]
        if self.difficulty:
            noise = normals(bits[:, 1 + choices :])[:, : self.query_dim]
            query += np.float32(self.difficulty) * noise
        blocks[:] = self._concepts[candidates].reshape(n, -1)
        return observations

    def question(self, problem: int) -> str:
        """The same question for every problem."""
        return "which concept is in the image?"

    def answers(self, problem: int) -> list[str]:
        """The candidates' names, in order."""
        return [f"concept {c}" for c in self.candidates(np.array([problem]))[0]]

    def picture(self, problem: int) -> None:
        """None: the query is only a vector."""


def _orthonormal(rows: int, columns: int, seed: int) -> NDArray[np.float64]:
    """A fixed (rows, columns) matrix with orthonormal columns, rows >= columns."""
    bits = draws(np.arange(rows) + (seed << 32), counters((columns + 1) // 2))
    q, r = np.linalg.qr(normals(bits)[:, :columns].astype(np.float64))
    return q * np.sign(np.diag(r))  # with this sign the factorisation is unique
