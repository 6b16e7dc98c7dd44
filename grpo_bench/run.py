"""``python -m grpo_bench.run``: one run. ``-m``: a sweep, by default the whole comparison.

    python -m grpo_bench.run env=format algo=ppo seed=3
    python -m grpo_bench.run -m seed=1,2,3
    python -m grpo_bench.run -m env=vlm algo=grpo,ppo,ppo_shared 'seed=range(0,10)' budget=full
    torchrun --nproc-per-node 2 -m grpo_bench.run model=smollm2_135m env=arithmetic_text

Every run writes a record (see ``grpo_bench.records``); a sweep ends with the tables.
"""

from __future__ import annotations

import gc
import math
import os
import sys

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from grpo_bench.config import CONF, check_tuned, resolved
from grpo_bench.lm.torchrun import check_processes, rank
from grpo_bench.runs.hydra_setup import register, scratch
from grpo_bench.runs.stopping import GOES_ON, stopping

register()

ONE_PROCESS = (
    "This launcher keeps all runs in one process: their peaks of memory are not theirs alone, a "
    "run that is killed ends the sweep, and there are no tables (python -m grpo_bench.tables)."
)


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
def main(config: DictConfig) -> float:
    """One run in this process; its success rate at the end, on the split of its budget."""
    gc.disable()  # imports leave no garbage, and to look for it takes a fifth of their time
    from grpo_bench.records import RecordError
    from grpo_bench.runs.console import OneRun
    from grpo_bench.runs.job import check, execute
    from grpo_bench.runs.outcome import outcome, run_name

    gc.enable()
    gc.freeze()  # nor is it looked for among them later, 0.1 s each time

    hydra_config = HydraConfig.get()
    if hydra_config.mode is RunMode.MULTIRUN and hydra_config.job.num == 0:
        print(ONE_PROCESS)
    sweep = hydra_config.runtime.choices.get("experiment")
    if sweep and hydra_config.mode is RunMode.RUN:
        raise SystemExit(f"experiment={sweep} is a sweep: expected -m beside it")
    try:
        check_tuned(hydra_config.runtime.choices)
        settings = resolved(config)
        if rank():
            # The first process of torchrun writes the record, and the exports.
            settings |= {"results": scratch(), "tensorboard": False, "wandb": None}
        check_processes(settings)
        check(settings)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    try:
        with OneRun(run_name(settings)) as progress:
            folder = execute(settings, progress.show)
        if rank():
            return math.nan  # what it was, the first process tells
        ended = outcome(folder, settings)
    except (OSError, RecordError) as error:
        raise SystemExit(str(error)) from None
    print(ended.line(), f"Record: {folder}", sep="\n")
    if ended.status != "ok":
        raise SystemExit(1)
    return ended.score


if __name__ == "__main__":
    if rank():
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (until the end)
    stopping(main, GOES_ON)
