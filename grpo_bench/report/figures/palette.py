"""The colours of all charts, on the page and in files.

The seven colours of algorithms stay apart in normal sight and without red, green or blue (simulated
after Machado et al. 2009: 24.9 or more apart in CIE Lab), each with a contrast of 3 or more to the
background. GRPO and PPO own the first three. From the eighth algorithm on, the other four return
with dashes.
"""

from __future__ import annotations

from grpo_bench.report.contents import OWNED

LIGHT = ("#1450c8", "#e2610a", "#139c7a", "#b06cc9", "#7d2b0b", "#3a3a46", "#5e0f75")  # on white
DARK = ("#5b8cff", "#ee6a35", "#34e0a1", "#c979c4", "#ffd94a", "#e6f2ff", "#656c58")
DARK_GROUND = "#15181d"  # the background of DARK
DASHES = ((5, 2), (2, 2), (7, 2, 2, 2), (9, 3), (1, 1))  # lengths of dashes and gaps, in points
# The components of memory, in colours that no algorithm owns: first the six that an algorithm holds
# (``contents.OWN``), at least 35 apart as above; then greys for the rest of the process.
PARTS_LIGHT = (
    *("#9e91e9", "#832010", "#2614b8", "#e594ab", "#723868", "#3ec751"),
    *("#a3a7b0", "#c9ccd3", "#7b808c", "#dfe1e6", "#8f98a8", "#b9b2a6", "#d8d3c8"),
)
PARTS_DARK = (
    *("#4fdfeb", "#e9bf50", "#6b5b09", "#a31c99", "#98be8d", "#6740ed"),
    *("#7f8591", "#565b66", "#a2a8b4", "#40444d", "#6a7486", "#8a8172", "#5f594e"),
)


def colour_and_dash(index: int) -> tuple[int, tuple[int, ...]]:
    """The style of line ``index``: its place in ``LIGHT`` and ``DARK``, and its dashes."""
    if index < len(LIGHT):
        return index, ()
    free = len(LIGHT) - len(OWNED)
    turn, place = divmod(index - len(LIGHT), free)
    return len(OWNED) + place, DASHES[turn % len(DASHES)]
