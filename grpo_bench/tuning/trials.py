"""The trials of a search: which settings are tried, and which win.

Random search: the settings of a trial are a point of a scrambled Halton sequence, which covers a
space more evenly than independent draws (Bergstra and Bengio, JMLR 13, 2012; section 4). Two
algorithms that share a setting try the same values of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from grpo_bench.config import RunConfig

POINTS_SEED = 0  # of the sequence of trials
DIGITS = 3  # significant figures of a tuned number

Settings = dict[str, float]


@dataclass
class Trial:
    """Settings of an algorithm on an environment, and the success they led to, by seed.

    base: the configuration with the settings of the algorithm's file.
    """

    env: str
    algo: str
    number: int
    settings: Settings
    base: RunConfig | None = None
    scores: dict[int, float] = field(default_factory=dict)

    def config(self, seed: int) -> RunConfig:
        """The configuration of a run of it."""
        assert self.base is not None
        settings = {f"algo.{name}": value for name, value in self.settings.items()}
        return self.base.changed({**settings, "seed": seed})

    def words(self) -> str:
        """Its settings in words."""
        return ", ".join(f"{k} {v:g}" for k, v in self.settings.items()) or "as its file says"

    @property
    def score(self) -> float:
        """Mean over the seeds; minus infinity if one of them failed."""
        mean = float(np.mean(list(self.scores.values())))
        return -math.inf if math.isnan(mean) else mean


def propose(
    parameters: Mapping[str, Mapping[str, Sequence[float]]],
    space: Sequence[str],
    own: Mapping[str, Any],
    n: int,
) -> list[Settings]:
    """The settings of n trials: none for the first, then one of each parameter in the space.

    Args:
        parameters: for each either ``factor`` [low, high], times the algorithm's own value, even on
            a logarithmic scale, or ``choices``. Its position is its coordinate.
        own: the algorithm's own values.
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
