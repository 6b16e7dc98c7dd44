"""Small reports with every feature, for the tests of the page and of the figures."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from support.run_records import record, values

from grpo_bench.report.claims.judge import Judged, judge, parse_claim
from grpo_bench.report.contents import Report, gather

HOSTILE = 'a</script><b onload="x">&amp;\u2028é'  # as a name and as an error's message
ENTRY = {
    "says": f"It is fast {HOSTILE}",
    "sources": [{"what": "a page", "url": "https://example.org/?a=1&b=2"}],
    "protocol": "Rows of `summary`.",
    "evidence": [
        {
            "what": "speed",
            "only_if": "it is measured",
            "short": "it is measured",
            "table": "main/tables/summary.csv",
            "value": "speed_ratio",
            "label": "{env}",
            "at_least": 2,
        },
        {
            "what": "speed elsewhere",
            "only_if": "it is measured elsewhere",
            "short": "elsewhere",
            "table": "other/speed.csv",
            "value": "ratio",
            "label": "{env}",
            "at_least": 2,
        },
    ],
}


def make_records(folder: Path) -> None:
    """``main``: two tasks, GRPO with a run that failed, PPO with two critics, and an algorithm of a
    hostile name. ``other``: GRPO alone."""
    main, other = folder / "main", folder / "other"
    ppo = {"kind": "ppo", "critic": "separate"}
    shared = {"kind": "ppo", "critic": "shared"}
    for env in ("vlm", "format"):
        for seed in (1, 2, 3):
            rates = {1: 1000, 2: 1100, 3: 1200}
            last = values(0.5 + seed / 100, rates[seed], 400e6 + seed * 1e6, critic=40e3)
            record(main, "ppo", seed, last, env=env, **ppo)
            record(main, "ppo_shared", seed, last, env=env, **shared)
            last = values(
                0.8 + (seed + (seed == 2) / 2) / 100, 3.0 * rates[seed], 200e6 + seed * 1e6
            )
            status = "failed" if (env, seed) == ("vlm", 3) else "ok"
            record(main, "grpo", seed, last, env=env, status=status, kind="grpo")
    record(main, HOSTILE, 1, values(0.5, 12000, 300e6), kind="grpo")
    (failed,) = (main / "vlm" / "grpo").glob("smoke-seed3-*")
    (failed / "error.txt").write_text(f"Traceback\n  line\nValueError: {HOSTILE}\n\n", "utf-8")
    record(other, "grpo", 1, values(0.5, 1000, 200e6))


def make_report(folder: Path) -> Report:
    """The report of ``make_records``, with a ledger of one claim and the memory of two runs."""
    memory = pd.DataFrame(
        [
            ("vlm", "grpo", "interpreter", 300e6),
            ("vlm", "grpo", "policy", 50e3),
            ("vlm", "ppo", "interpreter", 300e6),
            ("vlm", "ppo", "policy", 50e3),
            ("vlm", "ppo", "critic", 49e3),
        ],
        columns=["env", "algo", "component", "bytes"],
    )
    report = gather([folder / "main", folder / "other"], memory=memory)
    return Report(report.title, report.sections, ledger_of(report), report.memory)


def ledger_of(report: Report) -> list[Judged]:
    """The claim, judged by the tables of the report."""

    def read(name: str) -> pd.DataFrame | None:
        section, _, table = name.partition("/tables/")
        named = {s.name: s.tables for s in report.sections}
        return named[section][table.removesuffix(".csv")] if table else None

    return [judge(parse_claim("fast", ENTRY), read)]
