"""What is committed: every table, figure and page that is made from results/reference.

``make reference`` (``python -m tools.reference``) makes all of it again, and ``make
reference-check`` (``--check``) says what would change. A step gives files by their path in the
checkout; it may read what the steps before it have written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from itertools import zip_longest
from pathlib import Path

from grpo_bench.records.files import replace
from tools.reference import (
    claims,
    figures,
    language,
    pages,
    records,
    sources,
    speed,
    training,
    tuning,
)
from tools.reference.figures import publish_all
from tools.reference.places import RESULTS

__all__ = ["check_all", "first_difference", "is_checkout", "left_over", "make_all", "publish_all"]

Step = Callable[[Path], dict[Path, str]]
STEPS: tuple[Step, ...] = (
    records.files,
    tuning.files,
    speed.files,
    language.files,
    training.files,
    claims.files,
    pages.files,
)
# Where nothing lies but what the steps give.
MADE = (
    "results/reference/*/tables/*",
    "results/reference/training/*",
    "results/reference/figures/*",
    "conf/tuned/*/*.yaml",
)


def is_checkout(root: Path) -> bool:
    """Whether a folder holds what the steps need."""
    return (root / RESULTS).is_dir() and (root / claims.CLAIMS).is_file()


def make_all(root: Path) -> Iterator[Path]:
    """Write what has changed; the path of each file that was written.

    Raises:
        ValueError: a source is not as it should be.
    """
    made: set[Path] = set()
    for step in STEPS:
        for path, text in step(root).items():
            made.add(path)
            if _read(root / path) != text:
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                replace(root / path, text.encode())
                yield path
    yield from figures.draw(root)
    made |= {*left_over(root, made | figures.paths(root))}
    if sources.changed(root, made):
        replace(root / sources.SUMS, sources.text(sources.sums(root, made)).encode())
        yield sources.SUMS


def check_all(root: Path) -> Iterator[str]:
    """``path:line`` of each file that is not what its sources give, at the first such line; of a
    figure, a file that is measured, or one that no source gives any more, its path.

    Raises:
        ValueError: a source is not as it should be.
    """
    given: set[Path] = set()
    for step in STEPS:
        for path, text in step(root).items():
            given.add(path)
            old = _read(root / path)
            if old != text:
                yield f"{path}:{first_difference(old, text)}"
    stale = [*figures.stale(root)]
    old_ones = left_over(root, given | figures.paths(root))
    measured = sources.changed(root, given | {*old_ones})
    yield from map(str, [*stale, *(path for path in measured if path not in stale), *old_ones])


def left_over(root: Path, given: AbstractSet[Path]) -> list[Path]:
    """The files among those that are made which no source gives any more: a table of records that
    are gone, or what was tuned and has no trial here."""
    found = {path.relative_to(root) for pattern in MADE for path in root.glob(pattern)}
    return sorted(path for path in found - given if not path.name.startswith("."))


def first_difference(old: str, new: str) -> int:
    """The first line, counted from 1, in which two texts differ."""
    lines = zip_longest(old.splitlines(), new.splitlines())
    return next((i for i, (a, b) in enumerate(lines, 1) if a != b), 1)


def _read(path: Path) -> str:
    """The text of a file, line ends and all; empty if there is none."""
    return path.read_bytes().decode(errors="replace") if path.exists() else ""
