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

from grpo_bench.records.files import write_atomically
from tools.reference import digests, figures
from tools.reference.claim_ledger import CLAIMS, claim_pages
from tools.reference.committed import RESULTS, Committed
from tools.reference.figures import publish_all
from tools.reference.language_tables import language_tables
from tools.reference.page_blocks import page_blocks
from tools.reference.record_tables import record_tables
from tools.reference.speed_targets import speed_targets
from tools.reference.training_tables import training_tables
from tools.reference.tuning_tables import tuning_tables

__all__ = ["check_all", "first_difference", "is_checkout", "left_over", "make_all", "publish_all"]

Step = Callable[[Committed], dict[Path, str]]
STEPS: tuple[Step, ...] = (
    record_tables,
    tuning_tables,
    speed_targets,
    language_tables,
    training_tables,
    claim_pages,
    page_blocks,
)
# Folders that hold nothing but what the steps give.
MADE = (
    "results/reference/*/tables/*",
    "results/reference/training/*",
    "results/reference/figures/*",
    "conf/tuned/*/*.yaml",
)


def is_checkout(root: Path) -> bool:
    """Whether a folder holds what the steps need."""
    return (root / RESULTS).is_dir() and (root / CLAIMS).is_file()


def make_all(root: Path) -> Iterator[Path]:
    """Write what has changed; the path of each file that was written.

    Raises:
        ValueError: a source is wrong.
    """
    made: set[Path] = set()
    committed = Committed(root)
    for step in STEPS:
        for path, text in step(committed).items():
            made.add(path)
            if _read(root / path) != text:
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                write_atomically(root / path, text.encode())
                yield path
    report = figures.main_report(committed)
    yield from figures.draw(root, report)
    made |= {*left_over(root, made | figures.digests(report).keys())}
    if digests.changed(root, made):
        write_atomically(root / digests.SUMS, digests.lines(digests.sums(root, made)).encode())
        yield digests.SUMS


def check_all(root: Path) -> Iterator[str]:
    """Each file that differs from what its sources give: ``path:line`` of the first different line;
    of a figure, a measured file, or a file that no source gives any more, the path alone.

    Raises:
        ValueError: a source is wrong.
    """
    given: set[Path] = set()
    committed = Committed(root)
    for step in STEPS:
        for path, text in step(committed).items():
            given.add(path)
            old = _read(root / path)
            if old != text:
                yield f"{path}:{first_difference(old, text)}"
    expected = figures.digests(figures.main_report(committed))
    stale = figures.stale(root, expected)
    old_ones = left_over(root, given | expected.keys())
    measured = digests.changed(root, given | {*old_ones})
    yield from map(str, [*stale, *(path for path in measured if path not in stale), *old_ones])


def left_over(root: Path, given: AbstractSet[Path]) -> list[Path]:
    """The files in folders of made files that no source gives any more: a table of records that are
    gone, or tuned settings without a trial."""
    found = {path.relative_to(root) for pattern in MADE for path in root.glob(pattern)}
    return sorted(path for path in found - given if not path.name.startswith("."))


def first_difference(old: str, new: str) -> int:
    """The first line, counted from 1, in which two texts differ."""
    lines = zip_longest(old.splitlines(), new.splitlines())
    return next((i for i, (a, b) in enumerate(lines, 1) if a != b), 1)


def _read(path: Path) -> str:
    """The text of a file, line ends and all; empty if there is none."""
    return path.read_bytes().decode(errors="replace") if path.exists() else ""
