"""``python -m grpo_bench.tables``: records in, tables out.

    python -m grpo_bench.tables results=FOLDER            # its tables: on the screen, and as files
    python -m grpo_bench.tables results=FOLDER --html     # a page and figures of it as well
    python -m grpo_bench.tables results=FOLDER --check    # exit 1 if a file of them would change
    python -m grpo_bench.tables                           # in a checkout all that is committed
    python -m grpo_bench.tables --check                   # exit 1 if any of that would change

Tables are written as Markdown, CSV and LaTeX, into ``out=FOLDER`` or a folder ``tables`` beside the
records, and ``reference=ALGO`` chooses what is compared with. The same records give the same bytes.
What is committed is made of results/reference: tables, the claim ledger, figures, and the blocks in
README.md and docs (see ``grpo_bench.committed``); after that come the records in results/runs, if
there are any.
"""

from __future__ import annotations

import sys
from pathlib import Path

import hydra
import pandas as pd
from omegaconf import DictConfig

from grpo_bench.config import CONF
from grpo_bench.records.files import replace
from grpo_bench.records.load import has_records
from grpo_bench.report.reading import make_tables
from grpo_bench.report.screen import print_tables
from grpo_bench.report.writers import written
from grpo_bench.stopping import stopping

FLAGS = ("--check", "--html")  # keys that may be written as flags
RUNS = Path("results/runs")  # where python -m grpo_bench.run puts records


def write_tables(tables: dict[str, pd.DataFrame], out: Path) -> None:
    """Write the tables into a folder."""
    out.mkdir(parents=True, exist_ok=True)
    for name, text in written(tables).items():
        replace(out / name, text.encode())


def differing(tables: dict[str, pd.DataFrame], out: Path) -> list[Path]:
    """The files of the tables in a folder that are not there or not so."""
    texts = {out / name: text for name, text in written(tables).items()}
    return [p for p, text in texts.items() if not p.exists() or p.read_bytes() != text.encode()]


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


def of_checkout(root: Path, config: DictConfig) -> int:
    """Write or check all that is committed; the exit status."""
    from grpo_bench import committed

    if config.check:
        wrong = [f"{place}: not what its sources give" for place in committed.check_all(root)]
        return verdict(wrong, "all that is committed")
    for path in committed.make_all(root):
        print(f"{path}: written")
    if config.html:
        print(f"Page: {committed.publish_all(root)}")
    return 0


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="tables")
def main(config: DictConfig) -> None:
    """Make, write and print the tables; or check them."""
    from grpo_bench.committed import is_checkout

    status, here = 0, Path.cwd()
    try:
        for flag in ("check", "html"):
            if not isinstance(config[flag], bool):
                raise ValueError(f"{flag}={config[flag]}: expected true or false")
        whole = config.results is None and is_checkout(here)
        if whole:
            status = of_checkout(here, config)
        if not whole or (not config.check and has_records(RUNS)):
            results = RUNS if config.results is None else Path(config.results)
            status = of_records(results, config)
    except (OSError, ValueError) as error:
        raise SystemExit(str(error)) from None
    if status:
        raise SystemExit(status)


if __name__ == "__main__":
    sys.argv[1:] = [f"{a[2:]}=true" if a in FLAGS else a for a in sys.argv[1:]]
    stopping(main)
