"""The doctor for SB3's own algorithms: the same findings as for GRPO, from what they log."""

from __future__ import annotations

import math
from collections.abc import Mapping

from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from torch import nn

from grpo_bench.grpo.doctor import COLLAPSE, PATIENCE, Doctor

DETERMINISTIC = 0.003  # of the largest entropy: less is a policy that explores no more
SOLVED = 0.9  # success at which that is no fault


class Checkup:
    """Examines an algorithm that has no doctor of its own, after each of its updates."""

    def __init__(self, model: BaseAlgorithm) -> None:
        self.model = model
        self.doctor = Doctor()
        self.most = largest_entropy(model.action_space)
        self.dull_updates = 0  # in a row
        if names := noisy_modules(model.policy):
            self.doctor.report(
                "dropout",
                f"{', '.join(names)}: {type(model).__name__} trains in training mode, so the ratio "
                "to the policy that played is noisy; use modules that act alike in both modes",
            )

    def examine(self, metrics: Mapping[str, float], gradient_steps: int) -> None:
        """After an update.

        Args:
            metrics: what the algorithm logged, by SB3's names.
            gradient_steps: since the start of training.
        """
        # A2C logs no approx_kl: for all we know an update may have destroyed the policy
        moved = metrics.get("train/approx_kl", math.inf)
        remedy = "lower n_steps or batch_size, or raise n_epochs"
        self.doctor.examine_pace(gradient_steps, self.model.num_timesteps, moved, remedy)
        entropy = -metrics.get("train/entropy_loss", -math.inf)
        solved = metrics.get("rollout/success_rate", 0.0) > SOLVED
        torn = self.doctor.largest_kl > COLLAPSE
        still = torn and not solved and entropy < DETERMINISTIC * self.most
        returns = {episode["r"] for episode in self.model.ep_info_buffer or ()}
        self.dull_updates = self.dull_updates + 1 if still or len(returns) == 1 else 0
        if self.dull_updates < PATIENCE:
            return
        if still:
            largest = self.doctor.largest_kl
            after = f", after one with an approx_kl of {largest:.3g}" if largest < math.inf else ""
            self.doctor.report(
                "collapsed",
                f"in {PATIENCE} updates in a row the policy had next to no entropy{after}; lower "
                "learning_rate, or raise ent_coef",
            )
        else:
            self.doctor.report(
                "no spread",
                f"in {PATIENCE} updates in a row all episodes had the return {returns.pop():.4g}: "
                "nothing to learn from; if that is the best one, stop or use harder problems, else "
                "a reward with more levels or a policy that explores more",
            )


def largest_entropy(space: spaces.Space) -> float:
    """Of a policy on that space, in nats; 0 where there is none, on continuous actions."""
    match space:
        case spaces.Discrete():
            return math.log(space.n)
        case spaces.MultiDiscrete():
            return sum(math.log(n) for n in space.nvec.flatten())
        case spaces.MultiBinary():
            return math.log(2) * math.prod(space.shape)
    return 0.0


def noisy_modules(policy: nn.Module) -> list[str]:
    """Names and classes of modules that act differently in training mode."""
    noisy = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._BatchNorm)
    return [
        f"{name} ({type(module).__name__})"
        for name, module in policy.named_modules()
        if isinstance(module, noisy)
    ]
