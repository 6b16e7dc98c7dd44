"""The charts as files: PNG and SVG.

Each file contains a digest of the numbers in it. So a stale figure is found without drawing it
again: the bytes of a file also depend on the version of matplotlib, the digest does not.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpo_bench.report.contents import Report
from grpo_bench.report.figures.drawing import (
    STYLE,
    draw_bars,
    draw_curves,
    draw_intervals,
    draw_profiles,
)
from grpo_bench.report.figures.panels import (
    MEASURES,
    component_places,
    held_by_the_algorithm,
    memory_panels,
    profile_panels,
)
from grpo_bench.report.figures.plans import Plan, figure_plans

# The metadata of each format, without the time and the version of matplotlib.
NO_ORIGIN = {"png": {"Software": None}, "svg": {"Creator": None, "Date": None}}
DPI = 150
PANEL = (4.2, 2.9)  # inches
DIGEST = "data sha256 "  # precedes the digest in a file
_DIGEST = re.compile(rf"{DIGEST}([0-9a-f]{{64}})".encode())


def figure_files(report: Report) -> dict[str, bytes]:
    """All figures by file name, as ``.png`` and ``.svg``: for each section
    ``<section>-curves-<env>``, ``<section>-memory``, ``<section>-profiles`` and
    ``<section>-summary``, and ``memory`` for the report. A figure without numbers is left out."""
    files: dict[str, bytes] = {}
    for plan in figure_plans(report):
        files |= draw_files(plan)
    return files


def expected_digests(report: Report) -> dict[str, str]:
    """The digest of each of the ``figure_files``, without drawing them."""
    return {f"{p.name}.{form}": p.digest for p in figure_plans(report) for form in NO_ORIGIN}


def figure_digest(data: bytes) -> str | None:
    """The digest in a PNG or an SVG; None if there is none."""
    found = _DIGEST.search(data)
    return found[1].decode() if found else None


def draw_files(plan: Plan) -> dict[str, bytes]:
    """A figure as files, by name."""
    layouts: dict[str, Callable[[Plan], Figure]] = {
        "curves": _curves,
        "memory": _memory,
        "profiles": _profiles,
        "summary": _summary,
    }
    files = {}
    with matplotlib.rc_context(STYLE):
        figure = layouts[plan.kind](plan)
        for form, metadata in NO_ORIGIN.items():
            file = io.BytesIO()
            about = metadata | {"Description": DIGEST + plan.digest}
            figure.savefig(file, format=form, dpi=DPI, metadata=about)
            files[f"{plan.name}.{form}"] = file.getvalue()
    return files


def _curves(plan: Plan) -> Figure:
    """A row for each budget of the environment, a column for each axis."""
    budgets = list(dict.fromkeys(panel.budget for panel in plan.panels))
    axes_names = list(dict.fromkeys(panel.axis for panel in plan.panels))
    figure, grid = _subplots(len(budgets), len(axes_names))
    for panel in plan.panels:
        axes = grid[budgets.index(panel.budget), axes_names.index(panel.axis)]
        draw_curves(axes, panel, plan.order)
        axes.set_title(panel.title)
    _legend(figure, grid[0, 0])
    return figure


def _profiles(plan: Plan) -> Figure:
    """A column for each budget."""
    panels = profile_panels(plan.data)
    figure, grid = _subplots(1, len(panels))
    for (title, rows), axes in zip(panels, grid[0], strict=True):
        draw_profiles(axes, rows, plan.order)
        axes.set_title(title)
    _legend(figure, grid[0, 0])
    return figure


def _memory(plan: Plan) -> Figure:
    """A row for each environment: the whole process, and the algorithm's part of it."""
    places, panels = component_places(plan.data), memory_panels(plan.data)
    bars = max(rows["algo"].nunique() for _, rows in panels)
    figure, grid = _subplots(len(panels), 2, height=1.0 + 0.24 * bars)
    for (title, rows), (whole, own) in zip(panels, grid, strict=True):
        draw_bars(whole, rows, places)
        whole.set_title(f"{title}: the whole process")
        draw_bars(own, held_by_the_algorithm(rows), places)
        own.set_title("of that, networks, optimiser, rollout")
    _legend(figure, grid[0, 0])
    return figure


def _summary(plan: Plan) -> Figure:
    """A column for each measure, a row for each comparison. As wide as a README on GitHub."""
    labels = list(dict.fromkeys(plan.data["label"]))
    measures = [m for m in MEASURES if m.title in set(plan.data["measure"])]
    size = (1.35 + 2.1 * len(measures), 1.3 + 0.36 * len(labels))
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(1, len(measures), squeeze=False)[0]
    for measure, axes in zip(measures, grid, strict=True):
        rows = plan.data[plan.data["measure"] == measure.title].set_index("label")
        draw_intervals(axes, rows.reindex(labels).reset_index(), measure)
        title = measure.title if measure.is_ratio else f"{measure.title}: {measure.comparison}"
        axes.set_title(f"{title}\n{measure.better} is better", pad=18)
        if axes is not grid[0]:
            axes.set_yticklabels([])
    figure.suptitle("GRPO ÷ PPO, with 95 % intervals", fontsize="x-large")
    return figure


def _subplots(rows: int, columns: int, *, height: float = PANEL[1]) -> tuple[Figure, np.ndarray]:
    """A figure and its axes, (rows, columns), each as wide as a panel."""
    figure = Figure(figsize=(PANEL[0] * columns, height * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper")
