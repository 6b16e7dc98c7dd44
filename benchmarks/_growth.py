"""How cost grows with size: exponents from the costs at several sizes, and their verdicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from _compare import Table, spread, verdict
from numpy.typing import NDArray

from grpo_bench.report.text.numbers import hundredths, in_units
from grpo_bench.report.text.writers import Column
from grpo_bench.stats import mean_interval

LINEAR = 1.1  # largest exponent that counts as linear: data that outgrow a cache cost more
COLUMNS = [
    Column("ms at the largest", "cost", in_units(1e-3), interval=True),
    Column("exponent", "upper", hundredths, interval=True),
    Column("of the two largest", "top", hundredths, interval=True),
]
LINEAR_OR_NOT = {"met": "yes", "missed": "no", "open": "cannot tell"}  # by verdict
LABELS = ("cost of", "grows with", "sizes", "no worse than linear")


@dataclass(frozen=True)
class Growth:
    """A cost measured at several sizes.

    Attributes:
        size: the name of the size.
        sizes: at least three, ascending.
        cost: seconds at a size in a turn.
        judged_by: the same sizes in another unit, by its name, if cost should be linear in it.
    """

    what: str
    size: str
    sizes: Sequence[int]
    cost: Callable[[int, int], float]
    judged_by: dict[str, Sequence[int]] = field(default_factory=dict)

    def smallest(self, n: int | None) -> Growth:
        """The same at the n smallest sizes, or at all of them if n is None."""
        judged_by = {name: sizes[:n] for name, sizes in self.judged_by.items()}
        return replace(self, sizes=self.sizes[:n], judged_by=judged_by)


def exponents(sizes: Sequence[int], costs: Sequence[float]) -> tuple[float, float]:
    """Slopes of log cost on log size: by least squares over the upper half of the sizes (at least
    two, with the middle one of an odd number), and between the two largest.

    Raises:
        ValueError: fewer than three sizes.
    """
    if len(sizes) < 3:
        raise ValueError(f"sizes {list(sizes)}: expected at least three")
    x, y = np.log(sizes), np.log(costs)
    half = len(x) // 2 if len(x) > 3 else 1
    slope, _ = np.polyfit(x[half:], y[half:], 1)
    return float(slope), float((y[-1] - y[-2]) / (x[-1] - x[-2]))


def add_rows(table: Table, growth: Growth, costs: NDArray[np.float64]) -> None:
    """Add a row for the sizes, and one for each unit in ``judged_by``; costs (turns, sizes)."""
    for size, sizes in ({growth.size: growth.sizes} | growth.judged_by).items():
        turns = np.array([exponents(sizes, turn) for turn in costs.tolist()])  # (turns, 2)
        numbers = spread("cost", costs[:, -1])
        for name, values in zip(("upper", "top"), turns.T, strict=True):
            mean, low, high = mean_interval(values)
            numbers |= {name: mean, f"{name}_low": low, f"{name}_high": high}
        numbers["upper_median"] = float(np.median(turns[:, 0]))
        what = f"{growth.what}, exponent of its cost by {size}"
        target = verdict(what, numbers, at_most=LINEAR, name="upper")
        word = LINEAR_OR_NOT[target.verdict]
        if growth.judged_by and size == growth.size:
            word = f"see {', '.join(growth.judged_by)}"
        else:
            table.targets.append(target)
        labels = (growth.what, size, f"{sizes[0]:,} to {sizes[-1]:,}", word)
        table.add(dict(zip(LABELS, labels, strict=True)), numbers)
