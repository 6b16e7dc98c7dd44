"""A table for reading (Markdown, LaTeX) and for reckoning (CSV). The same table gives the same
bytes: nothing here knows the time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import pandas as pd

from grpo_bench.report.text.numbers import (
    ABSENT,
    NEVER,
    difference,
    hundredths,
    in_units,
    need,
    p_value,
    ratio,
    share,
    significant,
    whole,
)

# Columns aligned left; the rest are right.
TEXT_COLUMNS = ("env", "budget", "algo", "critic", "held equal", "verdict", "in equal seconds")


@dataclass(frozen=True)
class Column:
    """How columns of a table become one cell: ``x``, or with an interval ``[x_low, x_high]`` on a
    line of its own below. ``share``: x cannot be below 0 or above 1, so neither are its bounds.
    ``in_unit``: x is shown in the table's unit of bytes. ``of``: the column with the number that x
    is a part of, shown after it."""

    title: str
    name: str
    form: Callable[[Any], str]
    interval: bool = False
    share: bool = False
    in_unit: bool = False
    of: str | None = None

    def cell(self, row: dict[Any, Any]) -> str:
        """The text of this column in a row of numbers."""
        estimate = self.form(row[self.name])
        if self.of is not None:
            return f"{estimate}/{self.form(row[self.of])}"
        if not self.interval or estimate == ABSENT:
            return estimate
        low, high = row[f"{self.name}_low"], row[f"{self.name}_high"]
        if math.isnan(low) or math.isnan(high):
            return f"{estimate}\n[{ABSENT}]"
        if math.isclose(low, high, rel_tol=1e-9):  # equal values, but for rounding
            return estimate
        if self.share:
            low, high = max(low, 0.0), min(high, 1.0)
        return f"{estimate}\n[{self.form(low)}, {self.form(high)}]"


def verdict(text: str) -> str:
    """A verdict, what is in parentheses on a line of its own."""
    return text.replace(" (", "\n(") or ABSENT


UNITS = {"KB": 1e3, "MB": 1e6}  # of bytes


def component(title: str, name: str) -> Column:
    """The column of the bytes of a component."""
    return Column(f"{title} {{unit}}", name, significant, in_unit=True)


# ``{reference}`` in a title is the name of the algorithm compared with, ``{unit}`` a unit of bytes.
COLUMNS: dict[str, list[Column]] = {
    "trades": [
        Column("critic", "critic", str),
        Column("PPO ok", "ppo_ok", str, of="ppo_planned"),
        Column("success", "test_success", hundredths, interval=True, share=True),
        Column("PPO's", "ppo_success", hundredths, interval=True, share=True),
        Column("difference", "difference", difference, interval=True),
        Column("verdict", "verdict", verdict),
        Column("difference in equal seconds", "seconds_difference", difference, interval=True),
        Column("in equal seconds", "seconds_verdict", verdict),
        Column("speed ×", "speed_ratio", ratio, interval=True),
        Column("peak mem ×", "peak_ratio", ratio, interval=True),
        Column("static mem ×", "static_ratio", significant, interval=True),
    ],
    "summary": [
        Column("success", "test_success", hundredths, interval=True, share=True),
        Column("{reference} success", "reference_success", hundredths, interval=True, share=True),
        Column("verdict", "verdict", verdict),
        Column("speed ×", "speed_ratio", ratio, interval=True),
        Column("peak mem ×", "peak_ratio", ratio, interval=True),
        Column("static mem ×", "static_ratio", significant, interval=True),
    ],
    "accuracy": [
        Column("k transitions", "transitions", in_units(1e3)),
        Column("k tokens", "tokens", in_units(1e3)),
        Column("start", "start_success", share),
        Column("validation success", "validation_success", share, interval=True, share=True),
        Column("test success", "test_success", share, interval=True, share=True),
        Column("sampled success", "sampled_success", share, interval=True, share=True),
        Column("well formed", "well_formed", share),
        Column("test reward", "test_reward", share, interval=True),
        Column("normalised", "normalised", share, interval=True),
        Column("difference to {reference}", "difference", difference, interval=True),
        Column("verdict", "verdict", verdict),
    ],
    "equal": [
        Column("held equal", "axis", str),
        Column("at", "at", significant),
        Column("seeds", "n", whole),
        Column("success", "success", share, interval=True, share=True),
        Column("difference to {reference}", "difference", difference, interval=True),
        Column("verdict", "verdict", verdict),
    ],
    "reach": [
        Column("success", "score", hundredths),
        Column("reached", "reached", str, of="n"),
        Column("at first", "at_first", whole),
        Column("k transitions", "transitions", need(in_units(1e3)), interval=True),
        Column("k tokens", "tokens", need(in_units(1e3)), interval=True),
        Column("gradient steps", "gradient_steps", need(whole), interval=True),
        Column("seconds", "seconds", need(significant), interval=True),
        Column("transitions ×", "transitions_ratio", ratio, interval=True),
        Column("tokens ×", "tokens_ratio", ratio, interval=True),
        Column("seconds ×", "seconds_ratio", ratio, interval=True),
    ],
    "speed": [
        Column("gradient steps", "gradient_steps", whole),
        Column("k transitions/s", "transitions_per_second", in_units(1e3), interval=True),
        Column("tokens/s", "tokens_per_second", significant, interval=True),
        Column("rollout s", "rollout_seconds", significant),
        Column("generation s", "generation_seconds", significant),
        Column("scoring s", "scoring_seconds", significant),
        Column("reference s", "logprobs_seconds", significant),
        Column("critic s", "critic_seconds", significant),
        Column("update s", "update_seconds", significant),
        Column("set-up s", "setup_seconds", significant),
        Column("warm-up s", "warmup_seconds", significant),
        Column("evaluation s", "evaluation_seconds", significant),
        Column("critic share", "critic_share", hundredths),
        Column("ratio to {reference}", "ratio", ratio, interval=True),
        Column("bound", "bound", ratio),
    ],
    "memory": [
        Column("peak MB", "peak_bytes", in_units(1e6), interval=True),
        Column("growth MB", "growth_bytes", in_units(1e6)),
        component("policy", "policy_bytes"),
        component("critic", "critic_bytes"),
        component("reference", "reference_bytes"),
        component("gradient", "gradient_bytes"),
        component("optimiser", "optimizer_bytes"),
        component("rollout", "rollout_bytes"),
        Column("peak ratio", "peak_ratio", ratio, interval=True),
        Column("static ratio", "static_ratio", significant, interval=True),
    ],
    "aggregate": [
        Column("tasks", "tasks", whole),
        Column("mean", "mean", share, interval=True),
        Column("IQM", "iqm", share, interval=True),
        Column("optimality gap", "optimality_gap", share, interval=True),
        Column("better than {reference}", "improvement", hundredths, interval=True, share=True),
    ],
    "paired": [
        Column("seeds", "n", whole),
        Column("problems", "problems", whole),
        Column("only this right", "only_mine", whole),
        Column("only {reference} right", "only_its", whole),
        Column("McNemar p", "mcnemar_p", p_value),
        Column("seeds better", "seeds_better", whole),
        Column("seeds worse", "seeds_worse", whole),
        Column("permutation p", "p", p_value),
        Column("smallest p", "smallest_p", p_value),
    ],
}
OK = Column("ok", "ok", str, of="planned")


def written(tables: dict[str, pd.DataFrame]) -> dict[str, str]:
    """``<name>.md``, ``.csv`` and ``.tex`` of each table as texts."""
    texts = {}
    for name, table in tables.items():
        shown = display(name, table)
        texts[f"{name}.md"] = markdown(shown)
        texts[f"{name}.csv"] = csv(table)
        texts[f"{name}.tex"] = latex(shown, name)
    return texts


def display(name: str, table: pd.DataFrame) -> pd.DataFrame:
    """The table called ``name`` as people read it: strings only, some of two lines, in the order
    of ``COLUMNS``, without columns that no row has. Keeps ``attrs``."""
    shown = table[["env", "budget", "algo"]].copy()
    columns = [column for column in (OK, *COLUMNS[name]) if column.name in table.columns]
    size = UNITS[table.attrs["unit"]]
    scaled = {column.name: table[column.name] / size for column in columns if column.in_unit}
    rows = table.assign(**scaled).to_dict("records")
    for column in columns:
        cells = [column.cell(row) for row in rows]
        if set(cells) != {ABSENT}:
            shown[column.title.format_map(table.attrs)] = cells
    shown.attrs = table.attrs
    return shown


def markdown(shown: pd.DataFrame) -> str:
    """Caption, header line, table, how to read it, footnotes."""
    about = shown.attrs
    parts = [f"**{about['caption']}**", about["header"], grid(shown), about["reading"]]
    parts += ["\n".join(f"- {note}" for note in about["footnotes"])]
    return "\n\n".join(part for part in parts if part) + "\n"


def block(shown: pd.DataFrame) -> str:
    """The same for a page about something else: a budget that all rows share stands in the caption,
    and all words in one small paragraph below."""
    shown = without_budget(shown)
    about = shown.attrs
    # Not wrapped: a line that happens to begin with "1." would be a list.
    words = "\n".join([about["reading"], *(f"{n}." for n in about["footnotes"]), about["header"]])
    return f"**{about['caption']}**\n\n{grid(shown)}\n\n<sub>{words}</sub>\n"


def without_budget(shown: pd.DataFrame) -> pd.DataFrame:
    """The table with a budget that all rows share in its caption instead of in a column."""
    budgets = set(shown["budget"])
    if len(budgets) != 1:
        return shown
    narrow = shown.drop(columns="budget")
    narrow.attrs = shown.attrs | {"caption": f"{shown.attrs['caption']}; budget {budgets.pop()}"}
    return narrow


def grid(shown: pd.DataFrame, text_columns: Sequence[str] = TEXT_COLUMNS) -> str:
    """A table of strings in Markdown, columns aligned, a row for each line of a cell. No spaces
    beside the bars: ten columns would be twenty characters wider."""
    titles = list(shown.columns)
    rows = [[escaped(cell) for cell in line] for line in _lines(shown)]
    widths = [max(2, *map(len, column)) for column in zip(titles, *rows, strict=True)]  # ":-"
    left = [title in text_columns for title in titles]

    def line(cells: list[str]) -> str:
        padded = zip(cells, widths, left, strict=True)
        return f"|{'|'.join(c.ljust(n) if is_left else c.rjust(n) for c, n, is_left in padded)}|"

    rule = [
        f":{'-' * (n - 1)}" if is_left else f"{'-' * (n - 1)}:"
        for n, is_left in zip(widths, left, strict=True)
    ]
    return "\n".join(map(line, [titles, rule, *rows]))


def escaped(cell: str) -> str:
    """A text as a cell of a table in Markdown."""
    return cell.replace("|", "\\|")


def _lines(shown: pd.DataFrame) -> list[list[str]]:
    """The rows, those with cells of two lines as two rows."""
    return [
        list(line)
        for row in shown.to_numpy().tolist()
        for line in zip_longest(*(cell.split("\n") for cell in row), fillvalue="")
    ]


def latex(shown: pd.DataFrame, label: str) -> str:
    """A ``table`` float for booktabs, all text escaped; the rest of the words in the caption."""
    about = shown.attrs
    words = [f"{about['caption']}.", about["header"], about["reading"], *about["footnotes"]]
    sides = "".join("l" if title in TEXT_COLUMNS else "r" for title in shown.columns)
    rows = [" & ".join(map(escape, line)) + r" \\" for line in _lines(shown)]
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
        NEVER: r"$\infty$",
        "×": r"$\times$",
    }
)


def escape(text: str) -> str:
    """Text as LaTeX prints it literally."""
    return text.translate(_LATEX)
