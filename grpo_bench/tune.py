"""``python -m grpo_bench.tune``: the same number of trials for every algorithm.

    python -m grpo_bench.tune                                  # what conf/tune.yaml lists
    python -m grpo_bench.tune envs=[vlm] algos=[grpo,ppo] trials=20
    python -m grpo_bench.run -m seed=1,2,3     # uses the result, unless tuned=none

A trial is a run of the budget ``tuning``: as long as a reported one, on seeds and problems that no
reported run sees. ``grpo_bench.tuning.trials`` chooses the settings. Each trial has a record, so
the same command continues a search that was interrupted.

Every algorithm gets all its trials on the first seed. The first trial, with the settings of the
algorithm's file, and the best of the others also get the other seeds. The best mean over the seeds
goes to ``conf/tuned/<env>/<algo>.yaml``. A trial that fails counts as one and is not chosen.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from omegaconf import DictConfig

from grpo_bench.config.resolve import config_folders
from grpo_bench.records.files import write_atomically
from grpo_bench.report.text.numbers import share
from grpo_bench.runs.door import program
from grpo_bench.runs.folders import make_folder
from grpo_bench.runs.stopping import GOES_ON, stopping
from grpo_bench.tuning.result import result_files
from grpo_bench.tuning.search import (
    all_scores,
    all_trials,
    check_settings,
    run_trials,
)
from grpo_bench.tuning.trials import best


@program("tune")
def main(settings: DictConfig) -> None:
    """Tune, and write the result."""
    try:
        check_settings(settings)
        make_folder("out", settings.out)
        trials = all_trials(settings)
        n_rest = len(settings.seeds) - 1
        runs = len(trials) * (settings.trials + settings.finalists * n_rest)
        print(
            f"{settings.trials} trials of each of {len(trials)}, then {settings.finalists} "
            f"finalists on {n_rest} more seeds: {runs} runs"
        )
        all_scores(trials, settings, partial(run_trials, n_jobs=settings.n_jobs))
    except (OSError, ValueError) as error:
        raise SystemExit(str(error)) from None
    for path, text in result_files(trials, settings).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode())
    for some in trials:
        won = best(some)
        print(f"{won.env} {won.algo}: trial {won.number} ({won.words()}), {share(won.score)}")
    print(f"Written to {settings.out} and {Path(settings.results) / 'tables'}")
    if Path(settings.out).resolve() not in [folder / "tuned" for folder in config_folders()]:
        print(f"Runs do not look there: expected out=conf/tuned, not out={settings.out}")


if __name__ == "__main__":
    stopping(main, GOES_ON)
