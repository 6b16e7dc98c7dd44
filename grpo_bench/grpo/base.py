"""All of GRPO except its update: play groups, log them, and be an SB3 algorithm.

The counterpart of SB3's ``OnPolicyAlgorithm``, for rollouts in groups and without a critic.
"""

from __future__ import annotations

import io
import math
import sys
import time
from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import (
    BaseCallback,
    CallbackList,
    ConvertCallback,
    ProgressBarCallback,
)
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, Schedule
from stable_baselines3.common.utils import safe_mean
from stable_baselines3.common.vec_env import VecEnv

from grpo_bench.grpo.collect import collect_groups
from grpo_bench.grpo.dynamic import refilled
from grpo_bench.grpo.envs import (
    GROUPS_BY_DEFAULT,
    check_actions,
    check_layout,
    check_observations,
    make_env,
    steps_limit,
)
from grpo_bench.grpo.groups import GroupSource, make_source
from grpo_bench.grpo.policies import (
    ActorPolicy,
    CnnPolicy,
    MlpPolicy,
    MultiInputPolicy,
    check_policy,
)
from grpo_bench.grpo.rollout import Rollout
from grpo_bench.grpo.seeds import stream
from grpo_bench.grpo.settings import Settings
from grpo_bench.grpo.streams import States, restore, states
from grpo_bench.grpo.vec_env import VectorEnvAdapter, seed_sub_environments

Self = TypeVar("Self", bound="GroupAlgorithm")


class Progress(ProgressBarCallback):
    """SB3's progress bar, by the transitions that count. (SB3 adds one for each sub-environment,
    also for those that wait.)"""

    def _on_step(self) -> bool:
        self.pbar.update(
            self.num_timesteps - self.locals["self"]._num_timesteps_at_start - self.pbar.n
        )
        return True


if TYPE_CHECKING:  # each option is an attribute, as in SB3, and has its type from Settings
    Attributes = Settings
else:
    Attributes = object


class GroupAlgorithm(BaseAlgorithm, Attributes):
    """Collects ``group_size`` rollouts of each of ``n_problems`` problems, then calls ``train``.

    A subclass implements ``train``, which finds the rollouts in ``_rollout``. Arguments: see
    ``GRPO``.
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpPolicy": MlpPolicy,
        "CnnPolicy": CnnPolicy,
        "MultiInputPolicy": MultiInputPolicy,
    }
    policy: ActorPolicy
    n_problems: int | None

    def __init__(
        self,
        policy: str | type[ActorPolicy],
        env: GymEnv | VectorEnv[Any, Any, Any] | str | None,
        learning_rate: float | Schedule,
        settings: Settings,
        **sb3: Any,
    ) -> None:
        self.__dict__.update(vars(settings))
        self._settings = settings
        self._source: GroupSource | None = None
        self._rollout: Rollout | None = None
        self._streams: States | None = None  # of the model that was saved, until learning goes on
        if isinstance(env, str):
            env = make_env(env, settings.group_size, settings.n_problems)
        super().__init__(
            policy=policy,
            env=env,  # type: ignore[arg-type]
            learning_rate=learning_rate,
            support_multi_env=True,
            supported_action_spaces=(
                spaces.Discrete,
                spaces.MultiDiscrete,
                spaces.MultiBinary,
                spaces.Box,
            ),
            **sb3,
        )

    @abstractmethod
    def train(self) -> None:
        """Update the policy from ``_rollout``."""

    @property
    def settings(self) -> Settings:
        """The options as they are now: SB3 sets attributes when it loads a model, and users may.

        Raises:
            ValueError: an option was set to something invalid.
        """
        now = {name: getattr(self, name) for name in vars(self._settings)}
        if now != vars(self._settings):
            self._settings = Settings(**now)
        return self._settings

    # -- SB3's hooks ------------------------------------------------------------------------------

    @staticmethod
    def _wrap_env(env: Any, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
        check_observations(env.observation_space)
        if isinstance(env, VectorEnv):
            env = VectorEnvAdapter(env)
        return BaseAlgorithm._wrap_env(env, verbose, monitor_wrapper)

    def _setup_model(self) -> None:
        self._setup_lr_schedule()
        saved = self._streams  # of a model that is being loaded
        self.set_random_seed(self.seed)
        self._streams = saved
        check_actions(self.action_space)
        check_policy(self.policy_class)
        if self.env is not None:
            self._layout()
        self.policy = self.policy_class(  # type: ignore[assignment]
            self.observation_space, self.action_space, self.lr_schedule, **self.policy_kwargs
        )
        self.policy = self.policy.to(self.device)

    def _layout(self) -> None:
        """Distribute groups over the sub-environments; errors come before training."""
        assert self.env is not None
        if self.n_problems is None:
            self.n_problems = max(1, self.env.num_envs // self.group_size)
            self.n_problems *= -(-GROUPS_BY_DEFAULT // self.n_problems)
        check_layout(self.group_size, self.n_problems, self.batch_size)

    def set_random_seed(self, seed: int | None = None) -> None:
        """Give the policy, the starts and each sub-environment streams of this seed alone."""
        super().set_random_seed(seed)
        sequence = np.random.SeedSequence() if seed is None else stream(seed, "starts")
        self._start_rng = np.random.default_rng(sequence)
        if seed is not None and self.env is not None:
            seed_sub_environments(self.env, stream(seed, "environment"))
        self._source = None  # the next learn() starts these streams
        self._streams = None

    def _update_current_progress_remaining(self, num_timesteps: int, total_timesteps: int) -> None:
        """As in SB3, but never below 0. Whole iterations overshoot ``total_timesteps``, and a
        negative progress would make a linear learning rate negative."""
        super()._update_current_progress_remaining(num_timesteps, total_timesteps)
        self._current_progress_remaining = max(0.0, self._current_progress_remaining)

    def set_env(self, env: Any, force_reset: bool = True) -> None:
        super().set_env(env, force_reset)
        self._source = None

    def save(self, path: str | Path | io.BufferedIOBase, *args: Any, **kwargs: Any) -> None:
        """As in SB3, with the states of all random streams: ``learn(n)``, save, load and
        ``learn(m, reset_num_timesteps=False)`` give the weights of ``learn(n + m)``.

        That holds for environments whose episodes depend on their problem id or seed alone. Where
        an SB3 environment draws its own problem ids, the ids go on from its seed. A schedule that
        depends on the progress takes it from the total of each ``learn``.
        """
        problems = None if self._source is None else self._source.problem_stream()
        self._streams = states(self.device, self._start_rng, problems)
        super().save(path, *args, **kwargs)
        self._streams = None

    def _setup_learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        reset_num_timesteps: bool = True,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[int, BaseCallback]:
        if self._source is None and self.env is not None:
            self._layout()
            self._source = make_source(self.env, self._start_rng, self.mixed_start)
            self._last_obs = np.zeros(0)  # so SB3 does not reset: groups start themselves
        found = super()._setup_learn(
            total_timesteps, callback, reset_num_timesteps, *args, **kwargs
        )
        if self._streams is not None and self._source is not None and not reset_num_timesteps:
            problems = self._source.problem_stream()
            restore(self._streams, self.device, self._start_rng, problems)
        self._streams = None
        return found

    def _init_callback(self, callback: MaybeCallback, progress_bar: bool = False) -> BaseCallback:
        if not progress_bar:
            return super()._init_callback(callback)
        if isinstance(callback, list):
            callback = CallbackList(callback)
        elif not isinstance(callback, BaseCallback):
            callback = ConvertCallback(callback)
        return super()._init_callback(CallbackList([callback, Progress()]))

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_settings", "_source", "_rollout"]

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        return ["policy", "policy.optimizer"], []

    # -- learning ---------------------------------------------------------------------------------

    def learn(
        self: Self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int | None = 1,
        tb_log_name: str = "GRPO",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> Self:
        """Train for at least ``total_timesteps`` transitions, in whole iterations."""
        if total_timesteps < 0:
            raise ValueError(f"total_timesteps={total_timesteps}: expected 0 or more")
        total_timesteps, callback = self._setup_learn(
            total_timesteps, callback, reset_num_timesteps, tb_log_name, progress_bar
        )
        self._before_training()
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
        source, parts = self._source, []
        assert self.env is not None
        limit = self.max_episode_steps or steps_limit(self.env)
        self.policy.set_training_mode(False)  # dropout off while log-probabilities are taken
        callback.on_rollout_start()

        def on_step(transitions: int, seen: dict[str, Any]) -> bool:
            self.num_timesteps += transitions
            callback.update_locals(seen)
            return callback.on_step()

        def play(n_problems: int) -> Rollout | None:
            played = collect_groups(
                source, self.policy, n_problems, self.group_size, on_step, limit
            )
            if played is not None:
                self._note_episodes(played)
                parts.append(played)
            return played

        self._rollout = refilled(play, self.n_problems, self.max_refills, self.spread_tol)
        if self._rollout is None:
            return False
        self._examine(parts)
        self._rollout.log = None
        callback.update_locals({"rollout": self._rollout})
        callback.on_rollout_end()
        return True

    def _before_training(self) -> None:
        """Called once in each ``learn``, after the setup."""

    def _examine(self, played: list[Rollout]) -> None:
        """Called with all rollouts of an iteration, also those that dynamic sampling replaced."""

    # -- logging ----------------------------------------------------------------------------------

    def _note_episodes(self, rollout: Rollout) -> None:
        """SB3's rolling window of episode returns, lengths and successes."""
        assert self.ep_info_buffer is not None and self.ep_success_buffer is not None
        assert rollout.log is not None
        last, raw = rollout.log.ended[-self._stats_window_size :], rollout.log.raw_returns
        returns = (rollout.returns.flatten().cpu().numpy() if raw is None else raw)[last]
        lengths = rollout.lengths.numpy()[last]
        for episode, r, length in zip(*(x.tolist() for x in (last, returns, lengths)), strict=True):
            info = rollout.log.infos.get(episode, {"r": r, "l": length})
            if math.isfinite(info["r"]):  # train() drops the others or raises an error
                self.ep_info_buffer.append(info)
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
