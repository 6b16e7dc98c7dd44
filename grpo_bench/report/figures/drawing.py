"""Every chart, drawn by matplotlib, for the page and for files.

Nothing here depends on the clock or on a global state: with one version of matplotlib, the same
numbers give the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.ticker import (
    FuncFormatter,
    Locator,
    LogLocator,
    MaxNLocator,
    NullLocator,
    StrMethodFormatter,
)

from grpo_bench.report.contents import OWNED
from grpo_bench.report.figures import palette
from grpo_bench.report.figures.panels import (
    CurvePanel,
    Measure,
    bytes_unit,
    intervals_in_words,
    point_in_words,
    size_in_words,
)

CURVE_COLUMNS = ("x", "success", "success_low", "success_high")
PROFILE_COLUMNS = ("tau", "share", "low", "high")
BAND, PROFILE_BAND = 0.16, 0.07  # opacity; the bands of profiles overlap more
LONGEST = 24  # characters of a bar's name
STYLE: dict[Any, Any] = {
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 8.0,
    "text.parse_math": False,  # a "$" in a name is a "$"
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "grpo-bench",
}


@dataclass(frozen=True)
class Mark:
    """A part of a chart that the page uses.

    row: the place of its algorithm's colour, by which the page hides it; None: it stays.
    says: the values to show under the pointer, one for each point, or one for all of it.
    """

    artist: Artist
    row: int | None
    says: Sequence[str]


def draw_curves(axes: Axes, panel: CurvePanel, order: dict[str, int]) -> list[Mark]:
    """Learning curves with their bands, a dot for each evaluation."""
    marks = []
    for algo, rows in panel.curves.groupby("algo", sort=False):
        says = [point_in_words(row, panel) for row in rows.to_dict("records")]
        points = rows.assign(x=rows["x"] / panel.unit)
        marks += _line(axes, order[str(algo)], str(algo), points, CURVE_COLUMNS, says=says)
    axes.set(xlabel=panel.label, ylabel="success, validation", ylim=(0, 1.02))
    if panel.axis != "peak_bytes":  # a process holds hundreds of megabytes before it learns
        axes.set_xlim(left=0)
    _round_ticks(axes)
    return marks


def draw_profiles(axes: Axes, rows: pd.DataFrame, order: dict[str, int]) -> list[Mark]:
    """Performance profiles of one budget with their bands."""
    marks = []
    for algo, some in rows.groupby("algo", sort=False):
        place = order[str(algo)]
        marks += _line(axes, place, str(algo), some, PROFILE_COLUMNS, opacity=PROFILE_BAND)
    axes.set(xlabel="normalised score τ", ylabel="share of runs above τ", ylim=(0, 1.02))
    axes.set_xlim(rows["tau"].min(), 1)
    return marks


def draw_bars(axes: Axes, parts: pd.DataFrame, places: dict[str, int]) -> list[Mark]:
    """The memory of each algorithm as a bar of its components."""
    algos = list(dict.fromkeys(parts["algo"]))
    name, unit = bytes_unit(parts.groupby("algo")["bytes"].sum().max())
    begin, marks = np.zeros(len(algos)), []
    for component, place in places.items():
        sizes = parts[parts["component"] == component].set_index("algo")["bytes"]
        sizes = sizes.reindex(algos, fill_value=0.0)
        width, colour = sizes.to_numpy() / unit, palette.PARTS_LIGHT[place]
        bars = axes.barh(range(len(algos)), width, left=begin, color=colour, label=component)
        begin = begin + width
        for bar, (algo, size) in zip(bars, sizes.items(), strict=True):
            marks.append(Mark(bar, None, [f"{algo}: {component} {size_in_words(size)}"]))
    axes.set_yticks(range(len(algos)), [_cut(str(algo)) for algo in algos])
    axes.invert_yaxis()
    axes.set_xlabel(name)
    _round_ticks(axes)
    return marks


def draw_intervals(axes: Axes, rows: pd.DataFrame, measure: Measure) -> list[Mark]:
    """Estimates with their intervals, a row of the chart for each row of ``interval_rows``: ratios
    on a logarithmic axis with a line at 1, differences with a line at 0."""
    y, colour = np.arange(len(rows)), palette.LIGHT[OWNED["grpo"]]
    axes.hlines(y, rows["low"], rows["high"], color=colour, linewidth=2)
    (dots,) = axes.plot(rows["estimate"], y, "o", color=colour, markersize=5)
    axes.axvline(measure.equal, color="black", linestyle=":", linewidth=1)
    above = axes.get_xaxis_transform()
    axes.text(measure.equal, 1.0, "equal", transform=above, ha="center", va="bottom")
    axes.set_yticks(y, ["\n".join(label.rsplit(", ", 1)) for label in rows["label"]])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    if measure.is_ratio:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(_ratio_ticks(*axes.get_xlim()))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.6g}×"))
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:+.6g}" if x else "0"))
    return [Mark(dots, None, intervals_in_words(rows))]


def _line(
    axes: Axes,
    place: int,
    label: str,
    rows: pd.DataFrame,
    columns: Sequence[str],
    *,
    opacity: float = BAND,
    says: Sequence[str] = (),
) -> list[Mark]:
    """A line over the columns x, y, low and high, with a dot for each point that says something."""
    index, dash = palette.colour_and_dash(place)
    colour, style = palette.LIGHT[index], (0, dash) if dash else "-"
    x, y, low, high = rows[list(columns)].to_numpy(dtype=np.float64).T
    (line,) = axes.plot(x, y, color=colour, linestyle=style, linewidth=1.6, label=label)
    line.set(clip_on=False, marker="o" if says else "", markersize=3)
    low, high = np.clip([low, high], 0, 1)
    band = axes.fill_between(x, low, high, color=colour, alpha=opacity, linewidth=0)
    return [Mark(band, place, ()), Mark(line, place, says)]


def _round_ticks(axes: Axes) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.12g}"))


def _ratio_ticks(low: float, high: float) -> Locator:
    """Round ratios: powers of ten and some of their multiples, or equal steps in a short range."""
    if high < 1.5 * low:
        return MaxNLocator(3, steps=[1, 2, 5, 10])
    return LogLocator(subs=(1, 2, 5) if high > 4 * low else (1, 1.5, 2, 3, 5, 7))


def _cut(name: str) -> str:
    return name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"
