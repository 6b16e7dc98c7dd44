"""``python -m grpo_bench.run``: one run. ``-m``: a sweep, by default the whole comparison.

    python -m grpo_bench.run env=format algo=ppo seed=3
    python -m grpo_bench.run -m seed=1,2,3
    python -m grpo_bench.run -m env=vlm algo=grpo,ppo,ppo_shared 'seed=range(0,10)' budget=full
    torchrun --nproc-per-node 2 -m grpo_bench.run model=smollm2_135m env=arithmetic_text

Every run writes a record (see ``grpo_bench.records``). A sweep ends with the tables.
"""

from __future__ import annotations

import gc
import math
import os
import sys
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from grpo_bench.config import resolved
from grpo_bench.config.resolve import print_tuned, tuned_file
from grpo_bench.lm.torchrun import check_processes, rank
from grpo_bench.runs.door import program
from grpo_bench.runs.folders import make_folder
from grpo_bench.runs.hydra_setup import scratch
from grpo_bench.runs.stopping import GOES_ON, stopping

ONE_PROCESS = (
    "This launcher keeps all runs in one process: a run's peak of memory includes earlier runs, a "
    "run that is killed ends the sweep, and no tables are made (python -m grpo_bench.tables)."
)


@program("config")
def main(config: DictConfig) -> float:
    """One run in this process; its success rate at the end, on the split of its budget."""
    gc.disable()  # imports leave no garbage, and collections take a fifth of their time
    from grpo_bench.records import RecordError, plan
    from grpo_bench.runs.console import OneRun
    from grpo_bench.runs.job import check, execute
    from grpo_bench.runs.outcome import outcome

    gc.enable()
    gc.freeze()  # later collections skip what was imported, 0.1 s each

    hydra_config = HydraConfig.get()
    if hydra_config.mode is RunMode.MULTIRUN and hydra_config.job.num == 0:
        print(ONE_PROCESS)
    sweep = hydra_config.runtime.choices.get("experiment")
    if sweep and hydra_config.mode is RunMode.RUN:
        raise SystemExit(f"experiment={sweep} is a sweep: expected -m")
    try:
        tuned = tuned_file(hydra_config.runtime.choices)
        settings = resolved(config)
        if rank():  # the first process of torchrun writes the record, and the exports
            own = {"results": scratch(), "tensorboard": False, "wandb": None}
            settings = settings.changed(own)
        check_processes(settings)
        check(settings)
        make_folder("results", settings.results)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    print_tuned([tuned])
    try:
        before = outcome(plan(Path(settings.results), settings.plain), settings, settings.name)
        if before.status == "damaged":
            print(before.again())
        with OneRun(settings.name) as progress:
            folder = execute(settings, progress.show)
        if rank():
            return math.nan  # the first process reports it
        ended = outcome(folder, settings, settings.name)
    except (OSError, RecordError) as error:
        raise SystemExit(str(error)) from None
    print(ended.line(), f"Record: {folder}", sep="\n")
    if ended.status != "ok":
        raise SystemExit(1)
    return ended.score


if __name__ == "__main__":
    if rank():
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (open until the end)
    stopping(main, GOES_ON)
