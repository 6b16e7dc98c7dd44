"""Memory of training by component, compared with the peak of a fresh process.

    python benchmarks/memory.py --repeats 3 --out results/reference

A row is one algorithm on one environment, trained for some iterations as in
``python -m grpo_bench.run``. Each component is measured by itself (``_memory_run.py``), none as the
rest of the peak. So their sum can be wrong, and the table shows the error.

``grpo_bench.meter.self_test`` checks the meter first.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from _compare import Table, Target, interleaved, parser, progress, spread

from grpo_bench.config import GymConfig, composed
from grpo_bench.meter import self_test
from grpo_bench.report.rows.memory_parts import PARTS
from grpo_bench.report.text.numbers import in_units, significant
from grpo_bench.report.text.writers import Column

ENVS = ("vlm", "arithmetic", "format")
ALGOS = ("grpo", "grpo_paper", "ppo", "ppo_shared")
WITHIN = 5.0  # per cent of the peak: largest error of the sum
MB = 1e6
# glibc returns freed memory at once: blocks from 64 KiB get their own mapping, the heap is trimmed
STRICT = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
RUN = Path(__file__).with_name("_memory_run.py")
READING = (
    "MB (10^6 bytes), medians of {repeats} turns. Each process is fresh and trains for 8 "
    "iterations on one thread, without evaluations. Measured: its VmHWM, and [smallest, largest]. "
    "Sum: the components at the moment of the peak, each measured by itself. Error: of the sum, in "
    "% of measured. Growth: measured minus interpreter. Explained: the sum's % of the growth."
)


def process(kind: str, config: GymConfig, variables: Mapping[str, str] = STRICT) -> dict[str, Any]:
    """Run ``_memory_run.py`` in a fresh process and return its numbers."""
    environment = {name: text for name, text in os.environ.items() if name not in STRICT}
    command = [sys.executable, str(RUN), kind]
    text = json.dumps(config.plain)
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, env=environment | dict(variables)
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
    return json.loads(done.stdout)


def measure(config: GymConfig, turn: int) -> dict[str, Any]:
    """One turn of a row: the components in bytes, their sum, the measured peak, the moment."""
    progress(f"turn {turn + 1}: {config.env.name}, {config.algo.name}")
    free = process("whole", config, variables={})
    strict = process("whole", config)
    found = process("counted", config) | process("first_use", config)
    found["interpreter"], found["code"] = free["start"], free["code"]
    found["malloc"] = max(0, free["peak"] - strict["peak"])
    parts = {name: found[name] for name in PARTS if name in found}
    return parts | {
        "moment": found["moment"],
        "measured": free["peak"],
        "total": sum(parts.values()),
    }


def row_of(labels: Mapping[str, str], turns: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A row of the table from its turns."""
    parts = {n: float(np.median([t[n] for t in turns])) for n in PARTS if n in turns[0]}
    peaks = spread("measured", (turn["measured"] for turn in turns))
    total = float(np.median([turn["total"] for turn in turns]))
    growth = peaks["measured"] - parts["interpreter"]
    return {
        **labels,
        "moment": turns[-1]["moment"],
        **parts,
        **peaks,
        "total": total,
        "error": 100 * (total / peaks["measured"] - 1),
        "growth": growth,
        "explained": 100 * (total - parts["interpreter"]) / growth,
    }


def table_of(rows: list[dict[str, Any]], repeats: int) -> Table:
    """The table, with a target for the error of the sums."""
    megabytes = in_units(MB)
    table = Table(
        caption="Memory of training small networks by component, MB",
        labels=("env", "algo", "moment"),
        columns=[
            *(Column(title, name, megabytes) for name, title in PARTS.items()),
            Column("sum", "total", megabytes),
            Column("measured", "measured", megabytes, interval=True),
            Column("error %", "error", significant),
            Column("growth", "growth", megabytes),
            Column("explained %", "explained", significant),
        ],
        repeats=repeats,
        reading=READING,
        rows=rows,
    )
    off = [abs(row["error"]) for row in rows]
    word = "met" if max(off) <= WITHIN else "missed"
    what, wanted = "sum of the components, largest error in %", f"at most {WITHIN:g}"
    table.targets.append(Target(what, wanted, word, max(off), min(off), max(off)))
    return table


def main(arguments: list[str] | None = None) -> None:
    """Check the meter, measure all rows, and write the table."""
    command = parser(__doc__)
    command.add_argument("--envs", nargs="+", choices=ENVS, default=ENVS)
    command.add_argument("--algos", nargs="+", choices=ALGOS, default=ALGOS)
    options = command.parse_args(arguments)
    if sys.platform != "linux":
        progress("memory.py needs Linux: it reads /proc")
        return
    for check in self_test():
        progress(f"meter: {check}")
    from grpo_bench.runs.job import make_warmup  # torch, which the command line can do without

    with tempfile.TemporaryDirectory() as results:
        subjects = {}
        for env in options.envs:
            for algo in options.algos:
                config = composed(f"env={env}", f"algo={algo}", f"results={results}")
                if config.env.warmup is not None:
                    make_warmup(config)  # here, so that no measured process makes it
                subjects[f"{env} {algo}"] = partial(measure, config)
        found = interleaved(subjects, options.repeats)
    rows = []
    for name, turns in found.items():
        env, algo = name.split()
        rows.append(row_of({"env": env, "algo": algo}, turns))
    table_of(rows, options.repeats).write(options.out, "memory")


if __name__ == "__main__":
    main()
