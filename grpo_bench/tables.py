"""``python -m grpo_bench.tables results=FOLDER out=FOLDER``: records in, tables out.

Writes accuracy, speed and memory as Markdown, CSV and LaTeX, and prints them. The same records
give the same bytes.
"""

from __future__ import annotations

from pathlib import Path

import hydra
import pandas as pd
from omegaconf import DictConfig
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from grpo_bench.config import CONF
from grpo_bench.records.files import replace
from grpo_bench.records.load import load_results
from grpo_bench.report import build_tables, csv, display, latex, markdown
from grpo_bench.report.writers import TEXT_COLUMNS

PIPED_WIDTH = 200  # columns, where no terminal says how wide it is


def make_tables(results: Path) -> dict[str, pd.DataFrame]:
    """The tables of all records under a folder, by name, in numbers.

    Raises:
        FileNotFoundError: there is no run in it.
    """
    return build_tables(load_results(results))


def write_tables(tables: dict[str, pd.DataFrame], out: Path) -> None:
    """Write ``<name>.md``, ``.csv`` and ``.tex`` for each table."""
    out.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        shown = display(name, table)
        texts = {"md": markdown(shown), "csv": csv(table), "tex": latex(shown, name)}
        for ending, text in texts.items():
            replace(out / f"{name}.{ending}", text.encode())


def print_tables(tables: dict[str, pd.DataFrame]) -> None:
    """Print the tables on the terminal, intervals below their estimates."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = PIPED_WIDTH
    for name, table in tables.items():
        shown = display(name, table)
        grid = Table(title=shown.attrs["caption"], title_justify="left", box=SIMPLE_HEAD)
        for title in shown.columns:
            grid.add_column(title, justify="left" if title in TEXT_COLUMNS else "right")
        for row in shown.to_numpy().tolist():
            grid.add_row(*(cell.replace(" [", "\n\\[") for cell in row))
        console.print(grid)
        for line in (shown.attrs["reading"], *shown.attrs["footnotes"]):
            console.print(line, style="dim", markup=False)
        console.print()
    console.print(next(iter(tables.values())).attrs["header"], markup=False)


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="tables")
def main(config: DictConfig) -> None:
    """Make, write and print the tables."""
    results = Path(config.results)
    out = results / "tables" if config.out is None else Path(config.out)
    try:
        tables = make_tables(results)
    except FileNotFoundError as error:
        raise SystemExit(str(error)) from None
    write_tables(tables, out)
    print_tables(tables)
    print(f"Written to {out}")


if __name__ == "__main__":
    main()
