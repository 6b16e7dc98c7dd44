"""How long a run takes to start, and how much memory it needs, in fresh processes.

    python benchmarks/start_up.py --repeats 5 --out results/benchmarks

Start-up ends when ``python -m grpo_bench.run`` calls ``learn``; the supervised warm-up of the token
tasks does not count. For the next run of a sweep, start-up begins when the sweep takes that run
from its queue. The yardstick is what every run needs: ``import torch, stable_baselines3``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from _compare import Table, Target, interleaved, parser, ratio, ratio_columns, spread, verdict

from grpo_bench.report.text.numbers import in_units, significant
from grpo_bench.report.text.writers import Column

ENVS = ("vlm", "arithmetic", "format")
YARDSTICK = "import torch, stable_baselines3"
# the first optimiser makes torch import its compiler; EagerAdam avoids that
OPTIMISER = "torch.optim.Adam([torch.zeros(1, requires_grad=True)])"
START_LIMIT = 1.3  # times the yardstick
NEXT_LIMIT = 0.3  # times the yardstick, for each further run of a sweep
MEMORY_LIMIT = 1000.0  # MB, at the peak of a whole run

ASKED = "-- the measurement begins here --"
MARK = "-- the measurement ends here --"
# The numbers come after the mark, so that reading them is not measured.
REPORT = f"""
import os

def report(*_, **__):
    print({MARK!r}, flush=True)
    from grpo_bench.meter import peak_resident_bytes, resident_bytes
    resident = resident_bytes()
    print(peak_resident_bytes(), resident, flush=True)
    os._exit(0)
"""
CHILD = f"""
import runpy, sys
{REPORT}
def run(*arguments):
    sys.argv[1:] = arguments
    try:
        runpy.run_module("grpo_bench.run", run_name="__main__", alter_sys=True)
    except SystemExit as error:
        if error.code:
            raise

{{code}}
report()
"""
# A run imports torch itself; its ``learn`` can be replaced only after that.
LATER = """
from grpo_bench import config
resolved = config.resolved

def then(*arguments):
    from grpo_bench import GRPO
    GRPO.learn = report
    return resolved(*arguments)

config.resolved = then
"""
# The fork server of a sweep imports this for all its runs.
MARKED = f"""
from grpo_bench import GRPO
{REPORT}
GRPO.learn = report
"""
# The second run counts, from the moment the sweep takes it from the queue.
SECOND = f"""
begin = Sweep._begin

def asked(*arguments):
    print({ASKED!r}, flush=True)
    begin(*arguments)

Sweep._begin = asked
"""


class Process(NamedTuple):
    """Measurements of a fresh process, from its start to the mark."""

    seconds: float
    peak: int  # most resident bytes
    resident: int  # resident bytes at the mark


def fresh(code: str, turn: int, marks: int = 1, modules: str = "") -> Process:
    """Run code in a fresh Python on one thread.

    Args:
        marks: the number of the mark that ends the measurement. It begins with the process, or when
            the code prints ``ASKED``.
        modules: another folder to import from.

    Raises:
        RuntimeError: the code failed; with its errors.
    """
    path = os.pathsep.join(filter(None, (modules, os.environ.get("PYTHONPATH"))))
    start = time.perf_counter()
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            [sys.executable, "-c", CHILD.format(code=code)],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        ) as child,
    ):
        assert child.stdout is not None
        for line in child.stdout:
            if line.strip() == ASKED:
                start = time.perf_counter()
            marks -= line.strip() == MARK
            if not marks:
                seconds = time.perf_counter() - start
                peak, resident = map(int, child.stdout.readline().split())
                return Process(seconds, peak, resident)
        errors.seek(0)
        raise RuntimeError(f"{code!r} ended before its mark:\n{errors.read()}")


def start_of_a_run(env: str, results: Path) -> str:
    """Code that runs up to ``learn``."""
    arguments = [
        f"env={env}",
        "tuned=none",
        "budget=smoke",
        f"results={results}",
        "env.warmup=null",
    ]
    return f"{LATER}\nrun(*{arguments!r})"


def run_of_a_sweep(env: str, results: Path, second: bool) -> Callable[[int], Process]:
    """Measure a sweep, one run at a time, whose runs end at ``learn``: from the start to the first
    run's ``learn``, or from the request for the second run to its ``learn``."""
    (results / "marked.py").write_text(MARKED)
    arguments = ["-m", f"env={env}", "algo=grpo", "seed=1,2", "budget=smoke"]
    arguments += [f"results={results}/sweep", "env.warmup=null", "hydra.launcher.n_jobs=1"]
    code = (
        "from grpo_bench.runs.processes import PRELOAD, Sweep\n"
        f"PRELOAD.append('marked')\n{SECOND if second else ''}\nrun(*{arguments!r})"
    )
    return partial(fresh, code, marks=1 + second, modules=str(results))


def whole_run(env: str, algo: str, results: Path) -> str:
    """Code for a whole run with the smallest budget and its warm-up. A longer run has the same
    peak: it keeps one iteration at a time."""
    arguments = [f"env={env}", f"algo={algo}", "budget=smoke"]
    return (
        "import tempfile\n"
        f"with tempfile.TemporaryDirectory(dir={str(results)!r}) as folder:\n"
        f"    run(*{arguments!r}, f'results={{folder}}')"
    )


def memory_verdict(name: str, peaks: Mapping[str, float]) -> Target:
    """Compare the peaks of the turns, in bytes, with the limit."""
    megabytes = {key: value / 1e6 for key, value in peaks.items()}
    return verdict(f"{name}, peak MB", megabytes, at_most=MEMORY_LIMIT, name="peak")


def main(arguments: list[str] | None = None) -> None:
    command = parser(__doc__)
    command.add_argument("--envs", nargs="+", choices=ENVS, default=ENVS)
    command.add_argument("--algos", nargs="+", default=("grpo", "ppo"), help="of the whole runs")
    options = command.parse_args(arguments)
    table = Table(
        caption="Start-up and memory of a process",
        labels=("process",),
        columns=[
            Column("seconds", "seconds", significant, interval=True),
            *ratio_columns(f"this / {YARDSTICK}"),
            Column("peak MB", "peak", in_units(1e6), interval=True),
            Column("resident MB", "resident", in_units(1e6), interval=True),
        ],
        repeats=options.repeats,
    )
    with tempfile.TemporaryDirectory() as results:
        starts = {f"start of a run, {env}": env for env in options.envs}
        codes = {
            "import grpo_envs": "import grpo_envs",
            YARDSTICK: YARDSTICK,
            "the same, and an optimiser": f"{YARDSTICK}\n{OPTIMISER}",
            "from grpo_bench import GRPO": "from grpo_bench import GRPO",
            "python -m grpo_bench.run --help": "run('--help')",
        }
        codes |= {name: start_of_a_run(env, Path(results)) for name, env in starts.items()}
        for env in options.envs:
            for algo in options.algos:
                name = f"whole run, {env}, {algo}"
                codes[name] = whole_run(env, algo, Path(results))
        subjects: dict[str, Callable[[int], Process]] = {
            name: partial(fresh, code) for name, code in codes.items()
        }
        for env in options.envs:
            for which in ("first", "next"):
                name = f"{which} run of a sweep, {env}"
                subjects[name] = run_of_a_sweep(env, Path(results), second=which == "next")
        processes = interleaved(subjects, options.repeats)
    seconds = {name: [process.seconds for process in turns] for name, turns in processes.items()}
    for name, turns in processes.items():
        against = {} if name == YARDSTICK else ratio(seconds[name], seconds[YARDSTICK])
        peaks = spread("peak", [process.peak for process in turns])
        resident = spread("resident", [process.resident for process in turns])
        table.add({"process": name}, spread("seconds", seconds[name]), against, peaks, resident)
        limit = START_LIMIT if name in starts else NEXT_LIMIT if name.startswith("next") else None
        if limit is not None:
            what = f"{name} / {YARDSTICK}"
            table.targets.append(verdict(what, against, at_most=limit))
        elif name.startswith("whole run"):
            table.targets.append(memory_verdict(name, peaks))
    table.write(options.out, "start_up")


if __name__ == "__main__":
    main()
