"""``python -m grpo_bench.tables results=FOLDER out=FOLDER``: records in, tables out.

Writes the tables of ``report.build_tables`` as Markdown, CSV and LaTeX, and prints of summary,
accuracy, speed and memory what fits on the screen. The same records give the same bytes.
``reference=ALGO`` chooses what is compared with.

``claims=results/claims.yaml`` makes the claim ledger instead, of the tables in the folder
``reference`` beside that file. With ``check=true`` nothing is written or printed but the files that
would change, and the exit status is 1 if there are any.
"""

from __future__ import annotations

import os
import textwrap
from pathlib import Path
from typing import Any

import hydra
import pandas as pd
from omegaconf import DictConfig, OmegaConf
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from grpo_bench.config import CONF
from grpo_bench.records.files import replace
from grpo_bench.records.load import load_ends, load_problems
from grpo_bench.report import build_tables, csv, display, latex, ledger, markdown
from grpo_bench.report.claims import judge, parse_claim
from grpo_bench.report.writers import TEXT_COLUMNS

REFERENCE = "reference"  # the folder of committed results beside the file of claims

# Of so many runs the test problems are read, for ``paired``. A run has up to 9,673: those of 10,000
# runs would take gigabytes, and longer than all tables may.
MOST_PAIRED = 500
PIPED_WIDTH = 100  # characters, where neither a terminal nor COLUMNS says how wide it is
TEXT_WIDTH = 20  # of a name on the screen; a longer one is folded
GAP = 2  # characters between columns
SPARE = {  # what a narrow screen leaves out, the first first
    "summary": ("static mem ×", "{reference} success", "peak mem ×"),
    "accuracy": (
        *("test reward", "normalised", "k transitions", "k tokens", "well formed"),
        *("validation success", "sampled success", "start"),
    ),
    "speed": (
        *("set-up s", "evaluation s", "warm-up s", "gradient steps", "scoring s", "critic share"),
        *("reference s", "rollout s", "critic s", "generation s", "update s"),
    ),
    "memory": (
        *("gradient {unit}", "optimiser {unit}", "reference {unit}", "policy {unit}"),
        *("rollout {unit}", "critic {unit}", "growth MB"),
    ),
}


def make_tables(results: Path, reference: str | None = None) -> dict[str, pd.DataFrame]:
    """The tables of all records under a folder, by name, in numbers; see ``build_tables``. Of more
    than ``MOST_PAIRED`` runs there is no ``paired``.

    Raises:
        FileNotFoundError: there is no run in it.
        ValueError: there is no run of ``reference``.
    """
    ends = load_ends(results)
    problems = load_problems(results) if len(ends.runs) <= MOST_PAIRED else None
    return build_tables(ends, reference, problems)


def make_ledger(claims: Path) -> dict[str, str]:
    """``claims.md`` and ``claims.csv`` as texts, of a file of claims and the tables beside it.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: an entry or a table is not as it should be, see ``report.claims``.
    """
    reference = claims.parent / REFERENCE

    def read(name: str) -> pd.DataFrame | None:
        path = reference / name
        if not path.exists():
            return None
        return pd.read_csv(path, keep_default_na=False, na_values=[""])

    entries: Any = OmegaConf.to_container(OmegaConf.load(claims))
    judged = [judge(parse_claim(name, entry), read) for name, entry in entries.items()]
    return {"claims.md": ledger.page(judged), "claims.csv": csv(ledger.numbers(judged))}


def written(tables: dict[str, pd.DataFrame]) -> dict[str, str]:
    """``<name>.md``, ``.csv`` and ``.tex`` of each table as texts."""
    texts = {}
    for name, table in tables.items():
        shown = display(name, table)
        texts[f"{name}.md"] = markdown(shown)
        texts[f"{name}.csv"] = csv(table)
        texts[f"{name}.tex"] = latex(shown, name)
    return texts


def write_tables(tables: dict[str, pd.DataFrame], out: Path) -> None:
    """Write the tables into a folder."""
    write(written(tables), out)


def write(texts: dict[str, str], out: Path) -> None:
    """Write files into a folder, by their names."""
    out.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        replace(out / name, text.encode())


def differing(texts: dict[str, str], out: Path) -> list[Path]:
    """Those of the files in a folder that are not there or not so."""
    paths = {out / name: text for name, text in texts.items()}
    return [p for p, text in paths.items() if not p.exists() or p.read_bytes() != text.encode()]


def print_tables(tables: dict[str, pd.DataFrame]) -> None:
    """Print those tables of which ``SPARE`` knows, as wide as the terminal is (or ``COLUMNS``
    says): where not all columns fit, without the spare ones, which a line below names. The other
    tables are named at the end."""
    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PIPED_WIDTH
    for name in (name for name in tables if name in SPARE):
        shown, left_out = fit(name, display(name, tables[name]), console.width)
        console.print(screen_grid(shown))
        console.print(shown.attrs["reading"], style="dim", markup=False)
        if left_out:
            line = f"Too wide for this screen, but in the files: {', '.join(left_out)}."
            console.print(line, style="dim", markup=False)
        console.print()
    about = next(iter(tables.values())).attrs
    for line in (*about["footnotes"], about["header"]):
        console.print(line, markup=False)
    others = [
        f"{name}.md ({table.attrs['caption']})"
        for name, table in tables.items()
        if name not in SPARE
    ]
    if others:
        console.print(f"Only in the files: {'; '.join(others)}", markup=False)


def fit(name: str, shown: pd.DataFrame, width: int) -> tuple[pd.DataFrame, list[str]]:
    """The table called ``name`` as ``display`` gives it, made for a screen of ``width`` characters,
    and the titles of what did not fit. A budget that all rows share stands in the caption."""
    budgets = set(shown["budget"])
    about = dict(shown.attrs)
    if len(budgets) == 1:
        about["caption"] += f"; budget {budgets.pop()}"
        shown = shown.drop(columns="budget")
    left_out: list[str] = []
    shown = shown.assign(algo=[textwrap.fill(name, TEXT_WIDTH) for name in shown["algo"]])
    for title in (spare.format_map(about) for spare in SPARE[name]):
        if sum(column_width(shown[t]) + GAP for t in shown.columns) - GAP <= width:
            break
        if title in shown.columns:
            shown = shown.drop(columns=title)
            left_out.append(title)
    shown.attrs = about
    return shown, left_out


def column_width(column: pd.Series) -> int:
    """Characters that a column takes on the screen, its title folded between words."""
    lines = [line for cell in column for line in cell.split("\n")]
    return max(map(len, [*str(column.name).split(), *lines]))


def screen_grid(shown: pd.DataFrame) -> Table:
    """The table for the screen, each column no wider than its cells need."""
    caption = Text(shown.attrs["caption"], style="bold")
    grid = Table(
        title=caption,
        title_justify="left",
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, GAP - 1, 0, 0),  # the box has one more
    )
    for title in shown.columns:
        head = textwrap.fill(title, column_width(shown[title]), break_on_hyphens=False)
        grid.add_column(head, justify="left" if title in TEXT_COLUMNS else "right")
    for row in shown.to_numpy().tolist():
        grid.add_row(*map(Text, row))
    return grid


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="tables")
def main(config: DictConfig) -> None:
    """Make, write and print the tables, or the claim ledger; or check them."""
    tables: dict[str, pd.DataFrame] = {}
    try:
        if config.claims is None:
            folder = Path(config.results) / "tables"
            tables = make_tables(Path(config.results), config.reference)
            texts = written(tables)
        else:
            folder = Path(config.claims).parent / REFERENCE
            texts = make_ledger(Path(config.claims))
    except (FileNotFoundError, ValueError) as error:
        raise SystemExit(str(error)) from None
    out = folder if config.out is None else Path(config.out)
    if config.check:
        wrong = differing(texts, out)
        for path in wrong:
            print(f"{path}: not what its sources give")
        raise SystemExit(1 if wrong else 0)
    write(texts, out)
    if tables:
        print_tables(tables)
    print(f"Written to {out}")


if __name__ == "__main__":
    main()
