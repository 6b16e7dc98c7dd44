"""``python -m grpo_bench.tables``: records in, tables out.

    python -m grpo_bench.tables                         # results/runs: on the screen and as files
    python -m grpo_bench.tables results=FOLDER          # another folder
    python -m grpo_bench.tables results=FOLDER --html   # with a page and figures
    python -m grpo_bench.tables results=FOLDER --check  # exit 1 if a file would change

Tables are written as Markdown, CSV and LaTeX, into ``out=FOLDER`` or a folder ``tables`` beside the
records, and ``reference=ALGO`` chooses what is compared with. The same records give the same bytes.
"""

from __future__ import annotations

import sys
from pathlib import Path

from omegaconf import DictConfig

from grpo_bench.report.folder import differing, make_tables, write_tables
from grpo_bench.report.text.screen import print_tables
from grpo_bench.runs.door import program
from grpo_bench.runs.stopping import stopping

FLAGS = ("--check", "--html")  # keys that may be written as flags
RUNS = Path("results/runs")  # where python -m grpo_bench.run puts records


def verdict(wrong: list[str], what: str) -> int:
    """Say what is wrong, or that nothing is; the exit status."""
    print("\n".join(wrong) or f"Nothing would change in {what}")
    return 1 if wrong else 0


def of_records(results: Path, config: DictConfig) -> int:
    """Write and print the tables of a folder of records, or check them; the exit status."""
    tables = make_tables(results, config.reference)
    out = results / "tables" if config.out is None else Path(config.out)
    if config.check:
        wrong = differing(tables, out)
        return verdict([f"{path}: not what its records give" for path in wrong], str(out))
    write_tables(tables, out)
    print_tables(tables)
    print(f"Written to {out}")
    if config.html:
        from grpo_bench.report.contents import gather
        from grpo_bench.report.publish import publish  # matplotlib

        print(f"Page: {publish(gather([results]), out)}")
    return 0


@program("tables")
def main(config: DictConfig) -> None:
    """Make, write and print the tables; or check them."""
    try:
        for flag in ("check", "html"):
            if not isinstance(config[flag], bool):
                raise ValueError(f"{flag}={config[flag]}: expected true or false")
        status = of_records(RUNS if config.results is None else Path(config.results), config)
    except (OSError, ValueError) as error:
        raise SystemExit(str(error)) from None
    if status:
        raise SystemExit(status)


if __name__ == "__main__":
    sys.argv[1:] = [f"{a[2:]}=true" if a in FLAGS else a for a in sys.argv[1:]]
    stopping(main)
