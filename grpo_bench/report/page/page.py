"""The report as one page that needs nothing else: no network, no other file, and no script for
reading. What a script adds: sorting, values under the pointer and the keys, opening what a link
leads to."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files

from grpo_bench.report.contents import Report, Section
from grpo_bench.report.figures import palette
from grpo_bench.report.page import claims, records
from grpo_bench.report.page.elements import Markup, element
from grpo_bench.report.page.panels import curves, memory_apart, of_records, profiles
from grpo_bench.report.page.tables import comparison
from grpo_bench.report.page.trades import intervals, trades

THEMES = ("auto", "light", "dark")


def page(report: Report) -> str:
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
    places |= {records.section_anchor(s): s.name for s in report.sections}
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
        _part("trades", "What GRPO trades against PPO", trades(report)),
        _part("claims", "What is claimed, and what holds", claims.verdicts(report.claims)),
        _part("intervals", "The trades as intervals", intervals(report)),
    ]
    parts += [_section(section) for section in report.sections]
    if report.memory is not None:
        parts.append(_part("memory", "Where the memory goes", memory_apart(report.memory)))
    ledger = claims.ledger(report.claims, tables)
    return [
        *parts,
        _part("ledger", "The claim ledger", ledger),
        _part("failures", "The runs that failed", records.failures(report)),
        _part("records", "The records that the numbers come from", records.records(report)),
        _part("machines", "Machines and code", records.machines(report)),
    ]


def _section(section: Section) -> Markup:
    about = next(iter(section.tables.values())).attrs
    anchors, all_runs = records.group_anchors(section), records.runs_anchor(section)
    shown = [
        comparison(
            name,
            table,
            lambda row: f"#{anchors.get((row['env'], row['budget'], row['algo']), all_runs)}",
            id_=_table_anchor(section, name),
        )
        for name, table in section.tables.items()
        if name != "trades"  # they stand on the first screen
    ]
    notes = [element("li", note) for note in about["footnotes"]]
    return _part(
        records.section_anchor(section),
        f"Records: {section.name}",
        element("p", f"{_about(section)} {about['header']}", class_="origin"),
        element("ul", *notes, class_="notes") if notes else None,
        curves(section),
        *shown,
        of_records(section),
        profiles(section),
    )


def _about(section: Section) -> str:
    """What the records of a section are of."""
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
    return f"{records.section_anchor(section)}-{name}"


def _colours(report: Report) -> str:
    """The colours of ``palette``, and for each line of a legend what its switch hides."""
    pairs = zip(palette.LIGHT, palette.DARK, strict=True)
    rules = [f".c{i}{{--c:light-dark({light},{dark})}}" for i, (light, dark) in enumerate(pairs)]
    parts = zip(palette.part_colours(dark=False), palette.part_colours(dark=True), strict=True)
    rules += [f".p{i}{{--c:light-dark({light},{dark})}}" for i, (light, dark) in enumerate(parts)]
    most = max(max(section.order.values()) for section in report.sections)
    rules += [f".plots:has(.k{i}:not(:checked)) .s{i}{{display:none}}" for i in range(most + 1)]
    return "\n".join(rules) + "\n"


@cache
def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """As a Content-Security-Policy names what it lets run."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
