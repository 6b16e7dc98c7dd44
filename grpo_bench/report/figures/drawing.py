"""Figures by matplotlib. Nothing here knows the time or a global state: the same numbers and the
same matplotlib give the same bytes."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpo_bench.report.figures.palette import LIGHT, colour_and_dash, part_colours
from grpo_bench.report.figures.plans import Plan
from grpo_bench.report.figures.plots import (
    MEASURES,
    bytes_unit,
    component_places,
    log_ticks,
    memory_panels,
    of_the_algorithm,
    profile_panels,
)

DPI = 150
BAND, PROFILE_BAND = 0.16, 0.07  # opacity; profiles lie one upon the other where none differ
PANEL = (4.2, 2.9)  # inches
STYLE: dict[Any, Any] = {
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 8.0,
    "text.parse_math": False,  # names are names
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "grpo-bench",
}


# What a file says of who made it and when, by format: nothing.
NAMELESS = {"png": {"Software": None}, "svg": {"Creator": None, "Date": None}}


def draw(plan: Plan, about: str) -> dict[str, bytes]:
    """A figure as files, by format, each of which says ``about`` of itself."""
    drawings: dict[str, Callable[[Plan], Figure]] = {
        "curves": _curves,
        "memory": _memory,
        "profiles": _profiles,
        "summary": _summary,
    }
    files = {}
    with matplotlib.rc_context(STYLE):
        figure = drawings[plan.kind](plan)
        for form, nameless in NAMELESS.items():
            file = io.BytesIO()
            figure.savefig(file, format=form, dpi=DPI, metadata=nameless | {"Description": about})
            files[form] = file.getvalue()
    return files


def _curves(plan: Plan) -> Figure:
    """A row for each budget of the environment, a column for each axis."""
    budgets = list(dict.fromkeys(panel.budget for panel in plan.panels))
    axes_names = list(dict.fromkeys(panel.axis for panel in plan.panels))
    figure, grid = _grid(len(budgets), len(axes_names))
    for panel in plan.panels:
        axes = grid[budgets.index(panel.budget), axes_names.index(panel.axis)]
        for algo, rows in panel.curves.groupby("algo", sort=False):
            x = rows["x"].to_numpy() / panel.unit
            columns = ["success", "success_low", "success_high"]
            _line(axes, plan.order[str(algo)], str(algo), x, *rows[columns].to_numpy().T)
        axes.set(title=panel.title, xlabel=panel.label, ylabel="success, validation")
        axes.set(ylim=(0, 1.02), xlim=tuple(x / panel.unit for x in panel.range))
    _legend(figure, grid[0, 0])
    return figure


def _profiles(plan: Plan) -> Figure:
    """A column for each budget."""
    shown = profile_panels(plan.data)
    figure, grid = _grid(1, len(shown))
    for (title, data), axes in zip(shown, grid[0], strict=True):
        for algo, rows in data.groupby("algo", sort=False):
            columns = ["tau", "share", "low", "high"]
            numbers = rows[columns].to_numpy().T
            _line(axes, plan.order[str(algo)], str(algo), *numbers, opacity=PROFILE_BAND)
        axes.set(xlabel="normalised score τ", ylabel="share of runs above τ", ylim=(0, 1.02))
        axes.set(title=title, xlim=(data["tau"].min(), 1))
    _legend(figure, grid[0, 0])
    return figure


def _memory(plan: Plan) -> Figure:
    """A row for each environment: the whole process, and what the algorithm holds of it."""
    places, colours = component_places(plan.data), part_colours(dark=False)
    shown = memory_panels(plan.data)
    figure, grid = _grid(len(shown), 2, bars=max(rows["algo"].nunique() for _, rows in shown))
    for (title, rows), pair in zip(shown, grid, strict=True):
        own = of_the_algorithm(rows)
        views = ((f"{title}: the whole process", rows), ("networks, optimiser, rollout", own))
        for (words, parts), axes in zip(views, pair, strict=True):
            algos = list(dict.fromkeys(rows["algo"]))
            name, unit = bytes_unit(parts.groupby("algo")["bytes"].sum().max())
            begin = np.zeros(len(algos))
            for component, place in places.items():
                sizes = parts[parts["component"] == component].set_index("algo")["bytes"]
                width = sizes.reindex(algos, fill_value=0.0).to_numpy() / unit
                edge = {"edgecolor": "white", "linewidth": 0.5}
                colour = colours[place]
                axes.barh(algos, width, left=begin, color=colour, label=component, **edge)
                begin = begin + width
            axes.invert_yaxis()
            axes.set(title=words, xlabel=name)
    _legend(figure, grid[0, 0])
    return figure


def _summary(plan: Plan) -> Figure:
    """A column for each measure, a row for each comparison."""
    labels = list(dict.fromkeys(plan.data["label"]))
    measures = [m for m in MEASURES if m.title in set(plan.data["measure"])]
    figure, grid = _grid(1, len(measures), bars=1.7 * len(labels), width=2.15)
    named = ["\n".join(label.rsplit(", ", 1)) for label in labels]
    for measure, axes in zip(measures, grid[0], strict=True):
        rows = plan.data[plan.data["measure"] == measure.title]
        y = [labels.index(label) for label in rows["label"]]
        axes.hlines(y, rows["low"], rows["high"], color=LIGHT[0])
        axes.plot(rows["estimate"], y, "o", color=LIGHT[0], markersize=5)
        axes.axvline(measure.none, color="black", linestyle=":", linewidth=1)
        axes.set_yticks(range(len(labels)), named if axes is grid[0, 0] else [])
        axes.set_ylim(len(labels) - 0.5, -0.5)
        if measure.is_ratio:
            axes.set_xscale("log")
            places = log_ticks(*axes.get_xlim())
            axes.set_xticks(places, [f"{x:,.12g}" for x in places])
            axes.set_xticks([], minor=True)
        title = measure.title.replace(", ", ",\n") if "," in measure.title else measure.title
        axes.set_title(f"{title}\n{measure.better} is better", fontsize="medium")
    return figure


def _line(
    axes: Axes,
    index: int,
    label: str,
    x: np.ndarray,
    y: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    *,
    opacity: float = BAND,
) -> None:
    colour, dash = colour_and_dash(index)
    style = (0, dash) if dash else "-"
    axes.plot(x, y, color=LIGHT[colour], linestyle=style, linewidth=1.6, label=label)
    axes.fill_between(x, low, high, color=LIGHT[colour], alpha=opacity, linewidth=0)


def _grid(
    rows: int, columns: int, *, bars: float | None = None, width: float = PANEL[0]
) -> tuple[Figure, np.ndarray]:
    """A figure and its axes, (rows, columns), each as high as a panel or as so many bars need."""
    height = PANEL[1] if bars is None else 1.0 + 0.24 * bars
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper")
