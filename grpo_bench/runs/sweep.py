"""Many runs, each in a process of its own; a line for each that ends, the tables at the end."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console

from grpo_bench.config import Config
from grpo_bench.records import plan, read_manifest
from grpo_bench.runs.outcome import Outcome
from grpo_bench.runs.processes import Sweep, start_server


def run_all(configs: list[Config], n_jobs: int | None = None) -> list[Outcome]:
    """As ``carry_out``, and then the tables."""
    outcomes = carry_out(configs, n_jobs)
    # pandas and scipy are slow to import: not while the first runs wait
    from grpo_bench.report.folder import make_tables, write_tables
    from grpo_bench.report.text.screen import print_tables

    results = Path(configs[0]["results"])
    tables = make_tables(results)
    write_tables(tables, results / "tables")
    print_tables(tables)
    return outcomes


def carry_out(configs: list[Config], n_jobs: int | None = None) -> list[Outcome]:
    """Check all configurations and carry out those that are not ok yet.

    Args:
        configs: resolved configurations of one sweep, with one folder of results.
        n_jobs: processes side by side; None: as many as the cores have room for.

    Returns:
        An outcome for each configuration, in the same order.

    Raises:
        ValueError: a configuration that could not run, or a record that cannot be read; before
            anything is started.
        OSError: the results cannot be written.
    """
    threads = max(config["threads"] for config in configs)
    if n_jobs is None:
        n_jobs = max(1, (os.cpu_count() or 1) // threads)
    if type(n_jobs) is not int or n_jobs < 1:
        raise ValueError(f"hydra.launcher.n_jobs={n_jobs}: expected a whole number, more than 0")
    places = sorted({config["results"] for config in configs})
    if len(places) > 1:
        raise ValueError(f"results={','.join(places)}: expected one folder for all runs of a sweep")
    context = start_server(threads)
    check_all(configs, context)
    results = Path(places[0])
    folders = [plan(results, config) for config in configs]
    for folder in folders:
        read_manifest(folder)
    order = in_turns(configs)
    runs = {folders[i]: configs[i] for i in order}  # each once, even if it was asked for twice
    console = Console(highlight=False)
    with Sweep(console, context, n_jobs) as sweep:
        outcomes = sweep.carry_out(runs, find_warmups(runs))
    return [outcomes[folder] for folder in folders]


def check_all(configs: Iterable[Config], context: Any) -> None:
    """Make each different model once, untrained: what is wrong shows before anything starts.

    In a process of ``context``, which has torch imported already: this one does without.
    """
    different = {json.dumps({**config, "seed": None}, sort_keys=True): config for config in configs}
    # Ctrl-C is for this process to answer
    with context.Pool(1, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        pool.map(check_one, different.values())


def check_one(config: Config) -> None:
    """As ``grpo_bench.runs.job.check``, which to import is to import torch."""
    from grpo_bench.runs.job import check

    check(config)


def find_warmups(runs: dict[Path, Config]) -> list[Config]:
    """A configuration for each warm-up that runs which are not ok yet will need, long ones first.

    They are made before the runs, side by side: a run that found another at work on its warm-up
    would wait for it, and a core with it.
    """
    found: dict[str, Config] = {}
    for folder, config in runs.items():
        if config["env"]["warmup"] is not None and read_manifest(folder).status != "ok":
            found.setdefault(json.dumps([config["env"], config["threads"]], sort_keys=True), config)
    return sorted(found.values(), key=work, reverse=True)


def in_turns(configs: list[Config]) -> list[int]:
    """The order of the runs: those that differ in their algorithm only stand side by side, so that
    a machine that gets slower or faster does it to both.

    Those that need no warm-up come first, while the warm-ups are made. For the rest long ones come
    before short ones, so that the cores are done at about the same time.
    """
    apart = [json.dumps({**config, "algo": None}, sort_keys=True) for config in configs]
    first: dict[str, int] = {}
    for i, key in enumerate(apart):
        first.setdefault(key, i)

    def turn(i: int) -> tuple[bool, int, int, int]:
        warm = configs[i]["env"]["warmup"] is not None
        return warm, -work(configs[i]), first[apart[i]], i

    return sorted(range(len(configs)), key=turn)


def work(config: Config) -> int:
    """How long a run takes, as far as an order needs it: tokens read if each of its transitions
    reads a whole episode. Those of language models, of which each is a pass, are all longer."""
    if "model" in config:
        return config["budget"]["transitions"] * 10**6
    return config["budget"]["transitions"] * config["env"]["train"]["n_steps"]
