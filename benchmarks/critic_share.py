"""The critic's share of PPO's time on small networks, and so the most that leaving it out can gain.

    python benchmarks/critic_share.py --repeats 5 --out results/benchmarks

All algorithms use the settings of ``python -m grpo_bench.run`` and start from untrained weights.
``ppo, critic left out`` is PPO with values of 0 instead of a critic's network: it is 1 / (1 - c)
times as fast as PPO, where c is the critic's share of PPO's seconds. Any gain of GRPO beyond that
has other causes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from _compare import Table, interleaved, parser, progress, ratio, ratio_columns, spread
from _training import Speed, learning
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import PyTorchObs
from torch import Tensor

from grpo_bench.config import GymConfig, composed
from grpo_bench.report.text.numbers import hundredths, significant
from grpo_bench.report.text.writers import Column
from grpo_bench.runs.models import make_model

ENVS = ("vlm", "arithmetic", "format")
PPO, LEFT_OUT = "ppo", "ppo, critic left out"
ROWS = {PPO: "ppo", LEFT_OUT: "ppo", "ppo_shared": "ppo_shared", "grpo": "grpo"}
READING = (
    "Transitions per second of training: median and [smallest, largest] of {repeats} turns. Ratio: "
    "this over ppo in the same turn: median and [smallest, largest], and geometric mean [95 %, t]. "
    "Critic share c: 1 - 1 / ratio of the row with the critic left out. Bound: that ratio, "
    "1 / (1 - c)."
)


class WithoutCritic(ActorCriticPolicy):
    """SB3's actor-critic with values of 0; it never calls the critic's network."""

    def forward(self, obs: Tensor, deterministic: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Actions (n, ...), values (n, 1) and log-probabilities (n,)."""
        distribution = self.get_distribution(obs)
        actions = distribution.get_actions(deterministic=deterministic)
        shape = (-1, *(self.action_space.shape or ()))
        log_prob = distribution.log_prob(actions)
        return actions.reshape(shape), torch.zeros(len(actions), 1), log_prob

    def predict_values(self, obs: PyTorchObs) -> Tensor:
        """(n, 1)"""
        first = next(iter(obs.values())) if isinstance(obs, dict) else obs
        return torch.zeros(len(first), 1)

    def evaluate_actions(
        self, obs: PyTorchObs, actions: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Values (n, 1), log-probabilities (n,) and entropies (n,)."""
        distribution = self.get_distribution(obs)
        values = torch.zeros(len(actions), 1)
        return values, distribution.log_prob(actions), distribution.entropy()


def make(config: GymConfig, left_out: bool, turn: int) -> BaseAlgorithm:
    """A model with the turn as its seed, with or without its critic."""
    model = make_model(config.changed({"seed": turn}), "cpu")
    if left_out:
        kind = type(model.policy)
        model.policy.__class__ = type(f"{kind.__name__}WithoutCritic", (WithoutCritic, kind), {})
    return model


def subjects(env: str, seconds: float) -> dict[str, Callable[[int], Speed]]:
    """The algorithms to measure on an environment, each a function of the turn."""
    makers = {
        row: partial(make, composed(f"env={env}", f"algo={algo}"), row == LEFT_OUT)
        for row, algo in ROWS.items()
    }
    return {row: partial(learning, maker, seconds) for row, maker in makers.items()}


def compare(table: Table, env: str, speeds: dict[str, list[Speed]]) -> None:
    """Add the rows of an environment."""
    rates = {row: [speed.rate for speed in turns] for row, turns in speeds.items()}
    bound = ratio(rates[LEFT_OUT], rates[PPO])["ratio"]
    for row in rates:
        against = {} if row == PPO else ratio(rates[row], rates[PPO])
        shares = {"share": 1 - 1 / bound} if row == PPO else {}
        bounds = {"bound": bound} if row == "grpo" else {}
        labels = {"env": env, "algorithm": row}
        table.add(labels, spread("rate", rates[row]), shares, against, bounds)


def main(arguments: list[str] | None = None) -> None:
    command = parser(__doc__)
    command.add_argument("--envs", nargs="+", choices=ENVS, default=[*ENVS])
    command.add_argument("--seconds", type=float, default=2.0, help="minimum of a measurement")
    options = command.parse_args(arguments)
    torch.set_num_threads(1)
    table = Table(
        caption="The critic's share of PPO's time on small networks",
        labels=("env", "algorithm"),
        columns=[
            Column("transitions/s", "rate", significant, interval=True),
            *ratio_columns("this / ppo"),
            Column("critic share", "share", hundredths),
            Column("bound", "bound", significant),
        ],
        repeats=options.repeats,
        reading=READING,
    )
    for env in options.envs:
        progress(env)
        compare(table, env, interleaved(subjects(env, options.seconds), options.repeats))
    table.write(Path(options.out), "critic_share")


if __name__ == "__main__":
    main()
