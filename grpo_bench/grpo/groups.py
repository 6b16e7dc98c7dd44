"""Sources of groups: start the same problem in several sub-environments, and step them.

A *start* makes the members of a group begin alike: a problem id where the environment has ids, else
a seed, and nothing in ``mixed_start`` groups. There are two classes, because SB3's and Gymnasium's
vector environments take seeds, options and steps in different ways. Where sub-environments can be
stepped one by one, each plays one episode after the other (``episode_queue``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, overload

import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from stable_baselines3.common.vec_env import VecEnv

from grpo_bench.grpo.episode_queue import EpisodeQueue, QueuedVecEnv, QueuedVectorEnv
from grpo_bench.grpo.sub_envs import sub_envs_of
from grpo_bench.grpo.vec_env import (
    VectorEnvAdapter,
    base_vec_env,
    infos_apart,
    takes_problem_ids,
    tensor_device,
    to_host,
)


class Step(NamedTuple):
    """One step of the sub-environments that play an episode; the rows of others mean nothing.
    Rewards and ends are on the host, which counts episodes; ``obs`` may be on a device."""

    obs: Any  # of a sub-environment that began an episode: the first
    rewards: np.ndarray  # (E,)
    dones: np.ndarray  # (E,) bool
    truncated: np.ndarray  # (E,) bool, done because of a time limit alone
    success: np.ndarray  # (E,) float, NaN where the environment does not say
    began: np.ndarray  # (n,) sub-environments that began their next episode
    raw_obs: Any  # before wrappers such as VecNormalize changed them
    raw_rewards: np.ndarray  # (E,) the same
    infos: Sequence[dict[str, Any]]  # (E,)


NONE = np.zeros(0, dtype=int)


class GroupSource(Protocol):
    """Starts problems in E sub-environments, and steps them."""

    kind: str  # of start: "problem_id", "seed" or "mixed_start"
    n_envs: int
    device: torch.device | None  # of observations and actions; None: they are arrays

    def draw(self, n: int) -> np.ndarray:
        """n starts, (n,)."""
        ...

    def problem_stream(self) -> np.random.Generator | torch.Generator | None:
        """The random stream of the environment from which ``draw`` takes problems, if there is one
        that can be saved."""
        ...

    def playing(self, queue: EpisodeQueue) -> Any:
        """A context in which ``begin`` and ``step`` play the episodes of the queue."""
        ...

    def begin(self, queue: EpisodeQueue) -> tuple[Any, Any]:
        """Begin the next episodes of the queue in all sub-environments.

        Returns:
            First observations, batched; and the same before wrappers changed them.
        """
        ...

    def step(self, actions: Any, queue: EpisodeQueue) -> Step:
        """One action (E, ...) in every sub-environment: an array, or a tensor on ``device``. The
        queue then has the episodes that began, and none for those that ended without a next."""
        ...


def make_source(env: VecEnv, rng: np.random.Generator, mixed_start: bool) -> GroupSource:
    """The source that fits the environment; ``rng`` draws the seeds where there are no ids."""
    if isinstance(env, VectorEnvAdapter):
        return VectorEnvSource(env, rng, mixed_start)
    return VecEnvSource(env, rng, mixed_start)


class LateInfos(Sequence[dict[str, Any]]):
    """The infos of a Gymnasium vector environment as a dict for each sub-environment. They are made
    when they are first looked at, as few callbacks do."""

    def __init__(self, infos: dict[str, Any], dones: np.ndarray) -> None:
        self._batched, self._dones = infos, dones
        self._each: list[dict[str, Any]] | None = None

    def __len__(self) -> int:
        return len(self._dones)

    @overload
    def __getitem__(self, i: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, i: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, i: Any) -> Any:
        if self._each is None:
            final = to_host(self._batched.get("final_info", {}))
            each = infos_apart(to_host(self._batched), np.ones(len(self), dtype=bool))
            ends = infos_apart(final, self._dones) if final else [{}] * len(self)
            self._each = [one | end for one, end in zip(each, ends, strict=True)]
        return self._each[i]


class VectorEnvSource(GroupSource):
    """Groups in a Gymnasium ``VectorEnv``.

    Raises:
        ValueError: the environment can neither start given problems nor seed each sub-environment,
            so the members of a group cannot start alike.
    """

    def __init__(self, adapter: VectorEnvAdapter, rng: np.random.Generator, mixed_start: bool):
        self.env, self.mode, self.rng = adapter.env, adapter.mode, rng
        self.n_envs = adapter.num_envs
        self.device = tensor_device(self.env)
        self.queued: QueuedVectorEnv | None = None
        base = self.env.unwrapped
        self.sub_envs = None if takes_problem_ids(self.env) else sub_envs_of(base)
        self._seed = adapter._pending_seed()
        if mixed_start:
            self.kind = "mixed_start"
        elif takes_problem_ids(self.env):
            self.kind = "problem_id"
        elif isinstance(self.env.unwrapped, SyncVectorEnv | AsyncVectorEnv):
            self.kind = "seed"
        else:
            raise ValueError(
                f"{self.env} takes one seed for all its sub-environments, so the members of a "
                "group cannot start alike: use SyncVectorEnv, an environment with problem ids, or "
                "mixed_start=True"
            )
        self.env.reset(seed=self._seed)

    def draw(self, n: int) -> np.ndarray:
        if self.kind == "problem_id":
            return to_host(self.env.unwrapped.draw_problems(n))  # type: ignore[attr-defined]
        return self.rng.integers(2**31, size=n)

    def problem_stream(self) -> np.random.Generator | torch.Generator | None:
        if self.kind != "problem_id":
            return None
        env: Any = self.env.unwrapped
        return getattr(env, "generator", None) or env.np_random

    @contextmanager
    def playing(self, queue: EpisodeQueue) -> Iterator[None]:
        if self.sub_envs is None:
            yield
            return
        env, base = self.env, self.env.unwrapped
        self.queued = QueuedVectorEnv(base, self.sub_envs, queue)
        with _in_place_of(base, self.queued, env, "env") as self.env:
            try:
                yield
            finally:
                self.env, self.queued = env, None

    def begin(self, queue: EpisodeQueue) -> tuple[Any, Any]:
        begun = queue.advance(np.arange(self.n_envs))
        if self.queued is not None:
            obs, _ = self.env.reset()
            return obs, self.queued.raw_obs
        starts = np.resize(queue.starts[queue.playing[begun]], self.n_envs)
        match self.kind:
            case "problem_id":
                obs, infos = self.env.reset(options={"problem_id": starts})
                self._check(begun, infos, queue)
            case _:
                obs, _ = self.env.reset()
        return obs, obs

    def step(self, actions: Any, queue: EpisodeQueue) -> Step:
        obs, *ends, infos = self.env.step(actions)
        rewards, terminated, truncated = to_host(tuple(ends))
        dones = terminated | truncated
        final = infos.get("final_info", infos)
        success = np.full(self.n_envs, np.nan)
        if "is_success" in final:
            said = to_host(final.get("_is_success", np.ones(self.n_envs, dtype=bool)))
            success[said] = to_host(final["is_success"])[said]
        began, raw_obs, raw_rewards = NONE, obs, rewards
        if self.queued is not None:
            if self.mode is AutoresetMode.DISABLED and queue.left and dones.any():
                began = queue.advance(np.flatnonzero(dones))
                obs, _ = self.env.reset(options={"reset_mask": _mask(began, self.n_envs)})
            else:
                began = self.queued.began
            raw_obs, raw_rewards = self.queued.raw_obs, self.queued.raw_rewards
        else:
            ended = np.flatnonzero(dones & (queue.playing >= 0))
            if self.mode is AutoresetMode.DISABLED and self.kind == "problem_id":
                began = queue.advance(ended)
                if len(began):
                    ids = queue.starts[queue.playing]
                    options = {"problem_id": ids, "reset_mask": _mask(began, self.n_envs)}
                    obs, begun_infos = self.env.reset(options=options)
                    raw_obs = obs
                    self._check(began, begun_infos, queue)
            else:
                queue.playing[ended] = -1
                if self.mode is AutoresetMode.DISABLED and dones.any():
                    obs, _ = self.env.reset(options={"reset_mask": dones})
        return Step(
            obs,
            rewards,
            dones,
            truncated & ~terminated,
            success,
            began,
            raw_obs,
            raw_rewards,
            LateInfos(infos, dones),
        )

    def _check(self, slots: np.ndarray, infos: dict[str, Any], queue: EpisodeQueue) -> None:
        if "problem_id" in infos:
            reported = to_host(infos["problem_id"])[slots]
            if (reported != queue.starts[queue.playing[slots]]).any():
                queue.check(slots, reported)


@contextmanager
def _in_place_of(base: Any, other: Any, outermost: Any, link: str) -> Iterator[Any]:
    """``other`` takes the place of ``base`` below all wrappers, which hold each other as ``link``.
    Yields what is outermost then."""
    if outermost is base:
        yield other
        return
    wrapper = outermost
    while getattr(wrapper, link) is not base:
        wrapper = getattr(wrapper, link)
    setattr(wrapper, link, other)
    try:
        yield outermost
    finally:
        setattr(wrapper, link, base)


def _mask(slots: np.ndarray, n: int) -> np.ndarray:
    mask = np.zeros(n, dtype=bool)
    mask[slots] = True
    return mask


class VecEnvSource(GroupSource):
    """Groups in an SB3 ``VecEnv``. In ``DummyVecEnv`` and ``SubprocVecEnv`` each sub-environment
    plays one episode after the other. In others all begin together, by the ids in ``set_options``
    or the seeds in ``_seeds`` (there is no public way to seed each sub-environment). There the
    sub-environments whose episodes have ended go on until the last one ends; these steps count
    nowhere."""

    def __init__(self, env: VecEnv, rng: np.random.Generator, mixed_start: bool):
        self.env, self.rng = env, rng
        self.n_envs = env.num_envs
        self.device = None
        self.queued: QueuedVecEnv | None = None
        base = base_vec_env(env)
        base.reset()  # not its wrappers: VecNormalize would count the observations
        self.sub_envs = sub_envs_of(base)
        has_ids = all("problem_id" in info for info in base.reset_infos)
        if isinstance(base, VectorEnvAdapter):  # infos may carry ids that reset() does not take
            has_ids = takes_problem_ids(base.env)
        self.kind = "mixed_start" if mixed_start else "problem_id" if has_ids else "seed"

    def draw(self, n: int) -> np.ndarray:
        if self.kind != "problem_id":
            return self.rng.integers(2**31, size=n)
        ids: list[float] = []
        base = base_vec_env(self.env)
        while len(ids) < n:
            base.reset()
            ids += [info["problem_id"] for info in base.reset_infos]
        return np.array(ids[:n])

    def problem_stream(self) -> None:
        return None

    @contextmanager
    def playing(self, queue: EpisodeQueue) -> Iterator[None]:
        if self.sub_envs is None:
            yield
            return
        env, base = self.env, base_vec_env(self.env)
        self.queued = QueuedVecEnv(base, self.sub_envs, queue)
        with _in_place_of(base, self.queued, env, "venv") as self.env:
            try:
                yield
            finally:
                self.env, self.queued = env, None

    def begin(self, queue: EpisodeQueue) -> tuple[Any, Any]:
        begun = queue.advance(np.arange(self.n_envs))
        if self.queued is not None:
            obs = self.env.reset()
            return obs, self.queued.raw_obs
        starts = np.resize(queue.starts[queue.playing[begun]], self.n_envs).tolist()
        base = base_vec_env(self.env)
        match self.kind:
            case "problem_id":
                base.set_options([{"problem_id": start} for start in starts])
            case "seed":
                base._seeds = starts
        obs = self.env.reset()
        queue.check(begun, [base.reset_infos[i].get("problem_id") for i in begun])
        return obs, obs

    def step(self, actions: Any, queue: EpisodeQueue) -> Step:
        obs, rewards, dones, infos = self.env.step(actions)
        success = np.array([float(info.get("is_success", np.nan)) for info in infos])
        truncated = np.array([bool(info.get("TimeLimit.truncated", False)) for info in infos])
        if self.queued is None:
            queue.playing[dones] = -1
            return Step(obs, rewards, dones, truncated, success, NONE, obs, rewards, infos)
        queued = self.queued
        return Step(
            obs,
            rewards,
            dones,
            truncated,
            success,
            queued.began,
            queued.raw_obs,
            queued.raw_rewards,
            infos,
        )
