"""A side of ``lm_step.py``: this package, ``grpo_bench.lm.trainer``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from _lm_sides import Settings, Turns, by_turns, configuration, problems, serve

from grpo_bench.lm.models import LanguageModel
from grpo_bench.lm.setup import make_trainer
from grpo_bench.lm.tasks import TextTask
from grpo_envs.task import BoolArray, IntArray, Outcome


def ours(settings: Settings, turns: Turns) -> None:
    """Collect and update until no more steps are requested."""
    config = configuration(settings)
    trainer = make_trainer(config, phases=turns.phases)
    trainer.task = GivenProblems(config.env, trainer.lm, settings)
    if settings.whole:
        trainer.lm = replace(trainer.lm, eos_ids=())
    while True:
        rollout = trainer.collect()
        trainer.update(rollout)
        turns.rewards.append(float(rollout.success.mean()))
        if not turns.stepped():
            return


class GivenProblems(TextTask):
    """The task with the problems that all sides share."""

    def __init__(self, env: dict[str, Any], lm: LanguageModel, settings: Settings) -> None:
        super().__init__(env, lm)
        self.given = problems(self.task, settings)
        self.whole = settings.whole
        self.pay_truncated = True  # the other sides judge the text alone

    def sample(self, rng: np.random.Generator, n: int) -> IntArray:
        return next(self.given)

    def judge(self, ids: IntArray, texts: list[str], truncated: BoolArray) -> Outcome:
        outcome = super().judge(ids, texts, truncated)
        return replace(outcome, reward=by_turns(outcome.reward)) if self.whole else outcome


if __name__ == "__main__":
    serve(ours)
