"""The Hydra launcher ``processes``: a fresh process for each run of a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from hydra.core.utils import JobReturn, JobStatus, filter_overrides
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

from grpo_bench.config import resolved
from grpo_bench.config.resolve import key_of, print_tuned, tuned_file
from grpo_bench.grpo.settings import Settings
from grpo_bench.lm.torchrun import n_processes


class ProcessLauncher(Launcher):
    """Composes and checks all configurations before the first run starts. A run that fails, is
    killed or calls ``sys.exit`` does not end the others."""

    def __init__(self, n_jobs: int | None = None) -> None:
        self.n_jobs = n_jobs

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        from grpo_bench.runs.processes import start_server

        if n_processes() > 1:
            raise SystemExit("torchrun starts the processes of one run: expected no -m")
        self.hydra_context, self.config = hydra_context, config
        start_server(config.threads)  # meanwhile Hydra composes the runs, twice

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        from grpo_bench.runs.sweep import run_all

        try:
            composed = [self._compose(words) for words in self._taken(job_overrides)]
            configs = [config for config, _ in composed]
            print_tuned(tuned for _, tuned in composed)
            outcomes = run_all([resolved(config) for config in configs], self.n_jobs)
        except (OSError, ValueError) as error:
            raise SystemExit(str(error)) from None
        bad = [outcome for outcome in outcomes if outcome.status != "ok"]
        if bad:
            lines = "".join(f"\n  {outcome.line()}" for outcome in bad)
            raise SystemExit(f"{len(bad)} of {len(outcomes)} runs did not end ok:{lines}")
        returns = []
        for overrides, config, outcome in zip(job_overrides, configs, outcomes, strict=True):
            job = JobReturn(overrides=filter_overrides(overrides), cfg=config)
            job.status, job.return_value = JobStatus.COMPLETED, outcome.score
            returns.append(job)
        return returns

    def _taken(self, job_overrides: Sequence[Sequence[str]]) -> list[list[str]]:
        """The words of each run without settings that its algorithm does not have, so that
        ``algo=grpo,ppo algo.group_size=2,4`` has one PPO. Each must be one of some algorithm."""
        keys = {key_of(word) for words in job_overrides for word in words}
        given = {key for key in keys if key.startswith("algo.")}
        if not given or len(job_overrides) < 2:
            return [list(words) for words in job_overrides]
        lacking = []
        for words in job_overrides:
            algo = self._load([word for word in words if key_of(word) not in given])["algo"]
            own = (each.name for each in fields(Settings)) if algo["kind"] == "grpo" else ()
            known = {f"algo.{name}" for name in (*algo, *own)}
            lacking.append(set() if algo["kind"] == "class" else given - known)
        nowhere = set.intersection(*lacking)
        return [
            [word for word in words if key_of(word) not in lacks - nowhere]
            for words, lacks in zip(job_overrides, lacking, strict=True)
        ]

    def _load(self, words: Sequence[str]) -> DictConfig:
        return self.hydra_context.config_loader.load_sweep_config(self.config, list(words))

    def _compose(self, overrides: Sequence[str]) -> tuple[DictConfig, Path | None]:
        config = self._load(overrides)
        tuned = tuned_file(config.hydra.runtime.choices)
        with open_dict(config):
            del config["hydra"]
        return config, tuned
