"""Charts as inline SVG. Colours are classes (``c0`` ...), so that dark and light can differ; what a
point or a bar says is its ``<title>``, which needs no script."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from grpo_bench.report.figures.palette import colour_and_dash
from grpo_bench.report.figures.plots import Measure, log_ticks, ticks
from grpo_bench.report.page.elements import Markup, element, join, short

WIDTH, HEIGHT = 400, 260  # of a chart with lines, in the units of its coordinates
LEFT, RIGHT, TOP, BOTTOM = 46, 14, 8, 42  # what lies around its axes
NAMED = 126  # of a chart with bars or intervals, left of its axis: their names
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Line:
    """A line with its band.

    index: of its colour, dashes and key.
    x, y, low, high: (n,), without gaps.
    told: what each point says, n texts; none: points are not drawn.
    """

    label: str
    index: int
    x: Array
    y: Array
    low: Array
    high: Array
    told: Sequence[str] = ()


def line_chart(
    lines: Sequence[Line], x_range: tuple[float, float], unit: float, x_label: str, y_label: str
) -> Markup:
    """Lines over one axis of x, in ``unit``; y goes from 0 to 1."""
    first, last = x_range
    width = last - first or 1.0

    def across(x: float) -> float:
        return LEFT + (x - first) / width * (WIDTH - LEFT - RIGHT)

    def up(y: float) -> float:
        return TOP + (1 - min(max(y, 0.0), 1.0)) * (HEIGHT - TOP - BOTTOM)

    below = HEIGHT - BOTTOM
    parts = []
    for y in ticks(0, 1):
        parts.append(_rule(LEFT, up(y), WIDTH - RIGHT, up(y)))
        parts.append(_text(LEFT - 6, up(y) + 4, f"{y:.12g}", "end"))
    for x in ticks(first / unit, last / unit):
        place = across(x * unit)
        parts.append(_rule(place, below, place, below + 4))
        parts.append(_text(place, below + 16, f"{x:,.12g}", "middle"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, x_label, "middle"))
    middle = (TOP + below) / 2
    turned = f"rotate(-90 11 {short(middle)})"
    parts.append(element("text", y_label, x=11, y=middle, text_anchor="middle", transform=turned))
    parts += [_line(line, across, up) for line in lines]
    name = f"{y_label} over {x_label}: {', '.join(line.label for line in lines)}"
    return _svg(WIDTH, HEIGHT, name, *parts, class_="lines")


def key(index: int) -> Markup:
    """A short piece of the line ``index``, for a legend."""
    colour, dash = colour_and_dash(index)
    stroke = element("path", d="M1 6H27", class_="line", stroke_dasharray=_dashes(dash))
    kind = f"key c{colour}"
    return element("svg", stroke, class_=kind, viewBox="0 0 28 12", width="28", height="12")


def patch(index: int) -> Markup:
    """A patch of the colour of the bars ``index``, for a legend."""
    box = element("rect", width=12, height=12, class_="bar")
    return element("svg", box, class_=f"key p{index}", viewBox="0 0 12 12", width="12", height="12")


def bars(
    rows: Sequence[tuple[str, Sequence[tuple[int, float, str]]]], unit: float, label: str
) -> Markup:
    """Stacked bars, one below the other.

    Args:
        rows: of each bar its label, and its parts: colour, size, and what it says.
        unit: in which the axis counts sizes.
    """
    margin, step = NAMED, 24
    height = TOP + step * len(rows) + BOTTOM
    largest = max(sum(size for _, size, _ in parts) for _, parts in rows)

    def across(size: float) -> float:
        return margin + size / largest * (WIDTH - margin - RIGHT)

    drawn = []
    below = TOP + step * len(rows)
    for x in ticks(0, largest / unit):
        place = across(x * unit)
        drawn.append(_rule(place, TOP, place, below + 4))
        drawn.append(_text(place, below + 16, f"{x:,.12g}", "middle"))
    drawn.append(_text((margin + WIDTH - RIGHT) / 2, height - 8, label, "middle"))
    for row, (name, parts) in enumerate(rows):
        top = TOP + step * row + 3
        drawn.append(_text(margin - 6, top + 13, _cut(name, 19), "end"))
        begin = 0.0
        for colour, size, told in parts:
            left, right = across(begin), across(begin + size)
            title = element("title", told)
            box = {"x": left, "y": top, "width": max(right - left, 0.4), "height": step - 6}
            shape = element("rect", class_="bar", **box)
            drawn.append(element("g", title, shape, class_=f"p{colour}"))
            begin += size
    return _svg(WIDTH, height, label, *drawn)


def forest(rows: Sequence[tuple[str, float, float, float, str]], measure: Measure) -> Markup:
    """Estimates with their intervals, one below the other: ratios on a logarithmic axis around 1,
    differences on a straight one around 0.

    Args:
        rows: of each its label, estimate, bounds (NaN: none), and what it says. What comes after
            the last comma of a label stands in a line of its own.
    """
    numbers = [x for row in rows for x in row[1:4] if not math.isnan(x)] + [measure.none]
    place_of: Callable[[float], float] = math.log if measure.is_ratio else float
    low, high = min(map(place_of, numbers)), max(map(place_of, numbers))
    low, high = low - 0.05 * (high - low or 1), high + 0.05 * (high - low or 1)
    step = 36
    height = TOP + step * len(rows) + 24

    def across(x: float) -> float:
        return NAMED + (place_of(x) - low) / (high - low) * (WIDTH - NAMED - RIGHT)

    below = TOP + step * len(rows)
    back = (math.exp(low), math.exp(high)) if measure.is_ratio else (low, high)
    drawn = []
    for x in log_ticks(*back) if measure.is_ratio else ticks(*back):
        drawn.append(_rule(across(x), TOP, across(x), below + 4))
        drawn.append(_text(across(x), below + 16, f"{x:,.12g}", "middle"))
    drawn.append(element("path", d=f"M{short(across(measure.none))} {TOP}V{below}", class_="unity"))
    for row, (label, estimate, least, most, told) in enumerate(rows):
        middle = TOP + step * row + step / 2
        name, comma, critic = label.rpartition(", ")
        lines = [name, critic] if comma else [label]
        for i, words in enumerate(lines):
            below_middle = 4 + 14 * (i - (len(lines) - 1) / 2)
            kind = "faint" if i else None
            drawn.append(_text(NAMED - 8, middle + below_middle, _cut(words, 19), "end", kind))
        parts = [element("title", told)]
        if not math.isnan(least):
            path = f"M{short(across(least))} {short(middle)}H{short(across(most))}"
            parts.append(element("path", d=path, class_="line"))
        parts.append(element("circle", cx=across(estimate), cy=middle, r=4, class_="dot"))
        drawn.append(element("g", *parts, class_="c0"))
    return _svg(WIDTH, height, measure.title, *drawn)


def _line(line: Line, across: Callable[[float], float], up: Callable[[float], float]) -> Markup:
    colour, dash = colour_and_dash(line.index)
    x = [short(across(value)) for value in line.x]
    y, low, high = ([short(up(v)) for v in values] for values in (line.y, line.low, line.high))
    there = [i for i, value in enumerate(line.low) if not math.isnan(value)]
    outline = [(x[i], high[i]) for i in there] + [(x[i], low[i]) for i in reversed(there)]
    stroke = _path(list(zip(x, y, strict=True)))
    dots = [
        element("circle", element("title", told), cx=x[i], cy=y[i], r=2.4, class_="dot")
        for i, told in enumerate(line.told)
    ]
    return element(
        "g",
        element("path", d=_path(outline) + "Z", class_="band") if there else None,
        element("path", d=stroke, class_="line", stroke_dasharray=_dashes(dash)),
        *dots,
        class_=f"s{line.index} c{colour}",
    )


def _path(points: Sequence[tuple[str, str]]) -> str:
    return "M" + "L".join(f"{x} {y}" for x, y in points)


def _dashes(dash: tuple[int, ...]) -> str | None:
    return " ".join(map(str, dash)) or None


def _rule(x1: float, y1: float, x2: float, y2: float) -> Markup:
    path = f"M{short(x1)} {short(y1)}L{short(x2)} {short(y2)}"
    return element("path", d=path, class_="rule")


def _text(x: float, y: float, text: str, anchor: str, class_: str | None = None) -> Markup:
    return element("text", text, x=x, y=y, text_anchor=anchor, class_=class_)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _svg(width: float, height: float, name: str, *parts: Markup, class_: str = "") -> Markup:
    return element(
        "svg",
        join(*parts),
        viewBox=f"0 0 {short(width)} {short(height)}",
        role="img",
        aria_label=name,
        class_=f"chart {class_}".strip(),
    )
