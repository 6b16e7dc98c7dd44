"""``python -m grpo_bench.oracle --out FOLDER``: which options push in the right direction.

The tasks are so small that every group of rollouts can be listed. The oracle compares the expected
step of each option, computed by the functions that train, with the exact gradient of the objective,
and gives its variance. Nothing is sampled, so the same code gives the same numbers. It takes half a
minute.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from grpo_bench.enumeration.tables import TABLES, everything
from grpo_bench.records.files import write_atomically
from grpo_bench.report import csv, markdown
from grpo_bench.runs.stopping import stopping


def main(arguments: list[str] | None = None) -> None:
    """Make, write and print the tables: ``NAME.md`` and ``NAME.csv`` of each, and
    ``everything.csv`` with all combinations of the options."""
    command = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command.add_argument(
        "--out", type=Path, default=Path("results/oracle"), help="folder (default: %(default)s)"
    )
    out: Path = command.parse_args(arguments).out
    torch.set_num_threads(1)  # small tensors: more threads only stall them
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SystemExit(f"--out {out}: expected a folder ({error})") from None
    for name, make in TABLES.items():
        _progress(name)
        table = make()
        text = markdown(table.shown())
        write_atomically(out / f"{name}.md", text.encode())
        write_atomically(out / f"{name}.csv", csv(table.numbers()).encode())
        print(text)
    _progress("everything")
    write_atomically(out / "everything.csv", csv(everything()).encode())
    print(f"Written to {out}, with all combinations of the options in everything.csv")


def _progress(what: str) -> None:
    print(f"{what} ...", file=sys.stderr, flush=True)


if __name__ == "__main__":
    stopping(main)
