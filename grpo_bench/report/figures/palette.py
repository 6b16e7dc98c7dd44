"""The colours of charts, the same on the page and in figures.

Six that stay apart in normal sight and without red, green or blue (Machado et al. 2009, simulated:
at least 25 apart in CIE Lab), each with a contrast of 3 or more to the ground. The seventh row has
the second colour again, dashed: nothing looks like the first one.
"""

from __future__ import annotations

LIGHT = ("#1450c8", "#e2610a", "#139c7a", "#b06cc9", "#7d2b0b", "#3a3a46")  # on white
DARK = ("#5b8cff", "#ee6a35", "#34e0a1", "#c979c4", "#ffd94a", "#e6f2ff")  # on DARK_GROUND
# Of what a process holds beside the parts of an algorithm: no colours that mean something.
REST_LIGHT = ("#a3a7b0", "#c9ccd3", "#7b808c", "#dfe1e6", "#8f98a8", "#b9b2a6", "#d8d3c8")
REST_DARK = ("#7f8591", "#565b66", "#a2a8b4", "#40444d", "#6a7486", "#8a8172", "#5f594e")
DARK_GROUND = "#15181d"
DASHES: tuple[tuple[int, ...], ...] = ((), (5, 2), (2, 2), (7, 2, 2, 2), (9, 3))


def part_colours(*, dark: bool) -> tuple[str, ...]:
    """The colours of the components of memory, see ``plots.component_places``."""
    return DARK + REST_DARK if dark else LIGHT + REST_LIGHT


def colour_and_dash(index: int) -> tuple[int, tuple[int, ...]]:
    """Of the row ``index``: its place in ``LIGHT`` and ``DARK``, and the lengths of its dashes and
    gaps in points."""
    turn = index // len(LIGHT)
    return (index + turn) % len(LIGHT), DASHES[turn % len(DASHES)]
