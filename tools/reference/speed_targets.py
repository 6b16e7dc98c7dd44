"""What was wanted of speed and whether it came out: one table of the targets of all benchmarks.

Each benchmark writes its targets beside its table (``NAME_targets.csv``); this puts those of
``results/reference/benchmarks`` together.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from grpo_bench.report import csv, markdown
from grpo_bench.report.text.numbers import ABSENT, significant
from tools.reference.committed import BENCHMARKS, RESULTS, Committed

ORDER = (  # of the benchmarks, by their names
    *("env_speed", "train_speed", "time_to_accuracy", "start_up"),
    *("comparison", "lm_step", "scaling"),
)
READING = (
    "Median: of the turns (5, of comparison 2). Mean: geometric mean of the turns' ratios, of an "
    "exponent their mean, with its 95 % interval (Student's t); of steps per second, seconds and "
    "MB, which are no ratios, the median and [smallest, largest] turn. Met, missed: the whole "
    "interval is on that side of what was wanted; open: it is not."
)


def read_targets(folder: Path) -> pd.DataFrame:
    """The targets of all benchmarks, in their order.

    Raises:
        FileNotFoundError: a benchmark has none there.
    """
    parts = []
    for name in ORDER:
        part = pd.read_csv(folder / f"{name}_targets.csv", keep_default_na=True)
        parts.append(part.assign(benchmark=name))
    return pd.concat(parts, ignore_index=True)


def number(value: float) -> str:
    """Three digits, or nothing where there is no number."""
    return ABSENT if pd.isna(value) else significant(value)


def readable(targets: pd.DataFrame) -> pd.DataFrame:
    """The table as people read it."""
    rows = []
    for row in targets.to_dict("records"):
        low, high = number(row["low"]), number(row["high"])
        rows.append(
            {
                "benchmark": row["benchmark"],
                "what": row["what"],
                "wanted": row["wanted"],
                "median": number(row["median"]),
                "mean": f"{number(row['estimate'])}\n[{low}, {high}]",
                "verdict": row["verdict"],
            }
        )
    table = pd.DataFrame(rows)
    notes = targets.dropna(subset="note")
    table.attrs = {
        "caption": "Speed: what was wanted, and what came out",
        "header": "\n".join(dict.fromkeys(targets["measured"])),
        "reading": READING,
        "footnotes": [f"{row.what}: {row.note}" for row in notes.itertuples()],
    }
    return table


def speed_targets(committed: Committed) -> dict[Path, str]:
    """``speed.md`` and ``speed.csv``."""
    targets = read_targets(committed.root / BENCHMARKS)
    return {
        RESULTS / "speed.md": markdown(readable(targets)),
        RESULTS / "speed.csv": csv(targets),
    }
