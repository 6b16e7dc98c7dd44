"""GRPO as a Stable-Baselines3 algorithm. ``train`` is the update, top to bottom on one page."""

from __future__ import annotations

from itertools import chain
from typing import Any

import torch
from gymnasium.vector import VectorEnv
from stable_baselines3.common.type_aliases import GymEnv, Schedule
from stable_baselines3.common.utils import FloatSchedule
from torch import Tensor

from grpo_bench.fast.gradients import check_gradient, clip_grad_norm
from grpo_bench.grpo.advantages import group_advantages, return_penalty
from grpo_bench.grpo.base import GroupAlgorithm
from grpo_bench.grpo.batches import minibatches
from grpo_bench.grpo.credit import BY_STEP, to_go
from grpo_bench.grpo.doctor import Doctor
from grpo_bench.grpo.keywords import settings_of, takes_settings
from grpo_bench.grpo.loss import step_loss
from grpo_bench.grpo.policies import ActorPolicy
from grpo_bench.grpo.reference import (
    follow,
    frozen_copy,
    kl_of_actions,
    kl_of_rollouts,
    reference_params,
)
from grpo_bench.grpo.rollout import Rollout, upload
from grpo_bench.grpo.spread import spread_metrics
from grpo_bench.grpo.update_log import UpdateLog, approx_kl


@takes_settings
class GRPO(GroupAlgorithm):
    """Group Relative Policy Optimization (DeepSeekMath, arXiv 2402.03300) for Gymnasium.

    One iteration plays ``group_size`` episodes of each of ``n_problems`` problems, turns the
    returns of each group into advantages, and makes ``n_epochs`` passes of clipped policy-gradient
    steps over them. There is no critic: returns are compared with those of the same group.

    loss = - sum_t w_t min(rho_t A, clip(rho_t, 1 - clip_range, 1 + clip_range_high) A)
           + kl_coef sum_t w_t KL_t - ent_coef sum_t w_t H_t

    over the actions t of a minibatch: A from ``grpo.advantages``; rho, w and other surrogates than
    the minimum from ``grpo.objectives``; KL from ``grpo.kl``; H the entropy; their sum from
    ``grpo.loss``. Every option is one function there, with its formula and its paper.

    The defaults are for control tasks with a small budget: few groups, several passes, and PPO's
    discount, which also makes a short success better than a long one. Pass ``gamma=1`` where an
    episode is judged at its end alone, and one pass with many groups for the update as published.

    Args:
        policy: ``MlpPolicy``, ``CnnPolicy``, ``MultiInputPolicy`` or an ``ActorPolicy`` class.
        env: an id, a Gymnasium environment, a Gymnasium ``VectorEnv`` or an SB3 ``VecEnv``, with
            any number of sub-environments. One whose episode has ended plays the next at once. Near
            the end of an iteration some have none left; a wrapper sees their last observations
            again, and ``VecNormalize`` includes these in its statistics.
        learning_rate: a number, or a function of the remaining progress (1 to 0).
        stats_window_size, tensorboard_log, policy_kwargs, verbose, seed, device: as in SB3.
        options: the fields of ``grpo.settings.Settings``, by keyword. Each is an attribute too.

    Raises:
        TypeError: an unknown option, with what takes its place.
        ValueError: before training: an option that is out of range, or a ``batch_size`` that does
            not hold whole groups, with sizes that do.
    """

    def __init__(
        self,
        policy: str | type[ActorPolicy],
        env: GymEnv | VectorEnv[Any, Any, Any] | str | None,
        learning_rate: float | Schedule = 1e-3,
        *,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: torch.device | str = "auto",
        _init_setup_model: bool = True,
        **options: Any,
    ) -> None:
        self.reference: ActorPolicy | None = None
        self.doctor = Doctor()
        self._n_iterations = 0
        super().__init__(
            policy=policy,
            env=env,
            learning_rate=learning_rate,
            settings=settings_of(type(self), options),
            policy_kwargs=policy_kwargs,
            stats_window_size=stats_window_size,
            tensorboard_log=tensorboard_log,
            verbose=verbose,
            device=device,
            seed=seed,
        )
        if _init_setup_model:
            self._setup_model()

    # -- SB3's hooks ------------------------------------------------------------------------------

    def _setup_model(self) -> None:
        settings = self.settings  # a loaded model has its options only now: this checks them
        super()._setup_model()
        for name in ("clip_range", "clip_range_high"):  # schedules, as in SB3's PPO
            if getattr(self, name) is not None:
                setattr(self, name, FloatSchedule(getattr(self, name)))
        if settings.kl != "none":
            self.reference = frozen_copy(self.policy)

    def _before_training(self) -> None:
        assert self.n_problems is not None
        episodes = self.n_problems * self.group_size
        steps = self.n_epochs * episodes // (self.batch_size or episodes)
        self.doctor.examine_settings(self.kl, self.kl_coef, steps)
        if self.reference is not None and self._n_updates == 0:
            self.reference.load_state_dict(self.policy.state_dict())  # "before training" is now

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "reference", "doctor"]

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        state_dicts, variables = super()._get_torch_save_params()
        return [*state_dicts, "reference"] if self.reference is not None else state_dicts, variables

    # -- the rollout ------------------------------------------------------------------------------

    def _examine(self, played: list[Rollout]) -> None:
        if self._n_iterations == 0 and not self.mixed_start:
            self.doctor.examine_groups(played[0])
        for name, value in spread_metrics(played).items():
            self.logger.record(f"rollout/{name}", value)
        if self.max_refills:
            n_played = sum(len(part.starts) for part in played)
            self.logger.record("rollout/replaced_frac", 1 - len(played[0].starts) / n_played)

    # -- the update -------------------------------------------------------------------------------

    def train(self) -> None:
        """One update: ``n_epochs`` passes over the rollout in minibatches of whole groups."""
        assert self._rollout is not None
        rollout, self._rollout = self._rollout, None
        self.policy.set_training_mode(False)  # the same network as at sampling: ratio 1 at first
        self.doctor.examine_policy(self.policy)
        self._update_learning_rate(self.policy.optimizer)
        s = self.settings
        clip = s.clip(self._current_progress_remaining)
        ref_params = reference_params(self.reference, rollout)  # (M, n_params), None without KL
        advantages = self._advantages(rollout, ref_params)  # (n_problems, group_size[, T])
        parameters = list(self.policy.parameters())
        log = UpdateLog()

        size = (s.batch_size or len(rollout.mask)) // s.group_size  # groups of a minibatch
        how = (rollout, advantages, ref_params, size, s.aggregation, s.max_len)

        for batch in chain.from_iterable(minibatches(*how) for _ in range(s.n_epochs)):
            distribution = self.policy.distribution(self.policy(batch.observations), batch.rows)
            logp = batch.padded(distribution.log_prob(batch.actions))  # (n, T)
            with torch.set_grad_enabled(s.ent_coef > 0):
                entropy = distribution.entropy()  # (m,)
            kl = None
            if self.reference is not None:
                kl = kl_of_actions(self.reference, batch, distribution, logp, s, log)
            loss = step_loss(
                logp,
                batch.old_logp,
                batch.advantages,
                batch.mask,
                batch.weights,
                s,
                clip,
                entropy=entropy,
                kl=kl,
                places=batch.places,
            )
            log.add("loss", loss.total)
            log.add("policy_gradient_loss", loss.surrogate)
            log.add("clip_fraction", loss.clip_fraction)
            if entropy is not None:
                log.add("entropy_loss", -entropy.mean())
            log_ratio = batch.real(logp.detach() - batch.old_logp)  # (m,)
            log.add_ratio(log_ratio)
            if s.target_kl is not None and approx_kl(log_ratio) > 1.5 * s.target_kl:
                break  # as SB3's PPO: no step on this minibatch, no further pass

            for parameter in parameters:  # optimizer.zero_grad() without its hooks
                parameter.grad = None
            loss.total.backward()
            norm = clip_grad_norm(parameters, s.max_grad_norm)
            check_gradient(norm, self._n_updates + 1)
            log.add("grad_norm", norm)
            self.policy.optimizer.step()
            self._n_updates += 1

        self.doctor.examine_update(log, first=self._n_iterations == 0)
        self._n_iterations += 1
        if s.ref_update_interval and self._n_iterations % s.ref_update_interval == 0:
            assert self.reference is not None
            follow(self.reference, self.policy, s.ref_tau)
        means = log.means()
        self.doctor.examine_pace(self._n_updates, self.num_timesteps, means.get("approx_kl", 0.0))
        for name, value in means.items():
            self.logger.record(f"train/{name}", value)
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/clip_range", clip.low)
        if s.clip_range_high is not None:
            self.logger.record("train/clip_range_high", clip.high)
        if hasattr(self.policy, "log_std"):
            self.logger.record("train/std", self.policy.log_std.exp().mean().item())

    # -- the pieces of an update ------------------------------------------------------------------

    def _advantages(self, rollout: Rollout, ref_params: Tensor | None) -> Tensor:
        """Of each rollout (n_problems, group_size), or of each action (n_problems, group_size, T).
        Also removes rollouts that are not trained on from the mask."""
        valid = self._valid(rollout)
        options = (self.baseline, self.ddof, self.eps)
        rewards = rollout.rewards.view(*valid.shape, -1)
        if self.supervision != "outcome":
            mask = upload(rollout.mask, rewards.device).view_as(rewards)
            advantages = BY_STEP[self.supervision](rewards, mask, *options, self.gamma)
        else:
            returns = rollout.returns
            if self.gamma < 1:
                returns = to_go(rewards.double(), self.gamma)[..., 0]
            advantages = group_advantages(returns, *options, valid)
        self.doctor.examine_advantages(advantages, float(rollout.success.mean()))
        if self.settings.kl_in("return"):
            assert self.reference is not None and ref_params is not None
            divergences = kl_of_rollouts(self.kl, self.reference, ref_params, rollout)
            penalty = self.kl_coef * return_penalty(divergences, valid)
            advantages = advantages + penalty.view(*valid.shape, *[1] * (advantages.dim() - 2))
        if self.mask_truncated:
            rollout.mask &= ~rollout.truncated[:, None]
        return advantages.to(rollout.old_logp.dtype)

    def _valid(self, rollout: Rollout) -> Tensor:
        """Which returns are finite, (n_problems, group_size). Others are an error, or dropped."""
        returns = rollout.returns
        valid = torch.isfinite(returns)
        if not valid.all() and self.nan_reward == "error":
            group = int((~valid).nonzero()[0, 0])
            raise ValueError(
                f"the return of a rollout of problem {rollout.starts[group]} is not finite: "
                f"{returns[group].tolist()}; fix the reward, or pass nan_reward='drop' to drop "
                "such rollouts from their groups"
            )
        rollout.mask &= valid.view(-1, 1).cpu()
        return valid
