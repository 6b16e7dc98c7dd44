"""The doctor: cheap checks during training. Each finding names a fault and its remedy.

The doctor reports a finding once, as a ``DoctorWarning`` that begins with its short name, and keeps
it in ``findings``. Faults that make training meaningless are errors, raised where they occur:
rewards that are not finite, members of a group that start differently, sizes that do not divide.
"""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor, nn

from grpo_bench.grpo.alike import difference
from grpo_bench.grpo.kl import FORMS
from grpo_bench.grpo.rollout import Rollout
from grpo_bench.grpo.update_log import UpdateLog

COLLAPSE = 1.0  # an approx_kl of one update after which little is left of the policy
STARVED = 2_000  # transitions for each gradient step; SB3's PPO has 6, our presets up to 130
ENOUGH = 10_000  # transitions before the doctor judges that
PATIENCE = 10  # updates in a row without a learning signal before the doctor reports it
ROUNDING = 1e-3  # generous, for the log-probabilities of one policy computed twice in float32


class DoctorWarning(UserWarning):
    """A finding: training continues, but something is wrong."""


class Doctor:
    """Examines an algorithm's settings, policy, advantages and updates."""

    def __init__(self) -> None:
        self.findings: dict[str, str] = {}  # by short name
        self.flat_updates = 0  # in a row
        self.largest_kl = 0.0  # approx_kl of an update

    def examine_settings(self, kl: str, kl_coef: float, steps: int) -> None:
        """Before training: does the KL form keep the policy near the reference?

        Args:
            steps: gradient steps on each rollout.
        """
        if kl == "none" or not kl_coef:
            return
        remedy = "use kl='exact' where the action distribution can be enumerated, else 'k1_reward'"
        pushes = f", and after the first of {steps} steps on a rollout it pushes the policy away"
        if FORMS[kl].gradient == "zero":
            self.report(
                "kl form",
                f"kl={kl!r} has an expected gradient of zero, so kl_coef={kl_coef} adds noise but "
                f"does not limit the policy{pushes if kl == 'k1' and steps > 1 else ''}; {remedy}",
            )
        elif FORMS[kl].gradient == "opposite":
            self.report(
                "kl form",
                f"kl={kl!r} has the gradient of minus the KL, so kl_coef={kl_coef} rewards the "
                f"policy for leaving the reference; {remedy}",
            )

    def examine_policy(self, policy: nn.Module) -> None:
        """Before each update: is any noisy module still in training mode?"""
        noisy = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._BatchNorm)
        names = [
            f"{name} ({type(module).__name__})"
            for name, module in policy.named_modules()
            if isinstance(module, noisy) and module.training
        ]
        if names:
            self.report(
                "dropout",
                f"{', '.join(names)} in training mode while log-probabilities are computed, "
                "which adds noise to the ratio and the KL; make train(False) reach every module",
            )

    def examine_groups(self, rollout: Rollout) -> None:
        """Of the first iteration: do members that act alike fare alike? Where a wrapper changed the
        rewards, as VecNormalize does, they may not."""
        if rollout.log is not None and rollout.log.raw_returns is not None:
            return
        found = difference(rollout)
        if found is not None:
            self.report(
                "not alike",
                f"two members of the group of start {rollout.starts[found.group]} took the same "
                f"actions, and differ in the {found.what} of step {found.step + 1}: they do not "
                "play the same problem. Let reset() with its seed or problem_id decide all that "
                "follows, and draw nothing from a global random generator; check_group_env finds "
                "where. If chance is part of the task, ignore this",
            )

    def examine_pace(
        self,
        gradient_steps: int,
        transitions: int,
        approx_kl: float,
        remedy: str = "lower n_problems or batch_size, or raise n_epochs",
    ) -> None:
        """After each update: is training starved of gradient steps?

        Args:
            approx_kl: of the update; the largest so far tells a collapse from a lack of spread.
            remedy: by the algorithm's own keywords.
        """
        self.largest_kl = max(self.largest_kl, approx_kl)
        if transitions >= ENOUGH and transitions > STARVED * gradient_steps:
            self.report(
                "starved",
                f"{gradient_steps:,} gradient steps in {transitions:,} transitions: {remedy}",
            )

    def examine_advantages(self, advantages: Tensor, success_rate: float) -> None:
        """Before each update: do the advantages differ? They do not if the rewards of every group
        are equal (for a baseline across groups: those of the batch).

        Args:
            advantages: of any shape.
            success_rate: of the rollouts of this update; NaN if unknown.
        """
        self.flat_updates = self.flat_updates + 1 if advantages.max() == advantages.min() else 0
        if self.flat_updates < PATIENCE:
            return
        if self.largest_kl > COLLAPSE:
            self.report(
                "collapsed",
                f"an update moved the policy by an approx_kl of {self.largest_kl:.3g}, and in the "
                f"last {self.flat_updates} updates every rollout had the same advantage; lower "
                "learning_rate",
            )
            return
        solved = "every rollout succeeds: use harder problems, or stop"
        hopeless = (
            "use easier problems, a policy that sometimes succeeds, a larger group_size or a "
            "reward with more levels"
        )
        if math.isnan(success_rate):
            remedy = f"if {solved}; else {hopeless}"
        else:
            remedy = solved if success_rate == 1 else hopeless
        self.report(
            "no spread",
            f"in {self.flat_updates} updates in a row the rewards gave every rollout the same "
            f"advantage, so there was nothing to learn; {remedy}",
        )

    def examine_update(self, log: UpdateLog, first: bool) -> None:
        """After each update: was the ratio 1, and at first the KL 0, before the policy changed?

        Args:
            first: this is the first update.
        """
        if not log.log_ratios:
            self.report(
                "nothing left",
                "every rollout of an update was dropped, so nothing was learned; look for rewards "
                "that are not finite (nan_reward='drop') and for a time limit that cuts off every "
                "episode (mask_truncated)",
            )
            return
        off = log.log_ratios[0].abs().max()
        if off > ROUNDING:
            self.report(
                "ratio",
                f"up to {torch.exp(off).item():.4g} before the first step of an update, where it "
                "is 1 if the rollout was sampled from this policy: look for dropout or other noise "
                "(torch.nn.functional.dropout is active unless called with training=False), "
                "log-probabilities in half precision, or a callback that changes the policy",
            )
        if first and "kl_ref_k3" in log.columns and log.columns["kl_ref_k3"][0].abs() > ROUNDING:
            self.report(
                "kl at start",
                f"{log.columns['kl_ref_k3'][0].item():.4g} to the reference before the first "
                "step, where it is 0 if the reference is the policy before training: load weights "
                "before learn(), and look for dropout",
            )

    def report(self, name: str, text: str) -> None:
        """Warn of a finding, once."""
        if name not in self.findings:
            self.findings[name] = f"{name}: {text}"
            warnings.warn(self.findings[name], DoctorWarning, stacklevel=2)
