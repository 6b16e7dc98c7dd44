"""The report as one page without any other file. It can be read without a script; the script sorts
tables, switches all algorithms of a chart at once, and opens folded parts that a link leads to."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files

from grpo_bench.report.contents import Report, Section
from grpo_bench.report.figures import palette
from grpo_bench.report.page import run_lists
from grpo_bench.report.page.chart_parts import (
    curves_part,
    memory_apart,
    memory_part,
    profiles_part,
)
from grpo_bench.report.page.claim_cards import claim_cards, claim_overview
from grpo_bench.report.page.elements import Markup, element
from grpo_bench.report.page.sortable_table import comparison_table
from grpo_bench.report.page.trade_summary import trade_intervals, trade_summary

THEMES = ("auto", "light", "dark")


def report_page(report: Report) -> str:
    """The whole page. The same report gives the same bytes."""
    style, script = _asset("page.css") + _colours(report), _asset("page.js")
    allowed = f"style-src '{_digest(style)}'; script-src '{_digest(script)}'; img-src data:"
    policy = f"default-src 'none'; {allowed}"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("link", rel="icon", href="data:,"),
        element("title", report.title),
        element("style", Markup(style)),
    )
    body = element(
        "body", _top(report), element("main", *_parts(report)), element("script", Markup(script))
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _top(report: Report) -> Markup:
    buttons = [
        element("input", type="radio", name="theme", id=f"theme-{name}", checked=name == "auto")
        for name in THEMES
    ]
    switches = [element("label", *pair) for pair in zip(buttons, THEMES, strict=True)]
    themes = element("fieldset", element("legend", "Colours"), *switches, class_="themes controls")
    places = {"trades": "Trades", "claims": "Claims"}
    places |= {run_lists.section_anchor(s): s.name for s in report.sections}
    places |= {"memory": "Memory"} if report.memory is not None else {}
    places |= {"ledger": "Ledger", "failures": "Failed runs", "records": "Records"}
    places |= {"machines": "Machines"}
    links = [element("a", text, href=f"#{anchor}") for anchor, text in places.items()]
    nav = element("nav", *links, class_="controls", aria_label="Parts of the page")
    return element("header", element("h1", report.title), themes, nav)


def _parts(report: Report) -> list[Markup | None]:
    tables = {
        f"{section.name}/tables/{name}.csv": "#all-trades"
        if name == "trades"
        else f"#{_table_anchor(section, name)}"
        for section in report.sections
        for name in section.tables
    }
    parts = [
        _part("trades", "What GRPO trades against PPO", trade_summary(report)),
        _part("claims", "Published claims, and what holds", claim_overview(report.claims)),
        _part("intervals", "GRPO and PPO as intervals", trade_intervals(report)),
    ]
    parts += [_section(section) for section in report.sections]
    if report.memory is not None:
        parts.append(_part("memory", "Where the memory goes", memory_apart(report.memory)))
    ledger = claim_cards(report.claims, tables)
    return [
        *parts,
        _part("ledger", "The claims and their evidence", ledger),
        _part("failures", "The runs that failed", run_lists.failed_runs(report)),
        _part("records", "The runs behind the numbers", run_lists.run_lists(report)),
        _part("machines", "Machines and code", run_lists.machine_table(report)),
    ]


def _section(section: Section) -> Markup:
    about = next(iter(section.tables.values())).attrs
    anchors, all_runs = run_lists.group_anchors(section), run_lists.runs_anchor(section)
    tables = [
        comparison_table(
            name,
            table,
            lambda row: f"#{anchors.get((row['env'], row['budget'], row['algo']), all_runs)}",
            id_=_table_anchor(section, name),
        )
        for name, table in section.tables.items()
        if name != "trades"  # it is on the first screen
    ]
    notes = [element("li", note) for note in about["footnotes"]]
    return _part(
        run_lists.section_anchor(section),
        f"Records: {section.name}",
        element("p", f"{_about(section)} {about['header']}", class_="origin"),
        element("ul", *notes, class_="notes") if notes else None,
        curves_part(section),
        *tables,
        memory_part(section),
        profiles_part(section),
    )


def _about(section: Section) -> str:
    """The runs of a section in a sentence."""
    runs = [len(group.runs) for group in section.groups]
    envs = ", ".join(dict.fromkeys(group.env for group in section.groups))
    least, most = min(runs), max(runs)
    seeds = str(most) if least == most else f"{least} to {most}"
    rows = (
        f"{len(section.order)} algorithms" if len(section.order) > 1 else next(iter(section.order))
    )
    words = f"{sum(runs):,} {'run' if sum(runs) == 1 else 'runs'}: {rows} on {envs}"
    return f"{words}, {seeds} {'seed' if most == 1 else 'seeds'} each."


def _part(anchor: str, title: str, *content: Markup | None) -> Markup:
    return element("section", element("h2", title), *content, id=anchor)


def _table_anchor(section: Section, name: str) -> str:
    return f"{run_lists.section_anchor(section)}-{name}"


def _colours(report: Report) -> str:
    """The colours of ``palette`` as variables, and rules by which switches hide lines."""
    lines = zip(palette.LIGHT, palette.DARK, strict=True)
    parts = zip(palette.PARTS_LIGHT, palette.PARTS_DARK, strict=True)
    pairs = {f"c{i}": pair for i, pair in enumerate(lines)}
    pairs |= {f"p{i}": pair for i, pair in enumerate(parts)}
    rules = [f":root{{--{k}:light-dark({a},{b})}}" for k, (a, b) in pairs.items()]
    most = max(max(section.order.values()) for section in report.sections)
    rules += [f".plots:has(.k{i}:not(:checked)) .s{i}{{display:none}}" for i in range(most + 1)]
    return "\n".join(rules) + "\n"


@cache
def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """The name of a style or a script in a Content-Security-Policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
