"""The doctor: cheap checks while training, each of which names a fault and its remedy.

A finding is told once, as a ``DoctorWarning`` that begins with its short name, and kept in
``findings``. What makes training meaningless is an error instead, and is found where it happens:
rewards that are not finite, members of a group that start differently, sizes that do not divide.
"""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor, nn

from grpo_bench.grpo.kl import FORMS
from grpo_bench.grpo.update_log import UpdateLog

PATIENCE = 10  # updates in a row that may teach nothing
ROUNDING = 1e-3  # of log-probabilities taken twice of one policy in float32, generously


class DoctorWarning(UserWarning):
    """A finding: training goes on, but not as it should."""


class Doctor:
    """Looks at an algorithm's settings, policy, groups and updates, and tells what it finds."""

    def __init__(self) -> None:
        self.findings: dict[str, str] = {}  # by short name
        self.flat_updates = 0  # in a row

    def examine_settings(self, kl: str, kl_coef: float, steps: int) -> None:
        """Before training: a KL form that does not keep the policy near the reference.

        Args:
            steps: gradient steps on each rollout.
        """
        if kl == "none" or not kl_coef:
            return
        remedy = "use kl='exact' where the action distribution can be enumerated, else 'k1_reward'"
        pushes = f", and after the first of {steps} steps on a rollout it pushes the policy away"
        if FORMS[kl].gradient == "zero":
            self.tell(
                "kl form",
                f"kl={kl!r} has an expected gradient of zero, so kl_coef={kl_coef} adds noise and "
                f"holds nothing back{pushes if kl == 'k1' and steps > 1 else ''}; {remedy}",
            )
        elif FORMS[kl].gradient == "opposite":
            self.tell(
                "kl form",
                f"kl={kl!r} has the gradient of minus the KL, so kl_coef={kl_coef} pays the policy "
                f"for leaving the reference; {remedy}",
            )

    def examine_policy(self, policy: nn.Module) -> None:
        """While log-probabilities are taken: parts that are in training mode all the same."""
        noisy = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._BatchNorm)
        names = [
            f"{name} ({type(module).__name__})"
            for name, module in policy.named_modules()
            if isinstance(module, noisy) and module.training
        ]
        if names:
            self.tell(
                "dropout",
                f"{', '.join(names)} in training mode while log-probabilities are taken, which "
                "makes the ratio and the KL noise; let train(False) reach every module",
            )

    def examine_advantages(self, advantages: Tensor, success_rate: float) -> None:
        """Before each update: the advantages of its rewards, which are all alike where no group (or
        with a baseline of the batch: not even the batch) has rewards that differ.

        Args:
            advantages: of any shape.
            success_rate: of the rollouts of this update; NaN where it is unknown.
        """
        self.flat_updates = self.flat_updates + 1 if advantages.max() == advantages.min() else 0
        if self.flat_updates < PATIENCE:
            return
        solved = "every rollout succeeds: take harder problems, or stop"
        hopeless = (
            "take easier problems, a policy that succeeds now and then, a larger group_size or a "
            "reward with more levels"
        )
        if math.isnan(success_rate):
            remedy = f"if {solved}; else {hopeless}"
        else:
            remedy = solved if success_rate == 1 else hopeless
        self.tell(
            "no spread",
            f"in {self.flat_updates} updates in a row the rewards gave every rollout the same "
            f"advantage, so they taught nothing; {remedy}",
        )

    def examine_update(self, log: UpdateLog, first: bool) -> None:
        """After each update, from its first minibatch, in which the policy had not moved yet.

        Args:
            first: nothing had been learned before this update.
        """
        if not log.log_ratios:
            self.tell(
                "nothing left",
                "every rollout of an update was left out, so nothing was learned; look for rewards "
                "that are not finite (nan_reward='drop') and for a time limit that cuts off every "
                "episode (mask_truncated)",
            )
            return
        off = log.log_ratios[0].abs().max()
        if off > ROUNDING:
            self.tell(
                "ratio",
                f"up to {torch.exp(off).item():.4g} before the first step of an update, where it "
                "is 1 if the rollout was sampled from this policy: look for dropout or other noise "
                "(torch.nn.functional.dropout is on unless it is told training=False), "
                "log-probabilities taken in half precision, or a policy changed by a callback",
            )
        if first and "kl_ref_k3" in log.columns and log.columns["kl_ref_k3"][0].abs() > ROUNDING:
            self.tell(
                "kl at start",
                f"{log.columns['kl_ref_k3'][0].item():.4g} to the reference before the first "
                "step, where it is 0 if the reference is the policy before training: load weights "
                "before learn(), and look for dropout",
            )

    def tell(self, name: str, text: str) -> None:
        """Warn of a finding, unless it is known already."""
        if name not in self.findings:
            self.findings[name] = f"{name}: {text}"
            warnings.warn(self.findings[name], DoctorWarning, stacklevel=2)
