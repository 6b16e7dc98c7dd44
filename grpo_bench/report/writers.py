"""A table for reading (Markdown, LaTeX) and for reckoning (CSV). The same table gives the same
bytes: nothing here knows the time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd
from tabulate import tabulate

from grpo_bench.report.numbers import ABSENT, difference, share, significant, whole

TEXT_COLUMNS = ("environment", "budget", "algorithm", "verdict")  # aligned left, the rest right


@dataclass(frozen=True)
class Column:
    """How columns of a table become one cell: ``x``, or with an interval ``x [x_low, x_high]``."""

    title: str
    name: str
    form: Callable[[float], str]
    unit: float = 1.0
    interval: bool = False

    def cell(self, row: pd.Series) -> str:
        """The text of this column in a row of numbers."""
        estimate = self.form(row[self.name] / self.unit)
        if not self.interval or estimate == ABSENT:
            return estimate
        bounds = [row[f"{self.name}_{end}"] / self.unit for end in ("low", "high")]
        if any(math.isnan(bound) for bound in bounds):
            return f"{estimate} [{ABSENT}]"
        return f"{estimate} [{', '.join(map(self.form, bounds))}]"


COLUMNS: dict[str, list[Column]] = {
    "accuracy": [
        Column("transitions", "transitions", whole),
        Column("start", "start_success", share),
        Column("validation success", "validation_success", share, interval=True),
        Column("test success", "test_success", share, interval=True),
        Column("well formed", "well_formed", share),
        Column("test reward", "test_reward", share, interval=True),
        Column("normalised", "normalised", share, interval=True),
        Column("difference to PPO", "difference", difference, interval=True),
    ],
    "speed": [
        Column("gradient steps", "gradient_steps", whole),
        Column("transitions/s", "transitions_per_second", significant, interval=True),
        Column("rollout s", "rollout_seconds", significant),
        Column("update s", "update_seconds", significant),
        Column("set-up s", "setup_seconds", significant),
        Column("warm-up s", "warmup_seconds", significant),
        Column("evaluation s", "evaluation_seconds", significant),
        Column("ratio to PPO", "ratio", significant, interval=True),
    ],
    "memory": [
        Column("peak MB", "peak_bytes", significant, unit=1e6, interval=True),
        Column("growth MB", "growth_bytes", significant, unit=1e6),
        Column("policy KB", "policy_bytes", significant, unit=1e3),
        Column("critic KB", "critic_bytes", significant, unit=1e3),
        Column("reference KB", "reference_bytes", significant, unit=1e3),
        Column("gradient KB", "gradient_bytes", significant, unit=1e3),
        Column("optimiser KB", "optimizer_bytes", significant, unit=1e3),
        Column("rollout KB", "rollout_bytes", significant, unit=1e3),
        Column("peak ratio to PPO", "peak_ratio", significant, interval=True),
        Column("static ratio to PPO", "static_ratio", significant, interval=True),
    ],
}


def display(name: str, table: pd.DataFrame) -> pd.DataFrame:
    """The table called ``name`` as people read it: strings only, in the order of ``COLUMNS``,
    without columns that no row has. Keeps ``attrs``."""
    shown = pd.DataFrame(
        {"environment": table["env"], "budget": table["budget"], "algorithm": table["algo"]}
    )
    shown["ok / planned"] = [
        f"{ok} / {n}" for ok, n in zip(table["ok"], table["planned"], strict=True)
    ]
    for column in COLUMNS[name]:
        cells = [column.cell(row) for _, row in table.iterrows()]
        if set(cells) != {ABSENT}:
            shown[column.title] = cells
    if "verdict" in table.columns:
        shown["verdict"] = [text or ABSENT for text in table["verdict"]]
    shown.attrs = table.attrs
    return shown


def markdown(shown: pd.DataFrame) -> str:
    """Caption, header line, table, how to read it, footnotes."""
    about = shown.attrs
    cells = [[cell.replace("|", "\\|") for cell in row] for row in shown.to_numpy().tolist()]
    grid = tabulate(
        cells,
        headers=list(shown.columns),
        tablefmt="pipe",
        disable_numparse=True,
        colalign=["left" if title in TEXT_COLUMNS else "right" for title in shown.columns],
    )
    parts = [f"**{about['caption']}**", about["header"], grid, about["reading"]]
    parts += ["\n".join(f"- {note}" for note in about["footnotes"])]
    return "\n\n".join(part for part in parts if part) + "\n"


def latex(shown: pd.DataFrame, label: str) -> str:
    """A ``table`` float for booktabs, all text escaped; the rest of the words in the caption."""
    about = shown.attrs
    words = [f"{about['caption']}.", about["header"], about["reading"], *about["footnotes"]]
    sides = "".join("l" if title in TEXT_COLUMNS else "r" for title in shown.columns)
    rows = [" & ".join(map(escape, row)) + r" \\" for row in shown.to_numpy().tolist()]
    lines = [
        r"\begin{table}",
        rf"\caption{{{escape(' '.join(words))}}}",
        rf"\label{{tab:{label}}}",
        rf"\begin{{tabular}}{{{sides}}}",
        r"\toprule",
        " & ".join(map(escape, shown.columns)) + r" \\",
        r"\midrule",
        *rows,
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def csv(table: pd.DataFrame) -> str:
    """All columns at full precision; an empty field is a number that does not exist."""
    return str(table.to_csv(index=False, lineterminator="\n"))


_LATEX = str.maketrans(
    {
        **{character: f"\\{character}" for character in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        ABSENT: "--",
    }
)


def escape(text: str) -> str:
    """Text as LaTeX prints it literally."""
    return text.translate(_LATEX)
