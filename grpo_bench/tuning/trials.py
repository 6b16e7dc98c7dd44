"""Trials of a tuning: which settings are tried, and which win.

Random search: the settings of a trial are a point of a scrambled Halton sequence, which covers a
space more evenly than independent draws (Bergstra and Bengio, JMLR 13, 2012; section 4). Two
algorithms with one setting in common try the same values of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from grpo_bench.config import Config

POINTS_SEED = 0  # of the sequence of trials
DIGITS = 3  # significant figures of a tuned number

Settings = dict[str, float]


@dataclass
class Trial:
    """Settings of an algorithm on an environment, and the success they led to, by seed.

    base: the configuration of the algorithm as its file says.
    """

    env: str
    algo: str
    number: int
    settings: Settings
    base: Config = field(default_factory=dict)
    scores: dict[int, float] = field(default_factory=dict)

    def config(self, seed: int) -> Config:
        """The configuration of a run of it."""
        return {**self.base, "algo": {**self.base["algo"], **self.settings}, "seed": seed}

    def words(self) -> str:
        """Its settings, for people."""
        return ", ".join(f"{k} {v:g}" for k, v in self.settings.items()) or "as its file says"

    @property
    def score(self) -> float:
        """Mean over the seeds; minus infinity if one of them failed."""
        mean = float(np.mean(list(self.scores.values())))
        return -math.inf if math.isnan(mean) else mean


def propose(
    parameters: Mapping[str, Mapping[str, Sequence[float]]],
    space: Sequence[str],
    own: Mapping[str, float],
    n: int,
) -> list[Settings]:
    """The settings of n trials: none for the first, then one of each parameter in the space.

    Args:
        parameters: of each either ``factor`` [low, high], times the algorithm's own value, even on
            a logarithmic scale, or ``choices``. Its place in this order is its coordinate.
        own: the algorithm's own values of those with a factor.
    """
    from scipy.stats import qmc  # slow to import

    points = qmc.Halton(len(parameters), rng=np.random.default_rng(POINTS_SEED)).random(n - 1)
    return [
        {},
        *(
            {
                name: value_at(parameter, u, own.get(name, math.nan))
                for (name, parameter), u in zip(parameters.items(), point, strict=True)
                if name in space
            }
            for point in points.tolist()
        ),
    ]


def value_at(parameter: Mapping[str, Sequence[float]], u: float, own: float) -> float:
    """A parameter's value at u in [0, 1)."""
    if "choices" in parameter:
        return parameter["choices"][int(u * len(parameter["choices"]))]
    low, high = parameter["factor"]
    return float(f"{own * low * (high / low) ** u:.{DIGITS}g}")


def finalists(trials: Sequence[Trial], n: int) -> list[Trial]:
    """The first trial and the n - 1 best of the others; of equals the earlier one."""
    return [trials[0], *sorted(trials[1:], key=lambda trial: -trial.score)[: n - 1]]


def best(trials: Sequence[Trial]) -> Trial:
    """The best of those with the most seeds; of equals the earlier one."""
    most = max(len(trial.scores) for trial in trials)
    return max((t for t in trials if len(t.scores) == most), key=lambda trial: trial.score)
