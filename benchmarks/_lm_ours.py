"""The side of ``lm_step.py`` that is this package: ``grpo_bench.lm.trainer``."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

from _lm_sides import Settings, Turns, configuration, problems, serve, task_of

from grpo_bench.lm.trainer import make_trainer


def ours(settings: Settings, turns: Turns) -> None:
    """Collect and update, on the problems that are the same for all sides."""
    config = configuration(settings)
    trainer = make_trainer(config, device="cpu")
    trainer.phases = turns.phases
    if settings.whole:
        trainer.lm = replace(trainer.lm, eos_ids=())
    given = problems(task_of(config), settings)
    with mock.patch.object(trainer.task, "sample", side_effect=given):
        while True:
            rollout = trainer.collect()
            trainer.update(rollout)
            turns.rewards.append(float(rollout.outcome.reward.mean()))
            if not turns.stepped():
                return


if __name__ == "__main__":
    serve(ours)
