"""Runs that differ in their seed alone, carried out together: as many records as seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import torch
from gymnasium import spaces

from grpo_bench.batched.rollout import task_of_model
from grpo_bench.batched.train import Company, Metrics
from grpo_bench.config import Config
from grpo_bench.evaluation import evaluate
from grpo_bench.exports import sinks
from grpo_bench.grpo.algorithm import GRPO
from grpo_bench.job import News, device_of, make_model, nobody
from grpo_bench.meter.clock import Phases
from grpo_bench.meter.memory import peak_bytes, reset_peak
from grpo_bench.meter.provenance import provenance
from grpo_bench.recorder import component_bytes
from grpo_bench.records import Run, claim, plan
from grpo_bench.schedule import is_due
from grpo_bench.seeds import integer_seed
from grpo_envs.task import Split


def why_alone(config: Config) -> str:
    """Why runs of a configuration cannot share a process; "" if they can."""
    if config["algo"]["kind"] != "grpo":
        return f"algo.kind={config['algo']['kind']} is not GRPO"
    if "model" in config:
        return "it trains a language model"
    if config["env"]["network"]["body"] != "mlp":
        return f"env.network.body={config['env']['network']['body']} has no batched form"
    if device_of(config["device"]) != "cpu":
        return f"device={config['device']} is not the cpu"
    if config["env"]["warmup"] is not None:
        return "it starts from a warm-up"
    model = make_grpo(config)
    if task_of_model(model).max_steps != 1 or not isinstance(model.action_space, spaces.Discrete):
        return f"{config['env']['id']} has episodes of more than one step"
    if model.max_refills:
        return f"algo.max_refills={model.max_refills}: seeds would differ in transitions"
    if model.mixed_start:
        return "algo.mixed_start: members of a group would not share their observation"
    return ""


def make_grpo(config: Config) -> GRPO:
    """The untrained model of a configuration whose kind is ``grpo``."""
    model = make_model(config, "cpu")
    assert isinstance(model, GRPO)
    return model


def execute_together(
    configs: Sequence[Config], news: News = nobody, concurrency: int = 1
) -> list[Path]:
    """Carry out runs of one configuration with different seeds in this process, but for those that
    are ok already or going on elsewhere. A seed whose numbers stop being finite ends as a run of
    its own would, and the others go on.

    Args:
        configs: equal but for ``seed``, without a reason of ``why_alone``.
        concurrency: processes side by side that do as this one does.

    Returns:
        The folders of the records. Any other exception is in all records before it is raised.
    """
    config = configs[0]
    torch.set_num_threads(config["threads"])
    reset_peak()
    folders = [plan(Path(each["results"]), each) for each in configs]
    origin, beside = provenance(), concurrency * len(configs)
    with ExitStack() as stack:
        runs = []
        for folder, each in zip(folders, configs, strict=True):
            seeds = {name: integer_seed(each["seed"], name) for name in ("policy", "environment")}
            run = claim(folder, each, seeds=seeds, provenance=origin, concurrency=beside)
            if run is not None:
                runs.append(stack.enter_context(run))
                run.sinks = sinks(each, folder)
        if runs:
            learn(runs, news)
    return folders


def learn(runs: Sequence[Run], news: News) -> None:
    """Train and record claimed runs, from their first evaluation to their checkpoints."""
    config = runs[0].manifest.config
    phases = Phases()
    with phases("setup"):
        makers = [partial(make_grpo, run.manifest.config) for run in runs]
        company = Company(makers, config["budget"]["transitions"])
    recorder = CompanyRecorder(runs, company, phases)
    evaluations, split = config["budget"]["evaluations"], config["budget"]["split"]
    try:
        recorder.evaluate(split)
        while company.num_timesteps < company.total and recorder.going():
            share = company.num_timesteps / company.total
            if company.num_timesteps and is_due(share, recorder.evaluated, evaluations):
                recorder.evaluate(split)
            news("training", share, recorder.success)
            with phases("rollout"):
                rollout = company.collect()
            with phases("update"):
                metrics = company.update(rollout)
            recorder.log(metrics)
    finally:
        for seed, run in recorder.going():
            recorder.note_findings(seed, run)
    recorder.finish()


class CompanyRecorder:
    """What ``Recorder`` is for one run, for runs that learn together.

    Metrics and evaluations have the names of single runs. What the clock and the kernel say is of
    the whole company: such numbers have names of their own, ``company/...``, and the manifest's
    ``extra`` says how many they were, so that no table takes them for a single run's. The columns
    ``seconds`` and ``peak_bytes`` are the company's, too.
    """

    def __init__(self, runs: Sequence[Run], company: Company, phases: Phases) -> None:
        self.runs, self.company, self.phases = runs, company, phases
        self.env = runs[0].manifest.config["env"]
        budget = runs[0].manifest.config["budget"]
        self.split: Split = budget["split"]
        self.test: bool = budget["test"]
        self.evaluated = 0  # evaluations on that split so far
        self.success = math.nan  # mean over the seeds
        for run in runs:
            run.extra["company"] = len(runs)

    def going(self) -> list[tuple[int, Run]]:
        """The runs that have not ended, with their places in the company."""
        return [(i, run) for i, run in enumerate(self.runs) if run.manifest.status == "running"]

    def log(self, metrics: Metrics) -> None:
        """Metrics of an iteration, one value for each seed; a NaN among those of the rollout is
        one that the seed does not have."""
        moment = self._moment()
        for seed, run in self.going():
            mine = {name: values[seed] for name, values in metrics.items()}
            finite = {name: value for name, value in mine.items() if math.isfinite(value)}
            bad = [name for name in mine if name not in finite and name.startswith("train/")]
            if bad:
                self.note_findings(seed, run)
                what = f"FloatingPointError: {bad} not finite after {moment[0]} transitions"
                run.finish("nan", what)
                self.company.silence(seed)
            else:
                run.log(*moment, finite)

    def evaluate(self, split: Split) -> None:
        """Every seed plays all problems of the split."""
        transitions, means_of = self.company.num_timesteps, {}
        for seed, run in self.going():
            self.company.give(seed)
            with self.phases("evaluation"):
                model = self.company.models[seed]
                columns = evaluate(model, self.env["id"], self.env["kwargs"], split)
            run.evaluation(split, transitions, columns)
            means = {name: float(columns[name].mean()) for name in columns if name != "problem_id"}
            means_of[seed] = {f"eval/{split}/{name}": mean for name, mean in means.items()}
        moment = self._moment()
        for seed, run in self.going():
            run.log(*moment, means_of[seed])
            if split == self.split:
                run.flush()
        if split == self.split:
            self.evaluated += 1
            successes = [means[f"eval/{split}/success"] for means in means_of.values()]
            self.success = sum(successes) / len(successes) if successes else math.nan

    def finish(self) -> None:
        """The last evaluations, the totals, and a checkpoint of each seed."""
        together = {
            "company/peak_bytes": peak_bytes(),
            "company/transitions_per_second": (
                len(self.runs) * self.company.num_timesteps / self._train_seconds()
            ),
        }
        self.evaluate(self.split)
        if self.test:
            self.evaluate("test")
        seconds = self.phases.seconds
        together |= {f"company/{name}_seconds": value for name, value in seconds.items()}
        task = task_of_model(self.company.settings)
        scores = {
            "task/random_score": task.random_score,
            "task/oracle_score": task.oracle_score,
        }
        moment = self._moment()
        for seed, run in self.going():
            model = self.company.models[seed]
            run.log(*moment, {**together, **component_bytes(model), **scores})
            (run.folder / "checkpoint").mkdir(exist_ok=True)
            model.save(run.folder / "checkpoint" / "model.zip")

    def _moment(self) -> tuple[int, int, float, int]:
        """Transitions and gradient steps of each seed; seconds of training and the peak of all."""
        company = self.company
        return company.num_timesteps, company.n_updates, self._train_seconds(), peak_bytes()

    def _train_seconds(self) -> float:
        return sum(self.phases.seconds.get(name, 0.0) for name in ("rollout", "update"))

    def note_findings(self, seed: int, run: Run) -> None:
        """What the doctor found in a seed goes into its manifest."""
        findings = self.company.models[seed].doctor.findings
        if findings:
            run.extra["findings"] = list(findings.values())
