"""``grpo-bench PROGRAM ...`` and ``python -m grpo_bench PROGRAM ...``: the programs by name."""

from __future__ import annotations

import runpy
import sys
from difflib import get_close_matches

PROGRAMS = {
    "run": "train: one run, or with -m a sweep that ends with the tables",
    "tables": "make the tables of a folder of records",
    "tune": "search settings, with the same number of trials for every algorithm",
    "plan": "predict the memory of a run on a language model",
    "oracle": "compare every option with the exact gradient on tasks small enough to list",
    "pack": "put a folder of records into a few small files",
    "audit": "check that every record of a folder is complete, readable and consistent",
}


def usage() -> str:
    """How to call a program, and one line about each."""
    lines = [f"  {name:<8}{text}" for name, text in PROGRAMS.items()]
    return "\n".join(["usage: grpo-bench PROGRAM ...", "", *lines, "", "PROGRAM --help says more."])


def main() -> None:
    """Run a program as ``python -m grpo_bench.PROGRAM`` does; without one, list them."""
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        print(usage())
    elif name in PROGRAMS:
        sys.argv[1:] = arguments
        runpy.run_module(f"grpo_bench.{name}", run_name="__main__", alter_sys=True)
    else:
        close = get_close_matches(name, PROGRAMS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"expected one of {', '.join(PROGRAMS)}"
        print(f"grpo-bench {name}: no such program, {hint}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
