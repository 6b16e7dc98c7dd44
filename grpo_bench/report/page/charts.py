"""Charts of ``figures.drawing`` as part of the page: matplotlib's SVG, with colours that follow the
theme and values under the pointer."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from xml.etree import ElementTree

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpo_bench.report.figures import palette
from grpo_bench.report.figures.drawing import STYLE, Mark
from grpo_bench.report.page.elements import Markup, element, join

WIDTH, HEIGHT = 4.2, 2.9  # inches: they set the size of the text relative to the chart
SVG = "{http://www.w3.org/2000/svg}"
HREF = "{http://www.w3.org/1999/xlink}href"
COLOURS = {
    **{colour: f"var(--c{i})" for i, colour in enumerate(palette.LIGHT)},
    **{colour: f"var(--p{i})" for i, colour in enumerate(palette.PARTS_LIGHT)},
    "#000000": "currentColor",
}
GEOMETRY = ("d", "x", "y", "transform")
LEFT_OUT = ("clip-path", "style", "font-family", HREF, "id")


def chart(
    name: str,
    caption: str,
    summary: str,
    draw: Callable[[Axes], list[Mark]],
    height: float = HEIGHT,
) -> Markup:
    """A chart as inline SVG, with its caption.

    Args:
        name: no other chart of the page has it.
        summary: what the chart shows, for a reader who cannot see it.
        draw: fills the axes.
        height: in inches.
    """
    with matplotlib.rc_context(STYLE | {"svg.hashsalt": name}):  # ids differ between charts
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        marks = {f"mark-{i}": mark for i, mark in enumerate(draw(figure.subplots()))}
        for key, mark in marks.items():
            mark.artist.set_gid(key)
        file = io.BytesIO()
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    root = ElementTree.fromstring(file.getvalue())
    drawing = join(*(_node(child, marks) for child in root.findall(f"{SVG}g")))
    box = root.get("viewBox")
    svg = element("svg", drawing, viewBox=box, role="img", aria_label=summary, class_="chart")
    return element("figure", element("figcaption", caption), svg, class_="panel")


def line_key(place: int) -> Markup:
    """A short piece of an algorithm's line, for a legend."""
    index, dash = palette.colour_and_dash(place)
    pattern = " ".join(map(str, dash)) or None
    stroke = element("path", d="M1 6H27", stroke=f"var(--c{index})", stroke_dasharray=pattern)
    return element("svg", stroke, class_="key", viewBox="0 0 28 12", width="28", height="12")


def bar_key(place: int) -> Markup:
    """A patch of a component's colour, for a legend."""
    box = element("rect", width=12, height=12, fill=f"var(--p{place})")
    return element("svg", box, class_="key", viewBox="0 0 12 12", width="12", height="12")


def _node(node: ElementTree.Element, marks: dict[str, Mark]) -> Markup:
    """An element of matplotlib's SVG. The page allows no ``style``, so that each property becomes
    an attribute; of the ids only those stay that ``<use>`` refers to."""
    mark = marks.get(node.get("id", ""))
    children = [_node(child, marks) for child in node]
    if mark is not None:
        children = _with_titles(node, mark, marks)
    attributes = _attributes(node)
    if mark is not None and mark.row is not None:
        attributes["class"] = f"s{mark.row}"
    tag = node.tag.removeprefix(SVG)
    if tag == "g" and not attributes:
        return join(*children)
    text = (node.text or "").strip() or None
    return element(tag, text, *children, **attributes)


def _with_titles(node: ElementTree.Element, mark: Mark, marks: dict[str, Mark]) -> list[Markup]:
    """The children of a mark: each of its points says something, or all of it does."""
    points = list(node.iter(f"{SVG}use"))
    if len(points) == len(mark.says):
        for point, says in zip(points, mark.says, strict=True):
            ElementTree.SubElement(point, f"{SVG}title").text = says
        titles = []
    else:
        titles = [element("title", says) for says in mark.says]
    return titles + [_node(child, marks) for child in node]


def _attributes(node: ElementTree.Element) -> dict[str, str | float | bool | None]:
    pairs = (pair.split(": ", 1) for pair in node.get("style", "").split("; ") if pair)
    found = dict(pairs) | dict(node.items())
    kept = {key: value for key, value in found.items() if key not in LEFT_OUT}
    for key in GEOMETRY:
        if key in kept:  # two decimals are a hundredth of a point
            kept[key] = " ".join(re.sub(r"(\.\d\d)\d+", r"\1", kept[key]).split())
    if kept.get("transform", "").startswith("rotate(-0 "):
        del kept["transform"]
    if HREF in found:
        kept["href"] = found[HREF]
    if node.tag == f"{SVG}path" and "id" in found:
        kept["id"] = found["id"]
    return {key: COLOURS.get(value, value) for key, value in kept.items()}
