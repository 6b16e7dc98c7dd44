"""What was wanted of speed and whether it came out: one table of the targets of all benchmarks.

    python scripts/speed_table.py            # write results/reference/speed.md and speed.csv
    python scripts/speed_table.py --check    # change nothing; exit 1 if they would change

Each benchmark writes its targets beside its table (``NAME_targets.csv``); this puts those of
``results/reference/benchmarks`` together.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from grpo_bench.report import csv, markdown
from grpo_bench.report.numbers import ABSENT, significant

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = Path("results/reference")
ORDER = (  # of the benchmarks, by their names
    *("env_speed", "train_speed", "time_to_accuracy", "batched_seeds", "start_up"),
    *("comparison", "lm_step", "scaling"),
)
READING = (
    "Median: of the turns (5, of comparison 2). Mean: geometric mean of the turns' ratios, of an "
    "exponent their mean, with its 95 % interval (Student's t); of steps per second, seconds and "
    "MB, which are no ratios, the median and [smallest, largest] turn. Met, missed: the whole "
    "interval is on that side of what was wanted; open: it is not."
)


def found(folder: Path) -> pd.DataFrame:
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


def shown(targets: pd.DataFrame) -> pd.DataFrame:
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


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Write or check the table; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="exit 1 if it is not up to date")
    check = parser.parse_args(arguments).check
    targets = found(root / REFERENCE / "benchmarks")
    texts = {"md": markdown(shown(targets)), "csv": csv(targets)}
    status = 0
    for ending, text in texts.items():
        path = root / REFERENCE / f"speed.{ending}"
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        print(f"{path.relative_to(root)}: {'not what the targets give' if check else 'written'}")
        if check:
            status = 1
        else:
            path.write_text(text, encoding="utf-8")
    return status


if __name__ == "__main__":
    raise SystemExit(main())
