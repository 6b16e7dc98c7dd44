"""``python -m grpo_bench.tune``: the same number of trials for every algorithm.

    python -m grpo_bench.tune                                  # conf/tune.yaml says of what
    python -m grpo_bench.tune envs=[vlm] algos=[grpo,ppo] trials=20
    python -m grpo_bench.run -m seed=1,2,3     # takes it up, unless tuned=none

A trial is a run of the budget ``tuning``: as long as a reported one, on seeds and problems that no
reported run sees; ``grpo_bench.tuning.trials`` says which settings are tried. Each trial has a
record, so the same command continues a search that was interrupted.

Every algorithm gets all its trials on the first seed; then the first trial, which is the algorithm
as its file says, and the best of the others get the other seeds. What is best on the mean over the
seeds goes to ``conf/tuned/<env>/<algo>.yaml``. A trial that fails counts as one and is not chosen.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig

from grpo_bench.config import CONF
from grpo_bench.records.files import write_atomically
from grpo_bench.report.text.numbers import share
from grpo_bench.runs.hydra_setup import register
from grpo_bench.runs.stopping import GOES_ON, stopping
from grpo_bench.tuning.result import result_files
from grpo_bench.tuning.search import (
    all_scores,
    all_trials,
    carried_out,
    check_folder,
    check_settings,
)
from grpo_bench.tuning.trials import best

register()


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="tune")
def main(settings: DictConfig) -> None:
    """Tune, and write what was found."""
    try:
        check_settings(settings)
        check_folder(settings.out)
        trials = all_trials(settings)
        n_rest = len(settings.seeds) - 1
        runs = len(trials) * (settings.trials + settings.finalists * n_rest)
        print(
            f"{settings.trials} trials of each of {len(trials)}, then {settings.finalists} "
            f"finalists on {n_rest} more seeds: {runs} runs"
        )
        all_scores(trials, settings, partial(carried_out, n_jobs=settings.n_jobs))
    except (OSError, ValueError, HydraException) as error:
        raise SystemExit(str(error)) from None
    for path, text in result_files(trials, settings).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode())
    for some in trials:
        won = best(some)
        print(f"{won.env} {won.algo}: trial {won.number} ({won.words()}), {share(won.score)}")
    print(f"Written to {settings.out} and {Path(settings.results) / 'tables'}")


if __name__ == "__main__":
    stopping(main, GOES_ON)
