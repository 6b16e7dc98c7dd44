"""Many runs, each in its own process; a line for each that ends, the tables at the end."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console

from grpo_bench.config import RunConfig
from grpo_bench.config.schema import ControlEnvConfig, GymEnvConfig
from grpo_bench.meter.cpus import usable_cpus
from grpo_bench.records import plan, read_manifest
from grpo_bench.records.files import remove_leftovers
from grpo_bench.records.whole import is_done
from grpo_bench.runs.folders import make_folder
from grpo_bench.runs.outcome import Outcome
from grpo_bench.runs.processes import Sweep, start_server


def run_all(configs: list[RunConfig], n_jobs: int | None = None) -> list[Outcome]:
    """As ``execute_all``, and then the tables."""
    outcomes = execute_all(configs, n_jobs)
    # pandas and scipy are slow to import: not while the first runs wait
    from grpo_bench.report.folder import make_tables, write_tables
    from grpo_bench.report.text.screen import print_tables

    results = Path(configs[0].results)
    tables = make_tables(results)
    write_tables(tables, results / "tables")
    print_tables(tables)
    return outcomes


def execute_all(configs: list[RunConfig], n_jobs: int | None = None) -> list[Outcome]:
    """Check all configurations, and execute the runs whose records are not ok yet.

    Args:
        configs: those of one sweep, with one folder of results.
        n_jobs: processes at a time; None: as many as ``usable_cpus`` have room for.

    Returns:
        An outcome for each configuration, in the same order.

    Raises:
        ValueError: a configuration that could not run, or a record that cannot be read; before
            anything is started.
        OSError: a record cannot be written.
    """
    threads = max(config.threads for config in configs)
    if n_jobs is None:
        n_jobs = max(1, usable_cpus() // threads)
    if type(n_jobs) is not int or n_jobs < 1:
        raise ValueError(f"hydra.launcher.n_jobs={n_jobs}: expected a whole number, more than 0")
    places = sorted({config.results for config in configs})
    if len(places) > 1:
        raise ValueError(f"results={','.join(places)}: expected one folder for all runs of a sweep")
    context = start_server(threads)
    try:
        check_all(configs, context)
    except EOFError:  # nothing else reads from the server here
        raise ChildProcessError(
            "The process that runs are forked from was killed while it started, perhaps for lack "
            "of memory. The same command starts it again."
        ) from None
    make_folder("results", places[0])
    for name in ("tables", "warmup"):  # those of runs go when they are claimed
        remove_leftovers(Path(places[0]) / name, age=60.0)
    folders = [plan(Path(places[0]), config.plain) for config in configs]
    for folder in folders:
        read_manifest(folder)
    order = run_order(configs)
    runs = {folders[i]: configs[i] for i in order}  # each once, even if it is asked for twice
    console = Console(highlight=False)
    with Sweep(console, context, n_jobs) as sweep:
        outcomes = sweep.run_all(runs, find_warmups(runs))
    return [outcomes[folder] for folder in folders]


def check_all(configs: Iterable[RunConfig], context: Any) -> None:
    """Make each different model once, untrained, so that errors show before anything starts.

    This happens in a process of ``context``, which has imported torch; this process does not.
    """
    different = {key_without(config, "seed"): config for config in configs}
    # this process alone handles Ctrl-C
    with context.Pool(1, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        pool.map(check_one, different.values())


def check_one(config: RunConfig) -> None:
    """As ``grpo_bench.runs.job.check``; importing that module imports torch."""
    from grpo_bench.runs.job import check

    check(config)


def find_warmups(runs: dict[Path, RunConfig]) -> list[RunConfig]:
    """A configuration for each warm-up that the runs still need, long ones first.

    They are made before the runs, in parallel: a run whose warm-up another process is making would
    wait for it, and keep a core idle.
    """
    found: dict[str, RunConfig] = {}
    for folder, config in runs.items():
        if config.env.warmup is not None and not is_done(folder):
            found.setdefault(repr((config.env, config.threads)), config)
    return sorted(found.values(), key=work, reverse=True)


def run_order(configs: list[RunConfig]) -> list[int]:
    """The order of the runs. Those that differ in their algorithm only are neighbours, so that a
    machine that gets slower or faster affects both.

    Runs without a warm-up come first, while the warm-ups are made. Among the rest long ones come
    before short ones, so that all cores finish at about the same time.
    """
    apart = [key_without(config, "algo") for config in configs]
    first: dict[str, int] = {}
    for i, key in enumerate(apart):
        first.setdefault(key, i)

    def turn(i: int) -> tuple[bool, int, int, int]:
        warm = configs[i].env.warmup is not None
        return warm, -work(configs[i]), first[apart[i]], i

    return sorted(range(len(configs)), key=turn)


def key_without(config: RunConfig, name: str) -> str:
    """A text that is the same for configurations that differ in one key only."""
    return json.dumps({**config.plain, name: None}, sort_keys=True)


def work(config: RunConfig) -> int:
    """A measure of how long a run takes, for the order: the tokens it reads if each transition
    reads a whole episode. Runs of language models are longer than all others."""
    if isinstance(config.env, ControlEnvConfig):
        return config.budget.transitions
    if isinstance(config.env, GymEnvConfig):
        return config.budget.transitions * config.env.train.n_steps
    return config.budget.transitions * 10**6
