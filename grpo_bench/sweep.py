"""Many runs: each in a process of its own, a line for each that ends, the tables at the end."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console

from grpo_bench.config import Config
from grpo_bench.outcome import Outcome
from grpo_bench.processes import Sweep, start_server
from grpo_bench.records import plan, read_manifest
from grpo_bench.tables import make_tables, print_tables, write_tables


def run_all(configs: list[Config], n_jobs: int | None = None) -> list[Outcome]:
    """Check all configurations, carry out those that are not ok yet, print the tables.

    Args:
        configs: resolved configurations of one sweep, with one folder of results.
        n_jobs: runs side by side; None: as many as the cores have room for.

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
    check_all(configs)
    results = Path(places[0])
    folders = [plan(results, config) for config in configs]
    for folder in folders:
        read_manifest(folder)
    order = in_turns(configs)
    runs = {folders[i]: configs[i] for i in order}  # each once, even if it was asked for twice
    with Sweep(Console(highlight=False), context, n_jobs) as sweep:
        outcomes = sweep.carry_out(runs)
    tables = make_tables(results)
    write_tables(tables, results / "tables")
    print_tables(tables)
    return [outcomes[folder] for folder in folders]


def check_all(configs: Iterable[Config]) -> None:
    """Make each different model once, untrained: what is wrong shows before anything starts."""
    from grpo_bench.job import check

    seen = set()
    for config in configs:
        key = json.dumps({**config, "seed": None}, sort_keys=True)
        if key not in seen:
            seen.add(key)
            check(config)


def in_turns(configs: list[Config]) -> list[int]:
    """The order of the runs: those that differ in their algorithm only stand side by side, so that
    a machine that gets slower or faster does it to both."""
    apart = [json.dumps({**config, "algo": None}, sort_keys=True) for config in configs]
    first = {key: apart.index(key) for key in apart}
    return sorted(range(len(configs)), key=lambda i: (first[apart[i]], i))
