"""What is measured and not made: records, benchmarks, and the drawings of figures.

No source gives them again to the byte, so their digests are kept: a digit changed by hand shows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Set as AbstractSet
from fnmatch import fnmatchcase
from pathlib import Path

from tools.reference.committed import RESULTS

SUMS = RESULTS / "sources.sha256"  # as sha256sum writes them: sha256sum -c reads it
# What git leaves out, and the page.
LEFT_OUT = (
    "checkpoint",
    "warmup",
    "attempt-*.json",
    "multirun.yaml",
    ".*",
    "report.html",
    SUMS.name,
)


def sums(root: Path, made: AbstractSet[Path]) -> dict[Path, str]:
    """The sha256 of each file below results/reference that is not among those ``made``, by its path
    there."""
    files = (path for path in sorted((root / RESULTS).rglob("*")) if path.is_file())
    return {
        path.relative_to(root / RESULTS): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if path.relative_to(root) not in made and not _is_left_out(path.relative_to(root))
    }


def written(root: Path) -> dict[Path, str]:
    """The digests that are committed."""
    if not (root / SUMS).exists():
        return {}
    found = (line.split(maxsplit=1) for line in (root / SUMS).read_text("utf-8").splitlines())
    return {Path(words[1]): words[0] for words in found if len(words) == 2}


def lines(digests: dict[Path, str]) -> str:
    """The file of digests."""
    return "".join(f"{digest}  {path.as_posix()}\n" for path, digest in digests.items())


def changed(root: Path, made: AbstractSet[Path]) -> list[Path]:
    """The files whose digests are not the committed ones, or that are gone or new."""
    now, then = sums(root, made), written(root)
    return [RESULTS / p for p in sorted(now.keys() | then.keys()) if now.get(p) != then.get(p)]


def _is_left_out(path: Path) -> bool:
    return any(fnmatchcase(part, pattern) for part in path.parts for pattern in LEFT_OUT)
