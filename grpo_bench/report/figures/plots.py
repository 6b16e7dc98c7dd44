"""What charts show, in numbers and words: the same as SVG on the page and in the figures."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from grpo_bench.report.contents import OWN, Section
from grpo_bench.report.text.numbers import significant

# Of each budget: its words, and the units in which it may be read, of which the largest that is not
# too large is taken.
AXES: dict[str, tuple[str, dict[str, float]]] = {
    "transitions": ("transitions", {"": 1, "thousand": 1e3, "million": 1e6}),
    "gradient_steps": ("gradient steps", {"": 1, "thousand": 1e3}),
    "seconds": ("seconds of training", {"": 1}),
    "peak_bytes": ("peak memory", {"KB": 1e3, "MB": 1e6, "GB": 1e9}),
}


class Measure(NamedTuple):
    """A column of the trades as a chart has it.

    better: which side is the better one, more or less.
    is_ratio: to PPO's, else a difference from it.
    """

    title: str
    column: str
    better: str
    is_ratio: bool

    @property
    def none(self) -> float:
        """What says that there is nothing to choose between the two."""
        return 1.0 if self.is_ratio else 0.0


MEASURES = (
    Measure("speed ×", "speed_ratio", "more", is_ratio=True),
    Measure("peak memory ×", "peak_ratio", "less", is_ratio=True),
    Measure("static memory ×", "static_ratio", "less", is_ratio=True),
    Measure("success, difference", "difference", "more", is_ratio=False),
    Measure("in equal seconds, difference", "seconds_difference", "more", is_ratio=False),
)
TICKS = 6  # at most so many on an axis
CURVE = ["algo", "x", "n", "success", "success_low", "success_high"]


@dataclass(frozen=True)
class Panel:
    """Learning curves of one environment and budget over one axis.

    curves: ``CURVE``, in the order of rows of the tables and of x.
    title, words, label: of the panel, of its budget, and of its x axis.
    unit: one of it, in what x counts.
    """

    env: str
    budget: str
    axis: str
    curves: pd.DataFrame
    title: str
    words: str
    label: str
    unit: float

    @property
    def range(self) -> tuple[float, float]:
        """Where its x axis begins and ends. Bytes begin where the curves do: a process holds
        hundreds of megabytes before it learns anything."""
        low, high = self.curves["x"].min(), self.curves["x"].max()
        if self.axis != "peak_bytes":
            return 0.0, high
        margin = 0.05 * (high - low)
        return low - margin, high + margin


def panels(section: Section, axis: str) -> list[Panel]:
    """A panel for each environment and budget that has curves over the axis."""
    found = []
    curves = section.curves[section.curves["axis"] == axis].dropna(subset="success")
    for (env, budget), rows in curves.groupby(["env", "budget"], sort=False):
        places = {g.budget for g in section.groups if g.env == env}
        title = str(env) if len(places) == 1 else f"{env}, {budget}"
        words, units = AXES[axis]
        if axis == "transitions" and any(g.of_language_model for g in section.groups):
            words = "tokens"
        unit = next(iter(units))
        for larger, size in units.items():
            unit = larger if size <= rows["x"].max() else unit
        label = f"{words} / {unit}" if axis == "peak_bytes" else f"{unit} {words}".strip()
        found.append(Panel(env, budget, axis, rows[CURVE], title, words, label, units[unit]))
    return found


def told(row: dict[Any, Any], panel: Panel) -> str:
    """A point of a curve in words."""
    success, low, high = (significant(row[name]) for name in CURVE[3:])
    x = significant(row["x"] / panel.unit)
    return f"{row['algo']}: {success} [{low}, {high}] at {x} {panel.label}, {row['n']} seeds"


def trades_of(sections: Sequence[Section]) -> pd.DataFrame:
    """The tables ``trades`` of all sections, and beside them ``section``, the name of theirs, and
    ``task``: the environment, with the budget where there are several."""
    some = [s.tables["trades"].assign(section=s.name) for s in sections if "trades" in s.tables]
    if not some:
        return pd.DataFrame(columns=["env", "budget"])
    table = pd.concat(some, ignore_index=True)
    table.attrs = next(s.tables["trades"].attrs for s in sections if "trades" in s.tables)
    table["task"] = task_names(table)
    return table


def task_names(table: pd.DataFrame) -> list[str]:
    """The environment of each row, with the budget where there are several of it."""
    budgets = table.groupby("env")["budget"].nunique()
    pairs = zip(table["env"], table["budget"], strict=True)
    return [env if budgets[env] == 1 else f"{env}, {budget}" for env, budget in pairs]


def trade_rows(trades: pd.DataFrame) -> pd.DataFrame:
    """The measures that have a number in a table of ``trades_of``, one a row.

    Returns:
        Columns label, measure (its title), estimate, low, high.
    """
    rows = []
    for trade in trades.to_dict("records"):
        for measure in MEASURES:
            ends = ("", "_low", "_high")
            estimate, low, high = (trade[f"{measure.column}{end}"] for end in ends)
            if not math.isnan(estimate):
                label = f"{trade['task']}, {trade['critic']} critic"
                rows.append((label, measure.title, estimate, low, high))
    return pd.DataFrame(rows, columns=["label", "measure", "estimate", "low", "high"])


def of_the_algorithm(parts: pd.DataFrame) -> pd.DataFrame:
    """Of the components of processes those that an algorithm holds all the time."""
    return parts[parts["component"].isin(OWN.values())]


def component_places(parts: pd.DataFrame) -> dict[str, int]:
    """The components in the order in which bars stack them, with the places of their colours: an
    algorithm's own have the same ones everywhere."""
    own = {name: i for i, name in enumerate(OWN.values()) if name in set(parts["component"])}
    others = [name for name in dict.fromkeys(parts["component"]) if name not in own]
    return own | {name: len(OWN) + i for i, name in enumerate(others)}


def profile_panels(profiles: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """The performance profiles of each budget: a title, and rows of ``Section.profiles``."""
    frames = profiles.groupby("budget", sort=False)
    return [(f"budget {budget}", differing(rows)) for budget, rows in frames]


def differing(profiles: pd.DataFrame) -> pd.DataFrame:
    """Profiles from the last tenth on below which there is every run of all of them."""
    first = profiles.loc[profiles["share"] < 1, "tau"].min()
    if math.isnan(first):
        return profiles
    return profiles[profiles["tau"] >= math.floor(first * 10 - 1e-9) / 10 - 1e-9]


def memory_panels(parts: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """The bars of each environment and budget: a title, and rows of ``parts``."""
    keys = [key for key in ("env", "budget") if key in parts and parts[key].nunique() > 1]
    if not keys:
        return [(str(parts["env"].iloc[0]), parts)] if len(parts) else []
    return [(", ".join(map(str, place)), rows) for place, rows in parts.groupby(keys, sort=False)]


def bytes_unit(largest: float) -> tuple[str, float]:
    """The unit in which so many bytes are read."""
    for name, unit in (("GB", 1e9), ("MB", 1e6)):
        if largest >= 5 * unit:
            return name, unit
    return "KB", 1e3


def name_of(*words: str) -> str:
    """Words as one name that addresses and file systems take as it is."""
    return re.sub(r"[^A-Za-z0-9._]+", "-", "-".join(words)).strip("-")


def ticks(low: float, high: float) -> list[float]:
    """Round numbers from low to high, ``TICKS`` at most."""
    if not high > low:
        return [low]
    for step in _steps((high - low) / TICKS):
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first < TICKS:
            return [i * step for i in range(first, last + 1)]
    raise AssertionError("steps grow without end")


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten from low to high, of these the powers alone if that is too
    many, and ``ticks`` if it is too few. Positive numbers."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for heads in ((1, 2, 5), (1,)):
        found = [h * 10.0**p for p in powers for h in heads if low <= h * 10.0**p <= high]
        if len(found) <= TICKS:
            break
    return found if len(found) > 2 else ticks(low, high)


def _steps(least: float) -> Iterator[float]:
    """1, 2 and 5 times powers of ten, from the first that is not below ``least``."""
    power = math.floor(math.log10(least))
    while True:
        yield from (h * 10.0**power for h in (1, 2, 5) if h * 10.0**power >= least * (1 - 1e-9))
        power += 1
