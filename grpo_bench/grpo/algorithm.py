"""GRPO as a Stable-Baselines3 algorithm. ``train`` is the update, top to bottom on one page."""

from __future__ import annotations

import copy
import sys
import time
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, Schedule
from stable_baselines3.common.utils import FloatSchedule, safe_mean
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor

from grpo_bench.grpo import kl as kl_forms
from grpo_bench.grpo.advantages import group_advantages, group_std, without_spread
from grpo_bench.grpo.batches import Minibatch, minibatches
from grpo_bench.grpo.envs import GROUPS_BY_DEFAULT, check_layout, make_env
from grpo_bench.grpo.groups import GroupSource, make_source
from grpo_bench.grpo.objectives import Aggregation, RatioLevel, policy_loss
from grpo_bench.grpo.policies import ActorPolicy, CnnPolicy, MlpPolicy, MultiInputPolicy
from grpo_bench.grpo.rollout import Rollout, collect_groups
from grpo_bench.grpo.settings import check_settings, check_spaces
from grpo_bench.seeds import stream
from grpo_bench.vec_env import VectorEnvAdapter, seed_sub_environments

SelfGRPO = TypeVar("SelfGRPO", bound="GRPO")


class GRPO(BaseAlgorithm):
    """Group Relative Policy Optimization (DeepSeekMath, arXiv 2402.03300) for Gymnasium.

    One iteration plays ``group_size`` episodes of each of ``n_problems`` problems, turns the
    returns of each group into advantages, and takes ``n_epochs`` passes of clipped policy-gradient
    steps over them. There is no critic and no discount: the return of an episode is its outcome.

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
            ``none``, ``exact``, ``k3`` or ``tutorial`` (see ``grpo.kl``).
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

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpPolicy": MlpPolicy,
        "CnnPolicy": CnnPolicy,
        "MultiInputPolicy": MultiInputPolicy,
    }
    policy: ActorPolicy

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
        self.group_size = group_size
        self.n_problems = n_problems
        self.batch_size = batch_size
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
        self.mixed_start = mixed_start
        self.nan_reward = nan_reward
        self._source: GroupSource | None = None
        check_settings(self)
        super().__init__(
            policy=policy,
            env=make_env(env, group_size, n_problems) if isinstance(env, str) else env,  # type: ignore[arg-type]
            learning_rate=learning_rate,
            policy_kwargs=policy_kwargs,
            stats_window_size=stats_window_size,
            tensorboard_log=tensorboard_log,
            verbose=verbose,
            device=device,
            support_multi_env=True,
            seed=seed,
            supported_action_spaces=(
                spaces.Discrete,
                spaces.MultiDiscrete,
                spaces.MultiBinary,
                spaces.Box,
            ),
        )
        self.reference: ActorPolicy | None = None
        self._rollout: Rollout | None = None
        if _init_setup_model:
            self._setup_model()

    # -- SB3's hooks ------------------------------------------------------------------------------

    @staticmethod
    def _wrap_env(env: Any, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
        if isinstance(env, VectorEnv):
            env = VectorEnvAdapter(env)
        return BaseAlgorithm._wrap_env(env, verbose, monitor_wrapper)

    def _setup_model(self) -> None:
        self._setup_lr_schedule()
        self.clip_schedule = FloatSchedule(self.clip_range)
        self.clip_high_schedule = FloatSchedule(
            self.clip_range if self.clip_range_high is None else self.clip_range_high
        )
        self.set_random_seed(self.seed)
        check_spaces(self.action_space)
        if self.env is not None:
            self._layout()
        self.policy = self.policy_class(  # type: ignore[assignment]
            self.observation_space, self.action_space, self.lr_schedule, **self.policy_kwargs
        )
        self.policy = self.policy.to(self.device)
        if self.kl != "none":
            self.reference = copy.deepcopy(self.policy).requires_grad_(False)
            self.reference.optimizer = None  # type: ignore[assignment]
            self.reference.set_training_mode(False)

    def _layout(self) -> None:
        """How groups lie over the sub-environments; errors before anything is trained."""
        assert self.env is not None
        if self.n_problems is None:
            self.n_problems = max(1, self.env.num_envs // self.group_size)
            self.n_problems *= -(-GROUPS_BY_DEFAULT // self.n_problems)
        check_layout(self.env.num_envs, self.group_size, self.n_problems, self.batch_size)

    def set_random_seed(self, seed: int | None = None) -> None:
        """Streams for the policy, the starts and each sub-environment that no other seed shares."""
        super().set_random_seed(seed)
        sequence = np.random.SeedSequence() if seed is None else stream(seed, "starts")
        self._start_rng = np.random.default_rng(sequence)
        if seed is not None and self.env is not None:
            seed_sub_environments(self.env, stream(seed, "environment"))
        self._source = None  # the next learn() starts these streams

    def _update_current_progress_remaining(self, num_timesteps: int, total_timesteps: int) -> None:
        """SB3's, but never below 0: whole iterations overshoot ``total_timesteps``, and a schedule
        of a negative progress would turn the learning rate's sign."""
        super()._update_current_progress_remaining(num_timesteps, total_timesteps)
        self._current_progress_remaining = max(0.0, self._current_progress_remaining)

    def set_env(self, env: Any, force_reset: bool = True) -> None:
        super().set_env(env, force_reset)
        self._source = None

    def _setup_learn(self, *args: Any, **kwargs: Any) -> tuple[int, BaseCallback]:
        if self._source is None and self.env is not None:
            self._layout()
            self._source = make_source(self.env, self._start_rng, self.mixed_start)
            self._last_obs = np.zeros(0)  # groups start themselves: SB3 need not reset
        return super()._setup_learn(*args, **kwargs)

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "reference", "_source", "_rollout"]

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        state_dicts = ["policy", "policy.optimizer"]
        return [*state_dicts, "reference"] if self.reference is not None else state_dicts, []

    # -- learning ---------------------------------------------------------------------------------

    def learn(
        self: SelfGRPO,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int | None = 1,
        tb_log_name: str = "GRPO",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> SelfGRPO:
        """Train until at least ``total_timesteps`` transitions have been made, in whole
        iterations."""
        total_timesteps, callback = self._setup_learn(
            total_timesteps, callback, reset_num_timesteps, tb_log_name, progress_bar
        )
        if self.reference is not None and self._n_updates == 0:
            self.reference.load_state_dict(self.policy.state_dict())  # "before training" is now
        callback.on_training_start(locals(), globals())
        iteration = 0
        while self.num_timesteps < total_timesteps:
            if not self.collect_rollouts(callback):
                break
            iteration += 1
            self._update_current_progress_remaining(self.num_timesteps, total_timesteps)
            self.train()
            if log_interval is not None and iteration % log_interval == 0:
                self.dump_logs(iteration)
        callback.on_training_end()
        return self

    def collect_rollouts(self, callback: BaseCallback) -> bool:
        """Play this iteration's groups; False if the callback stops training."""
        assert self._source is not None and self.n_problems is not None
        self.policy.set_training_mode(False)  # dropout off while log-probabilities are taken
        callback.on_rollout_start()

        def on_step(transitions: int, told: dict[str, Any]) -> bool:
            self.num_timesteps += transitions
            callback.update_locals(told)
            return callback.on_step()

        self._rollout = collect_groups(
            self._source, self.policy, self.n_problems, self.group_size, on_step
        )
        if self._rollout is None:
            return False
        self._note_episodes(self._rollout)
        callback.update_locals({"rollout": self._rollout})
        callback.on_rollout_end()
        return True

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

    def _note_episodes(self, rollout: Rollout) -> None:
        """SB3's rolling window of episode returns, lengths and successes."""
        assert self.ep_info_buffer is not None and self.ep_success_buffer is not None
        last = slice(-self._stats_window_size, None)
        returns = rollout.returns.flatten()[last]
        finite = torch.isfinite(returns)  # the others are dropped, or an error before long
        kept = zip(returns[finite].tolist(), rollout.lengths[last][finite].tolist(), strict=True)
        self.ep_info_buffer.extend({"r": r, "l": n} for r, n in kept)
        success = rollout.success[last]
        self.ep_success_buffer.extend(success[np.isfinite(success)].tolist())
        self._episode_num += len(rollout.success)

    def dump_logs(self, iteration: int = 0) -> None:
        """Write the log, under SB3's names."""
        assert self.ep_info_buffer is not None and self.ep_success_buffer is not None
        elapsed = max((time.time_ns() - self.start_time) / 1e9, sys.float_info.epsilon)
        fps = (self.num_timesteps - self._num_timesteps_at_start) / elapsed
        returns = [episode["r"] for episode in self.ep_info_buffer]
        lengths = [episode["l"] for episode in self.ep_info_buffer]
        self.logger.record("rollout/ep_rew_mean", safe_mean(returns))
        self.logger.record("rollout/ep_len_mean", safe_mean(lengths))
        if self.ep_success_buffer:
            self.logger.record("rollout/success_rate", safe_mean(self.ep_success_buffer))
        self.logger.record("time/iterations", iteration, exclude="tensorboard")
        self.logger.record("time/fps", int(fps))
        self.logger.record("time/time_elapsed", int(elapsed), exclude="tensorboard")
        self.logger.record("time/total_timesteps", self.num_timesteps, exclude="tensorboard")
        self.logger.dump(step=self.num_timesteps)
