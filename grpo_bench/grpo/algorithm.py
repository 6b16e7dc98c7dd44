"""GRPO as a Stable-Baselines3 algorithm. ``train`` is the update, top to bottom on one page."""

from __future__ import annotations

import copy
from typing import Any, Literal

import torch
from gymnasium.vector import VectorEnv
from stable_baselines3.common.type_aliases import GymEnv, Schedule
from stable_baselines3.common.utils import FloatSchedule
from torch import Tensor

from grpo_bench.grpo import kl as kl_forms
from grpo_bench.grpo.advantages import group_advantages, group_std, without_spread
from grpo_bench.grpo.base import GroupAlgorithm
from grpo_bench.grpo.batches import Minibatch, minibatches
from grpo_bench.grpo.objectives import Aggregation, RatioLevel, policy_loss
from grpo_bench.grpo.policies import ActorPolicy
from grpo_bench.grpo.rollout import Rollout
from grpo_bench.grpo.settings import check_settings


class GRPO(GroupAlgorithm):
    """Group Relative Policy Optimization (DeepSeekMath, arXiv 2402.03300) for Gymnasium.

    One iteration plays ``group_size`` episodes of each of ``n_problems`` problems, turns the
    returns of each group into advantages, and takes ``n_epochs`` passes of clipped policy-gradient
    steps over them. There is no critic and no discount: the return of an episode is its outcome.

    loss = - sum_t w_t min(rho_t A, clip(rho_t, 1 - clip_range, 1 + clip_range_high) A)
           + kl_coef sum_t w_t KL_t - ent_coef sum_t w_t H_t

    over the actions t of a minibatch: A from ``grpo.advantages``, rho and w from
    ``grpo.objectives``, KL from ``grpo.kl``, H the entropy.

    Args:
        policy: ``MlpPolicy``, ``CnnPolicy``, ``MultiInputPolicy`` or an ``ActorPolicy`` class.
        env: an id, a Gymnasium environment, a Gymnasium ``VectorEnv`` or an SB3 ``VecEnv``. With
            one sub-environment a group's members run one after another; otherwise groups are laid
            over the sub-environments.
        learning_rate: a number, or a function of the remaining progress (1 to 0).
        group_size: G, at least 2.
        n_problems: groups per iteration. None: 32, or as many as fill the sub-environments.
        batch_size: episodes per gradient step, in whole groups. None: all of the iteration.
        n_epochs: passes over the iteration's episodes.
        clip_range: the ratio is clipped to [1 - clip_range, 1 + clip_range_high].
        clip_range_high: None: the same as ``clip_range``.
        baseline, ddof, eps: see ``grpo.advantages.group_advantages``.
        aggregation, max_len: see ``grpo.objectives.aggregation_weights``.
        ratio: see ``grpo.objectives.importance_ratio``.
        kl: what is added to the loss, times ``kl_coef``, to stay near the policy before training:
            ``none``, ``exact``, ``k3`` or ``tutorial`` (see ``grpo.kl``). With a form and
            ``kl_coef=0`` the KL is measured and logged only.
        ent_coef: weight of the entropy bonus.
        max_grad_norm: the gradient's norm is clipped to it.
        mixed_start: accept groups whose members start differently (for environments that cannot
            repeat a start).
        nan_reward: ``error``, or ``drop`` to take a rollout whose return is not finite out of its
            group.
        stats_window_size, tensorboard_log, policy_kwargs, verbose, seed, device: as in SB3.

    Raises:
        ValueError: before anything is trained: a value out of range, or numbers of
            sub-environments, members and groups that do not divide, with those that would.
    """

    def __init__(
        self,
        policy: str | type[ActorPolicy],
        env: GymEnv | VectorEnv[Any, Any, Any] | str | None,
        learning_rate: float | Schedule = 3e-4,
        group_size: int = 8,
        n_problems: int | None = None,
        batch_size: int | None = None,
        n_epochs: int = 1,
        clip_range: float | Schedule = 0.2,
        clip_range_high: float | Schedule | None = None,
        baseline: str = "group",
        ddof: int = 0,
        eps: float = 1e-4,
        aggregation: Aggregation = "sequence_mean",
        max_len: int | None = None,
        ratio: RatioLevel = "token",
        kl: str = "none",
        kl_coef: float = 0.0,
        ent_coef: float = 0.0,
        max_grad_norm: float = 0.5,
        mixed_start: bool = False,
        nan_reward: Literal["error", "drop"] = "error",
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: torch.device | str = "auto",
        _init_setup_model: bool = True,
    ) -> None:
        self.n_epochs = n_epochs
        self.clip_range = clip_range
        self.clip_range_high = clip_range_high
        self.baseline = baseline
        self.ddof = ddof
        self.eps = eps
        self.aggregation: Aggregation = aggregation
        self.max_len = max_len
        self.ratio: RatioLevel = ratio
        self.kl = kl
        self.kl_coef = kl_coef
        self.ent_coef = ent_coef
        self.max_grad_norm = max_grad_norm
        self.nan_reward = nan_reward
        self.reference: ActorPolicy | None = None
        super().__init__(
            policy=policy,
            env=env,
            learning_rate=learning_rate,
            group_size=group_size,
            n_problems=n_problems,
            batch_size=batch_size,
            mixed_start=mixed_start,
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

    def _check_settings(self) -> None:
        check_settings(vars(self))

    def _setup_model(self) -> None:
        super()._setup_model()
        self.clip_schedule = FloatSchedule(self.clip_range)
        self.clip_high_schedule = FloatSchedule(
            self.clip_range if self.clip_range_high is None else self.clip_range_high
        )
        if self.kl != "none":
            self.reference = copy.deepcopy(self.policy).requires_grad_(False)
            self.reference.optimizer = None  # type: ignore[assignment]
            self.reference.set_training_mode(False)

    def _before_training(self) -> None:
        if self.reference is not None and self._n_updates == 0:
            self.reference.load_state_dict(self.policy.state_dict())  # "before training" is now

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "reference"]

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        state_dicts, variables = super()._get_torch_save_params()
        return [*state_dicts, "reference"] if self.reference is not None else state_dicts, variables

    # -- the update -------------------------------------------------------------------------------

    def train(self) -> None:
        """One update: ``n_epochs`` passes over the rollout in minibatches of whole groups."""
        assert self._rollout is not None
        rollout, self._rollout = self._rollout, None
        self.policy.set_training_mode(False)  # the same network as at sampling: ratio 1 at first
        self._update_learning_rate(self.policy.optimizer)
        clip_low = self.clip_schedule(self._current_progress_remaining)
        clip_high = self.clip_high_schedule(self._current_progress_remaining)
        advantages = self._advantages(rollout)  # (n_problems, group_size)
        ref_params = self._reference_params(rollout)  # (M, n_params) or None
        parameters = list(self.policy.parameters())
        log: dict[str, list[Tensor]] = {}
        log_ratios: list[Tensor] = []
        masks: list[Tensor] = []

        for _ in range(self.n_epochs):
            for batch in minibatches(
                rollout,
                advantages,
                ref_params,
                (self.batch_size or advantages.numel()) // self.group_size,
                self.aggregation,
                self.max_len,
            ):
                distribution = self.policy.distribution(self.policy(batch.observations)[batch.rows])
                logp = batch.padded(distribution.log_prob(batch.actions))  # (n, T)
                surrogate = policy_loss(
                    logp,
                    batch.old_logp,
                    batch.advantages,
                    batch.mask,
                    weights=batch.weights,
                    ratio=self.ratio,
                    clip_low=clip_low,
                    clip_high=clip_high,
                )
                loss = surrogate.loss
                with torch.set_grad_enabled(self.ent_coef > 0):
                    entropy = distribution.entropy()
                if entropy is not None and self.ent_coef:
                    loss = loss - self.ent_coef * (batch.token_weights * entropy).sum()
                if ref_params is not None:
                    kl_loss = self._kl_loss(batch, distribution, logp, log)
                    loss = loss + self.kl_coef * kl_loss

                for parameter in parameters:  # optimizer.zero_grad(), less its hooks
                    parameter.grad = None
                loss.backward()
                grad_norm = torch.nn.utils.clip_grad_norm_(parameters, self.max_grad_norm)
                self.policy.optimizer.step()
                self._n_updates += 1

                values = {
                    "loss": loss,
                    "policy_gradient_loss": surrogate.loss,
                    "clip_fraction": surrogate.clip_fraction,
                    "grad_norm": grad_norm,
                }
                if entropy is not None:
                    values["entropy_loss"] = -entropy.detach().mean()
                for name, value in values.items():
                    log.setdefault(name, []).append(value.detach())
                log_ratios.append(logp.detach() - batch.old_logp)
                masks.append(batch.mask)

        if log_ratios:  # none where every rollout was dropped
            log_ratio = torch.cat(log_ratios)[torch.cat(masks)]
            # SB3's approx_kl, mean(rho - 1 - log rho): k3 of the old policy against this one
            approx_kl = kl_forms.k3(torch.zeros_like(log_ratio), log_ratio).mean()
            self.logger.record("train/approx_kl", approx_kl.item())
        for name, column in log.items():
            self.logger.record(f"train/{name}", torch.stack(column).mean().item())
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/clip_range", clip_low)

    # -- the pieces of an update ------------------------------------------------------------------

    def _advantages(self, rollout: Rollout) -> Tensor:
        returns = rollout.returns
        valid = torch.isfinite(returns)
        if not valid.all() and self.nan_reward == "error":
            group = int((~valid).nonzero()[0, 0])
            raise ValueError(
                f"the return of a rollout of problem {rollout.starts[group]} is not finite: "
                f"{returns[group].tolist()}; mend the reward, or pass nan_reward='drop' to take "
                "such rollouts out of their groups"
            )
        rollout.mask &= valid.view(-1, 1)
        spread = without_spread(returns, valid)
        self.logger.record("rollout/zero_std_frac", spread.float().mean().item())
        self.logger.record("rollout/group_std", group_std(returns, valid).mean().item())
        return group_advantages(returns, self.baseline, self.ddof, self.eps, valid)

    def _reference_params(self, rollout: Rollout) -> Tensor | None:
        """What the reference says in each observation, once per rollout."""
        if self.reference is None:
            return None
        with torch.no_grad():
            return self.reference(rollout.observations)

    def _kl_loss(
        self, batch: Minibatch, distribution: Any, logp: Tensor, log: dict[str, list[Tensor]]
    ) -> Tensor:
        """The KL term of the loss, and k1 and k3 for the log whatever is trained on."""
        assert self.reference is not None and batch.ref_params is not None
        ref = self.reference.distribution(batch.ref_params[batch.rows])
        ref_logp = batch.padded(ref.log_prob(batch.actions))
        with torch.no_grad():
            for name in ("k1", "k3"):
                estimate = kl_forms.ESTIMATORS[name](logp, ref_logp)[batch.mask].mean()
                log.setdefault(f"kl_ref_{name}", []).append(estimate)
        if self.kl == "exact":
            divergence = kl_forms.exact(distribution, ref)
            log.setdefault("kl_ref", []).append(divergence.detach().mean())
            return (batch.token_weights * divergence).sum()
        divergence = kl_forms.ESTIMATORS[self.kl](logp, ref_logp)
        return (batch.weights * divergence).sum()
