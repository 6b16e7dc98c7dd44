"""The numbers and words in each chart. The drawing is in ``drawing``."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from grpo_bench.report.contents import OWN, Section
from grpo_bench.report.text.numbers import significant

# For each budget: its name, and the units that it may be shown in. A chart takes the largest unit
# that its numbers reach.
AXES: dict[str, tuple[str, dict[str, float]]] = {
    "transitions": ("transitions", {"": 1, "thousand": 1e3, "million": 1e6}),
    "gradient_steps": ("gradient steps", {"": 1, "thousand": 1e3}),
    "seconds": ("seconds of training", {"": 1}),
    "peak_bytes": ("peak memory", {"KB": 1e3, "MB": 1e6, "GB": 1e9}),
}


class Measure(NamedTuple):
    """A column of the table ``trades`` as a chart.

    better: which side is better, more or less.
    is_ratio: GRPO's value divided by PPO's; else GRPO's minus PPO's.
    """

    title: str
    column: str
    better: str
    is_ratio: bool

    @property
    def equal(self) -> float:
        """The value where GRPO and PPO are equal."""
        return 1.0 if self.is_ratio else 0.0

    @property
    def comparison(self) -> str:
        """How the two are compared."""
        return "GRPO ÷ PPO" if self.is_ratio else "GRPO − PPO"


# The first four make the summary figure.
MEASURES = (
    Measure("training speed", "speed_ratio", "more", is_ratio=True),
    Measure("memory: whole process", "peak_ratio", "less", is_ratio=True),
    Measure("memory: networks, optimiser", "static_ratio", "less", is_ratio=True),
    Measure("success", "difference", "more", is_ratio=False),
    Measure("success in equal seconds", "seconds_difference", "more", is_ratio=False),
)
IN_SUMMARY = [measure.title for measure in MEASURES[:4]]
CURVE = ["algo", "x", "n", "success", "success_low", "success_high"]


@dataclass(frozen=True)
class CurvePanel:
    """Learning curves of one environment and budget over one axis.

    curves: columns ``CURVE``, in the order of the tables' rows and of x.
    title: of the panel. words: the budget on the axis. label: of the axis, with its unit.
    unit: of the axis, in the units of x.
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
    def summary(self) -> str:
        """The chart in a sentence."""
        last = self.curves.groupby("algo", sort=False)["success"].last()
        ends = ", ".join(f"{algo} {significant(x)}" for algo, x in last.items())
        return f"{self.title}: success on validation over {self.label}. At the end: {ends}"


def curve_panels(section: Section, axis: str) -> list[CurvePanel]:
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
        found.append(CurvePanel(env, budget, axis, rows[CURVE], title, words, label, units[unit]))
    return found


def point_in_words(row: dict[Any, Any], panel: CurvePanel) -> str:
    """A point of a curve: its algorithm, success with interval, place and seeds."""
    success, low, high = (significant(row[name]) for name in CURVE[3:])
    x = significant(row["x"] / panel.unit)
    return f"{row['algo']}: {success} [{low}, {high}] at {x} {panel.label}, {row['n']} seeds"


def all_trades(sections: Sequence[Section]) -> pd.DataFrame:
    """The tables ``trades`` of all sections, with the columns ``section``, its name, and ``task``:
    the environment, with the budget if it has several."""
    some = [s.tables["trades"].assign(section=s.name) for s in sections if "trades" in s.tables]
    if not some:
        return pd.DataFrame(columns=["env", "budget"])
    table = pd.concat(some, ignore_index=True)
    table.attrs = next(s.tables["trades"].attrs for s in sections if "trades" in s.tables)
    table["task"] = task_names(table)
    return table


def task_names(table: pd.DataFrame) -> list[str]:
    """The environment of each row, with the budget if the environment has several."""
    budgets = table.groupby("env")["budget"].nunique()
    pairs = zip(table["env"], table["budget"], strict=True)
    return [env if budgets[env] == 1 else f"{env}, {budget}" for env, budget in pairs]


def interval_rows(trades: pd.DataFrame) -> pd.DataFrame:
    """Every number of ``all_trades`` that belongs to a measure.

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


def intervals_in_words(rows: pd.DataFrame) -> list[str]:
    """Each of the ``interval_rows``: its label and its numbers, without an interval below 3
    seeds."""
    words = []
    for r in rows.itertuples():
        interval = f" [{significant(r.low)}, {significant(r.high)}]" if r.low == r.low else ""
        words.append(f"{r.label}: {significant(r.estimate)}{interval}")
    return words


def held_by_the_algorithm(parts: pd.DataFrame) -> pd.DataFrame:
    """Those components of processes that an algorithm holds all the time."""
    return parts[parts["component"].isin(OWN.values())]


def component_places(parts: pd.DataFrame) -> dict[str, int]:
    """The components in the order of the stacked bars, with the places of their colours in
    ``palette.PARTS_LIGHT``: the same for an algorithm's own components everywhere."""
    own = {name: i for i, name in enumerate(OWN.values()) if name in set(parts["component"])}
    others = [name for name in dict.fromkeys(parts["component"]) if name not in own]
    return own | {name: len(OWN) + i for i, name in enumerate(others)}


def profile_panels(profiles: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """The performance profiles of each budget: a title, and rows of ``Section.profiles``."""
    frames = profiles.groupby("budget", sort=False)
    return [(f"budget {budget}", from_first_difference(rows)) for budget, rows in frames]


def profiles_in_words(title: str, rows: pd.DataFrame) -> str:
    """Performance profiles in a sentence: their values in the middle of the axis."""
    taus = rows["tau"].unique()
    middle = taus[len(taus) // 2]
    shares = rows[rows["tau"] == middle]
    ends = ", ".join(f"{r.algo} {significant(r.share)}" for r in shares.itertuples())
    return f"{title}: share of runs above a score τ. At τ = {significant(middle)}: {ends}"


def from_first_difference(profiles: pd.DataFrame) -> pd.DataFrame:
    """Profiles without the part where the share is 1 for all, to the tenth below its end."""
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


def memory_in_words(title: str, parts: pd.DataFrame) -> str:
    """Bars of memory in a sentence: their lengths."""
    sums = parts.groupby("algo", sort=False)["bytes"].sum()
    return f"{title}: {', '.join(f'{algo} {size_in_words(x)}' for algo, x in sums.items())}"


def bytes_unit(largest: float) -> tuple[str, float]:
    """The unit in which to show so many bytes."""
    for name, unit in (("GB", 1e9), ("MB", 1e6)):
        if largest >= 5 * unit:
            return name, unit
    return "KB", 1e3


def size_in_words(x: float) -> str:
    """Bytes with their unit."""
    name, unit = bytes_unit(x)
    return f"{significant(x / unit)} {name}"


def slug(*words: str) -> str:
    """Words as one name for addresses and file systems."""
    return re.sub(r"[^A-Za-z0-9._]+", "-", "-".join(words)).strip("-")
