"""A table for reading (Markdown, LaTeX) and for reckoning (CSV). The same table gives the same
bytes: nothing here knows the time."""

from __future__ import annotations

import math
import re
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
TEXT_COLUMNS = (
    *("env", "budget", "algo", "critic", "PPO's critic"),
    *("held equal", "verdict", "in equal seconds"),
)
# Significant digits in CSV. Processors round sums differently, by some 4e-16 of a number. Two such
# numbers print alike unless a boundary of rounding lies between them. The steps at 10 digits are at
# least 1e-10 of a number, so of the numbers that differ at most 4e-6 print differently; and between
# two processors one of 50,000 committed numbers differed.
DIGITS = 10


@dataclass(frozen=True)
class Column:
    """How columns of a table become one cell: ``x``, or with an interval ``[x_low, x_high]`` on a
    line of its own below; no interval where there are no bounds, or all values are equal.
    ``in_unit``: x is shown in the table's unit of bytes. ``of``: the column with the number that x
    is a part of, shown after it. ``beside``: a column that is shown beside x in the same form."""

    title: str
    name: str
    form: Callable[[Any], str]
    interval: bool = False
    in_unit: bool = False
    of: str | None = None
    beside: str | None = None

    def cell(self, row: dict[Any, Any]) -> str:
        """The text of this column in a row of numbers."""
        estimate = self.form(row[self.name])
        if self.of is not None:
            return f"{estimate}/{self.form(row[self.of])}"
        if self.beside is not None:
            other = self.form(row[self.beside])
            return ABSENT if {estimate, other} == {ABSENT} else f"{estimate} / {other}"
        if not self.interval or estimate == ABSENT:
            return estimate
        low, high = row[f"{self.name}_low"], row[f"{self.name}_high"]
        if math.isnan(low) or math.isnan(high):
            return estimate
        if math.isclose(low, high, rel_tol=1e-9):  # equal values, up to rounding
            return estimate
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
        Column("success", "test_success", hundredths, interval=True),
        Column("PPO's", "ppo_success", hundredths, interval=True),
        Column("difference", "difference", difference, interval=True),
        Column("verdict", "verdict", verdict),
        Column("difference in equal seconds", "seconds_difference", difference, interval=True),
        Column("in equal seconds", "seconds_verdict", verdict),
        Column("speed ×", "speed_ratio", ratio, interval=True),
        Column("peak mem ×", "peak_ratio", ratio, interval=True),
        Column("static mem ×", "static_ratio", significant, interval=True),
    ],
    "summary": [
        Column("success", "test_success", hundredths, interval=True),
        Column("{reference} success", "reference_success", hundredths, interval=True),
        Column("verdict", "verdict", verdict),
        Column("speed ×", "speed_ratio", ratio, interval=True),
        Column("peak mem ×", "peak_ratio", ratio, interval=True),
        Column("static mem ×", "static_ratio", significant, interval=True),
    ],
    "accuracy": [
        Column("k transitions", "transitions", in_units(1e3)),
        Column("k tokens", "tokens", in_units(1e3)),
        Column("start", "start_success", share),
        Column("validation success", "validation_success", share, interval=True),
        Column("test success", "test_success", share, interval=True),
        Column("sampled success", "sampled_success", share, interval=True),
        Column("well formed", "well_formed", share),
        Column("completed", "completed", share),
        Column("test reward", "test_reward", share, interval=True),
        Column("normalised", "normalised", share, interval=True),
        Column("difference to {reference}", "difference", difference, interval=True),
        Column("verdict", "verdict", verdict),
    ],
    "equal": [
        Column("held equal", "axis", str),
        Column("at", "at", significant),
        Column("seeds", "n", whole),
        Column("success", "success", share, interval=True),
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
        Column("better than {reference}", "improvement", hundredths, interval=True),
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
# The columns of a table where there is little room: in README.md and docs, and on a screen.
BRIEF: dict[str, list[Column]] = {
    "trades": [
        Column("PPO's critic", "critic", str),
        Column("success, GRPO / PPO", "test_success", hundredths, beside="ppo_success"),
        *COLUMNS["trades"][5:6],
        *COLUMNS["trades"][-3:],
    ],
    "summary": [
        Column("success / {reference}'s", "test_success", hundredths, beside="reference_success"),
        *COLUMNS["summary"][2:],
    ],
    "aggregate": COLUMNS["aggregate"][1:],
}


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
    return _strings(table, (OK, *COLUMNS[name]))


def brief(name: str, table: pd.DataFrame) -> pd.DataFrame:
    """The same in the columns of ``BRIEF``, where the table has some. What all rows share is in the
    caption instead of in a column: the budget, the number of runs, and GRPO if it is alone."""
    if name not in BRIEF:
        return without_budget(display(name, table))
    shown = without_budget(_strings(table, BRIEF[name]))
    about = shown.attrs
    few, many = table["ok"].min(), table["ok"].max()
    runs = f"{few} to {many} runs" if few < many else "1 run" if many == 1 else f"{many} runs"
    if name == "aggregate":  # over all environments
        shown = shown.drop(columns="env")
    if set(shown["algo"]) == {"grpo"}:  # the caption names it
        shown = shown.drop(columns="algo")
    shown.attrs = about | {"caption": f"{about['caption']}; {runs} each"}
    if name in ("trades", "summary"):
        shown.attrs["reading"] = about["short_reading"]
    return shown


def _strings(table: pd.DataFrame, columns: Sequence[Column]) -> pd.DataFrame:
    shown = table[["env", "budget", "algo"]].copy()
    columns = [column for column in columns if column.name in table.columns]
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
    parts = [f"**{about['caption']}**", about["header"], markdown_grid(shown), about["reading"]]
    parts += ["\n".join(f"- {note}" for note in about["footnotes"])]
    return "\n\n".join(without_tags(part) for part in parts if part) + "\n"


def block(shown: pd.DataFrame) -> str:
    """The same for a page about something else, all words in one small paragraph below."""
    about = shown.attrs
    # Not wrapped: a line that happens to begin with "1." would be a list.
    caption = without_tags(about["caption"])
    words = "\n".join([about["reading"], *(f"{n}." for n in about["footnotes"]), about["header"]])
    return f"**{caption}**\n\n{markdown_grid(shown)}\n\n<sub>{without_tags(words)}</sub>\n"


def without_budget(shown: pd.DataFrame) -> pd.DataFrame:
    """The table with a budget that all rows share in its caption instead of in a column."""
    budgets = set(shown["budget"])
    if len(budgets) != 1:
        return shown
    narrow = shown.drop(columns="budget")
    narrow.attrs = shown.attrs | {"caption": f"{shown.attrs['caption']}; budget {budgets.pop()}"}
    return narrow


def markdown_grid(shown: pd.DataFrame, text_columns: Sequence[str] = TEXT_COLUMNS) -> str:
    """A table of strings in Markdown, columns aligned, the lines of a cell in one. No spaces beside
    the bars: ten columns would be twenty characters wider."""
    titles = [escaped(title) for title in shown.columns]
    rows = [[escaped(cell) for cell in row] for row in shown.to_numpy().tolist()]
    widths = [max(2, *map(len, column)) for column in zip(titles, *rows, strict=True)]  # ":-"
    left = [title in text_columns for title in shown.columns]

    def line(cells: list[str]) -> str:
        padded = zip(cells, widths, left, strict=True)
        return f"|{'|'.join(c.ljust(n) if is_left else c.rjust(n) for c, n, is_left in padded)}|"

    rule = [
        f":{'-' * (n - 1)}" if is_left else f"{'-' * (n - 1)}:"
        for n, is_left in zip(widths, left, strict=True)
    ]
    return "\n".join(map(line, [titles, rule, *rows]))


_CODE_OR_TAG = re.compile(
    r"(?P<code>(?<![`\\])(?P<ticks>`+)(?!`).*?[^`](?P=ticks)(?!`))|<(?=[A-Za-z/!?])", re.DOTALL
)


def escaped(cell: str) -> str:
    """A text as a cell of a table in Markdown: one line, no bar, no tag."""
    barred = re.sub(r"(\\*)\|", lambda found: found[1] * 2 + "\\|", " ".join(cell.splitlines()))
    return without_tags(barred)


def without_tags(text: str) -> str:
    """A text in Markdown whose HTML is shown, not obeyed; "p < 0.01" and `<code>` have none."""
    return _CODE_OR_TAG.sub(lambda found: found["code"] or "&lt;", text)


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
    """All columns, numbers with ``DIGITS`` digits; an empty field is a missing number. A text that
    a spreadsheet would take for a formula has an apostrophe before it."""
    rounded = {
        no_formula(name): [_rounded(x) for x in table[name].tolist()] for name in table.columns
    }
    return str(pd.DataFrame(rounded, dtype=object).to_csv(index=False, lineterminator="\n"))


def _rounded(x: Any) -> Any:
    """A float as text, a text as none but a text; None, which is an empty field, for NaN."""
    if not isinstance(x, float):
        return no_formula(x) if isinstance(x, str) else x
    return None if math.isnan(x) else f"{x:.{DIGITS}g}"


def no_formula(text: str) -> str:
    """A text as a cell of a spreadsheet, which would execute what begins with one of ``=+-@``. See
    https://owasp.org/www-community/attacks/CSV_Injection. A number stays a number."""
    if not text.lstrip().startswith(("=", "+", "-", "@")):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


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
