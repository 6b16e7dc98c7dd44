"""``python -m grpo_bench.audit results=FOLDER``: is every record complete, readable, consistent?

Reads all records of a folder and changes none. It prints a line for each problem, and ends with
exit status 1 if there is one.
"""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

from omegaconf import DictConfig
from rich.progress import track

from grpo_bench.records import RecordError, read_manifest
from grpo_bench.records.audit import problems
from grpo_bench.records.folders import run_names
from grpo_bench.runs.door import program
from grpo_bench.runs.stopping import stopping


@program("audit")
def main(config: DictConfig) -> None:
    """Print what is wrong with the records, and how many there are of each status."""
    results = Path(config.results)
    folders = [results / name for name in run_names(results)]
    if not folders:
        raise SystemExit(f"results={results}: no records there")
    lines, statuses, damaged = [], Counter[str](), 0
    for folder in track(folders, "audit", transient=True, disable=not sys.stdout.isatty()):
        found = list(problems(folder, results))
        lines += found
        damaged += bool(found)
        with suppress(RecordError):
            statuses[read_manifest(folder).status] += 1
    print(*lines, sep="\n", end="\n" if lines else "")
    counts = ", ".join(f"{n} {status}" for status, n in sorted(statuses.items()))
    print(f"{len(folders)} runs ({counts}): {damaged} with problems")
    if damaged:
        raise SystemExit(1)


if __name__ == "__main__":
    stopping(main)
