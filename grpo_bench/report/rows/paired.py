"""The same problems, answered by an algorithm and by the reference, seed by seed.

The problems that one policy answered share its luck: they are no replications of a training run.
McNemar's test tells two policies apart, those of one seed, and what it finds need not hold for the
next seed. The permutation test nested in seeds is about the algorithms: it swaps whole seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from grpo_bench.report.rows.cells import Row, beside_references, names
from grpo_bench.report.rows.comparison import Group
from grpo_bench.stats import mcnemar, nested_permutation, smallest_p

LEVEL = 0.05  # a seed whose p is not above counts as told apart
Matrix = NDArray[np.float64]


def paired(groups: Sequence[Group], problems: pd.DataFrame) -> list[Row]:
    """A row for each group that is compared with a reference. Tests of right and wrong answers do
    not apply to scores of other values; such runs have no row.

    Args:
        problems: run, problem_id and success, of the last evaluation on test.
    """
    outcomes = {
        run: rows.set_index("problem_id")["success"]
        for run, rows in problems.groupby("run", observed=True)
    }
    pairs = [
        (group, answers(group, other, outcomes))
        for group, other in beside_references(groups)
        if other is not None
    ]
    return [
        names(group) | _tests(*both)
        for group, both in pairs
        if all(np.isin(one, (0, 1)).all() for one in both)
    ]


def answers(
    group: Group, reference: Group, outcomes: dict[str, pd.Series]
) -> tuple[Matrix, Matrix]:
    """Success of both for each seed that both have, on the problems that all these runs have,
    (seeds, problems) each."""
    own, its = (
        {s: outcomes[run] for run, s in g.values["seed"].items() if run in outcomes}
        for g in (group, reference)
    )
    seeds = sorted(set(own) & set(its))
    if not seeds:
        return np.empty((0, 0)), np.empty((0, 0))
    both = pd.concat([*(own[s] for s in seeds), *(its[s] for s in seeds)], axis=1, join="inner")
    first, second = np.split(both.to_numpy(dtype=np.float64).T, 2)
    return first, second


def _tests(mine: Matrix, its: Matrix) -> Row:
    """The columns of the paired tests; without anything to pair, there is no p."""
    row: Row = {"n": len(mine), "problems": mine.shape[1], "seeds_better": 0, "seeds_worse": 0}
    if not mine.size:
        return row
    tests = [mcnemar(a, b) for a, b in zip(mine, its, strict=True)]
    told = [test for test in tests if test.p <= LEVEL]
    return row | {
        "only_mine": median(test.only_a for test in tests),
        "only_its": median(test.only_b for test in tests),
        "mcnemar_p": median(test.p for test in tests),
        "seeds_better": sum(test.only_a > test.only_b for test in told),
        "seeds_worse": sum(test.only_b > test.only_a for test in told),
        "p": nested_permutation(mine, its).p,
        "smallest_p": smallest_p(len(mine), len(mine), paired=True),
    }
