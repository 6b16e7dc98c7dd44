"""A queue of episodes: a sub-environment whose episode has ended plays the next one at once.

The vector environments of SB3 and Gymnasium step all sub-environments, and restart those that end
from a start of their own choice. ``QueuedVecEnv`` and ``QueuedVectorEnv`` stand between such an
environment and its wrappers while groups are played. They step only sub-environments that have an
episode, and restart them from the starts of the queue. So every step counts, and wrappers see an
environment that restarts its episodes as usual.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import concatenate, create_empty_array
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

from grpo_bench.grpo.sub_envs import Reset, SubEnvs


class EpisodeQueue:
    """Which episode each of E sub-environments plays, and which episodes have not begun.

    Args:
        starts: (N,) the start of each episode.
        n_envs: E.
        kind: of the starts: "problem_id", "seed" or "mixed_start".

    Attributes:
        playing: (E,) the episode of each sub-environment, -1 for none.
    """

    def __init__(self, starts: np.ndarray, n_envs: int, kind: str) -> None:
        self.starts, self.kind = starts, kind
        self.playing = np.full(n_envs, -1)
        self._n_begun = 0
        self._problems: dict[int, Any] = {}  # that a group's first member reported, by its seed

    @property
    def left(self) -> int:
        """How many episodes have not begun."""
        return len(self.starts) - self._n_begun

    def active(self) -> np.ndarray:
        """The sub-environments that play an episode, (n,)."""
        return np.flatnonzero(self.playing >= 0)

    def advance(self, slots: np.ndarray) -> np.ndarray:
        """Give the next episodes to these sub-environments, in order.

        Returns:
            Those that got one. The others have no episode now.
        """
        begun = slots[: self.left]
        self.playing[slots] = -1
        self.playing[begun] = np.arange(self._n_begun, self._n_begun + len(begun))
        self._n_begun += len(begun)
        return begun

    def resets(self, slots: np.ndarray) -> list[Reset]:
        """How to reset these sub-environments to the starts of their episodes."""
        starts = self.starts[self.playing[slots]].tolist()
        match self.kind:
            case "problem_id":
                return [(None, {"problem_id": start}) for start in starts]
            case "seed":
                return [(start, None) for start in starts]
            case _:
                return [(None, None)] * len(slots)

    def check(self, slots: np.ndarray, reported: Sequence[Any] | np.ndarray) -> None:
        """Compare the problem ids that these sub-environments report, None where they report none,
        with those they were reset to; or, after a reset by seed, with that of their group.

        Raises:
            ValueError: one plays another problem; names both.
        """
        if self.kind == "mixed_start":
            return
        asked = self.starts[self.playing[slots]]
        for slot, start, id in zip(slots.tolist(), asked.tolist(), reported, strict=True):
            if id is None:
                continue
            if self.kind == "problem_id" and id != start:
                raise ValueError(
                    f"sub-environment {slot} was reset to problem {_plain(start)} and info says "
                    f"problem {_plain(id)}: make reset() start the problem in options['problem_id']"
                )
            if self.kind == "seed" and id != self._problems.setdefault(start, id):
                raise ValueError(
                    f"sub-environment {slot} was reset with seed {start} and info says problem "
                    f"{_plain(id)}, but the same seed gave problem {_plain(self._problems[start])} "
                    "to another member of its group: make reset() draw the problem from its seed"
                )


def _plain(id: Any) -> Any:
    """A whole number without its fraction: infos may have ids as floats."""
    return f"{id:.0f}" if isinstance(id, float | np.floating) and id == np.floor(id) else id


class Batch:
    """The last observation of each sub-environment, and all of them as a batch of the space."""

    def __init__(self, space: gym.Space[Any], n: int) -> None:
        self.space, self.n = space, n
        self.each = list(iterate_batch(space, create_empty_array(space, n), n))

    def put(self, slots: np.ndarray, observations: Sequence[Any]) -> None:
        """Replace those of some."""
        for i, obs in zip(slots, observations, strict=True):
            self.each[i] = obs

    def whole(self) -> Any:
        """A new batch, (n, ...)."""
        empty: Any = create_empty_array(self.space, self.n)
        return concatenate(self.space, self.each, empty)


def iterate_batch(space: gym.Space[Any], batch: Any, n: int) -> list[Any]:
    """A batch of observations as a list of n."""
    if isinstance(space, gym.spaces.Dict):
        columns = {k: iterate_batch(s, batch[k], n) for k, s in space.spaces.items()}
        return [{k: column[i] for k, column in columns.items()} for i in range(n)]
    return [batch[i] for i in range(n)]


# -- vector environments that play a queue --------------------------------------------------------


class QueuedVecEnv(VecEnvWrapper):
    """An SB3 vector environment that plays the episodes of a queue.

    Attributes:
        began: (n,) the sub-environments that began an episode in the last step.
        raw_obs: the last observations, before any wrapper changes them.
        raw_rewards: (E,) the same of the last rewards.
    """

    def __init__(self, venv: VecEnv, envs: SubEnvs, queue: EpisodeQueue) -> None:
        super().__init__(venv)
        self.envs, self.queue = envs, queue
        self.batch = Batch(venv.observation_space, venv.num_envs)
        self.began = np.zeros(0, dtype=int)
        self.raw_obs: Any = None
        self.raw_rewards = np.zeros(venv.num_envs, np.float32)
        self.actions = np.zeros(0)

    def reset(self) -> VecEnvObs:
        self._begin(self.queue.active())
        self.raw_obs = self.batch.whole()
        return self.raw_obs

    def step_async(self, actions: np.ndarray) -> None:
        self.actions = actions

    def step_wait(self) -> VecEnvStepReturn:
        active = self.queue.active()
        rewards, dones = np.zeros(self.num_envs, np.float32), np.zeros(self.num_envs, dtype=bool)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        stepped = self.envs.step(active, self.actions[active])
        for i, (obs, reward, terminated, truncated, info) in zip(active, stepped, strict=True):
            rewards[i], dones[i] = reward, terminated or truncated
            infos[i] = info | {"TimeLimit.truncated": truncated and not terminated}
            if dones[i]:
                infos[i]["terminal_observation"] = copy(obs)  # wrappers change it in place
        self.batch.put(active, [each.obs for each in stepped])
        self.began = self.queue.advance(active[dones[active]])
        self._begin(self.began)
        self.raw_obs, self.raw_rewards = self.batch.whole(), rewards
        return self.raw_obs, rewards.copy(), dones, infos

    def _begin(self, slots: np.ndarray) -> None:
        first = self.envs.reset(slots, self.queue.resets(slots))
        self.queue.check(slots, [info.get("problem_id") for _, info in first])
        self.batch.put(slots, [obs for obs, _ in first])
        known = list(self.venv.reset_infos)
        for i, (_, info) in zip(slots, first, strict=True):
            known[i] = info
        self.venv.reset_infos = known


class QueuedVectorEnv(VectorWrapper[Any, Any, Any]):
    """A Gymnasium vector environment that plays the episodes of a queue. It restarts episodes in
    the environment's own autoreset mode, which wrappers rely on; with DISABLED the caller does it,
    by ``reset(options={"reset_mask": mask})``. Attributes: as ``QueuedVecEnv``."""

    def __init__(self, env: VectorEnv[Any, Any, Any], envs: SubEnvs, queue: EpisodeQueue) -> None:
        super().__init__(env)
        self.envs, self.queue = envs, queue
        self.mode = env.metadata["autoreset_mode"]
        self.batch = Batch(env.single_observation_space, env.num_envs)
        self.ended = np.zeros(0, dtype=int)  # they begin at the next step: NEXT_STEP
        self.began = np.zeros(0, dtype=int)
        self.raw_obs: Any = None
        self.raw_rewards = np.zeros(env.num_envs)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        mask = (options or {}).get("reset_mask")
        infos = self._begin(self.queue.active() if mask is None else np.flatnonzero(mask), {})
        self.ended = self.ended[:0]
        self.raw_obs = self.batch.whole()
        return self.raw_obs, infos

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        active, n = self.queue.active(), self.num_envs
        rewards, terminated, truncated = np.zeros(n), np.zeros(n, bool), np.zeros(n, bool)
        stepped = self.envs.step(active, [actions[i] for i in active])
        infos: dict[str, Any] = {}
        for i, (obs, reward, end, cut, info) in zip(active, stepped, strict=True):
            rewards[i], terminated[i], truncated[i] = reward, end, cut
            if (end or cut) and self.mode is AutoresetMode.SAME_STEP:
                info = {"final_obs": copy(obs), "final_info": info}
            infos = self.env._add_info(infos, info, int(i))
        self.batch.put(active, [each.obs for each in stepped])
        ended = active[(terminated | truncated)[active]]
        match self.mode:
            case AutoresetMode.SAME_STEP:
                self.began = self.queue.advance(ended)
            case AutoresetMode.NEXT_STEP:
                self.began = self.queue.advance(self.ended)
                self.ended, self.queue.playing[ended] = ended, -1
            case _:
                self.began, self.queue.playing[ended] = ended[:0], -1
        infos = self._begin(self.began, infos)
        self.raw_obs, self.raw_rewards = self.batch.whole(), rewards
        return self.raw_obs, rewards.copy(), terminated, truncated, infos

    def _begin(self, slots: np.ndarray, infos: dict[str, Any]) -> dict[str, Any]:
        first = self.envs.reset(slots, self.queue.resets(slots))
        self.queue.check(slots, [info.get("problem_id") for _, info in first])
        self.batch.put(slots, [obs for obs, _ in first])
        for i, (_, info) in zip(slots, first, strict=True):
            infos = self.env._add_info(infos, info, int(i))
        return infos
