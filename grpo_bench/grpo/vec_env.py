"""A Gymnasium ``VectorEnv`` as a Stable-Baselines3 ``VecEnv``, and seeds that do not overlap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn


class VectorEnvAdapter(VecEnv):
    """Steps a native vector environment directly: no Python loop over environments, no copies.

    Episodes restart as SB3 expects: the observation of a done environment is the first of the next
    episode, and the last one is ``infos[i]["terminal_observation"]``. They are counted as in
    ``VecMonitor`` (``infos[i]["episode"]``). Tensors are copied to the host, where SB3 keeps its
    rollouts. (GRPO leaves them on their device.)

    Raises:
        ValueError: at the first step, if the environment's autoreset mode is NEXT_STEP, under which
            SB3 would train on the ignored step after each episode. (GRPO starts episodes itself
            and accepts such an environment.)
    """

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        self.env = env
        self.mode = env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        super().__init__(env.num_envs, env.single_observation_space, env.single_action_space)
        self._actions: Any = np.zeros(0)
        self._returns = np.zeros(self.num_envs)
        self._lengths = np.zeros(self.num_envs, dtype=np.int64)

    def reset(self) -> VecEnvObs:
        seed, options = self._pending_seed(), self._pending_options()
        obs, infos = to_host(self.env.reset(seed=seed, options=options))
        self._reset_seeds()
        self._reset_options()
        self._returns[:] = 0.0
        self._lengths[:] = 0
        self.reset_infos = infos_apart(infos, np.ones(self.num_envs, dtype=bool))
        return obs

    def step_async(self, actions: np.ndarray) -> None:
        if self.mode is AutoresetMode.NEXT_STEP:
            raise ValueError(
                f"{self.env}: autoreset_mode is NEXT_STEP; make it with autoreset_mode=SAME_STEP "
                "or DISABLED (for SyncVectorEnv in vector_kwargs)"
            )
        device = tensor_device(self.env)
        self._actions = actions if device is None else torch.as_tensor(actions, device=device)

    def step_wait(self) -> VecEnvStepReturn:
        obs, rewards, terminated, truncated, infos = to_host(self.env.step(self._actions))
        dones = terminated | truncated
        self._returns += rewards
        self._lengths += 1
        each = infos_apart(infos.get("final_info", infos), dones)
        if dones.any():
            columns = (
                _rows(infos.get("final_obs", obs), dones),
                (truncated & ~terminated)[dones].tolist(),
                self._returns[dones].tolist(),
                self._lengths[dones].tolist(),
            )
            for i, last, cut, r, length in zip(dones.nonzero()[0].tolist(), *columns, strict=True):
                each[i]["terminal_observation"] = last
                each[i]["TimeLimit.truncated"] = cut
                each[i]["episode"] = {"r": r, "l": length}
            self._returns[dones] = 0.0
            self._lengths[dones] = 0
            if self.mode is AutoresetMode.DISABLED:
                obs, _ = to_host(self.env.reset(options={"reset_mask": dones}))
        return obs, rewards.astype(np.float32), dones, each

    def close(self) -> None:
        self.env.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [getattr(self.env, attr_name)] * len(list(self._get_indices(indices)))

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        setattr(self.env.unwrapped, attr_name, value)

    def env_method(
        self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any
    ) -> list[Any]:
        """Calls the vector environment's method once. A result with one entry for each
        sub-environment is split; any other is the result of every sub-environment."""
        result = getattr(self.env.unwrapped, method_name)(*args, **kwargs)
        chosen = list(self._get_indices(indices))
        if isinstance(result, np.ndarray | tuple | list) and len(result) == self.num_envs:
            return [result[i] for i in chosen]
        return [result] * len(chosen)

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Any = None) -> list[bool]:
        return [False] * len(list(self._get_indices(indices)))

    def get_images(self) -> Sequence[np.ndarray | None]:
        frames: Any = self.env.render()
        return [None] * self.num_envs if frames is None else list(frames)

    def _pending_seed(self) -> Any:
        if self._seeds[0] is None:
            return None
        takes_a_list = isinstance(self.env.unwrapped, SyncVectorEnv | AsyncVectorEnv)
        return list(self._seeds) if takes_a_list else self._seeds[0]

    def _pending_options(self) -> dict[str, Any] | None:
        first = self._options[0]
        if not first:
            return None
        if first.keys() == {"problem_id"} and takes_problem_ids(self.env):
            return {"problem_id": np.array([options["problem_id"] for options in self._options])}
        return first


def tensor_device(env: VectorEnv[Any, Any, Any]) -> torch.device | None:
    """The device of an environment's observations and actions; None: they are arrays."""
    device = getattr(env.unwrapped, "device", None)
    return device if isinstance(device, torch.device) else None


def to_host(values: Any) -> Any:
    """Tensors as arrays, also in tuples and dicts; other values unchanged."""
    if isinstance(values, torch.Tensor):
        return values.numpy(force=True)
    if isinstance(values, dict):
        return {name: to_host(value) for name, value in values.items()}
    return tuple(map(to_host, values)) if isinstance(values, tuple) else values


def takes_problem_ids(env: VectorEnv[Any, Any, Any]) -> bool:
    """Whether ``reset(options={"problem_id": array})`` and ``draw_problems(n)`` work on it."""
    return hasattr(env.unwrapped, "draw_problems")


def infos_apart(infos: dict[str, Any], which: np.ndarray) -> list[dict[str, Any]]:
    """Gymnasium's batched infos as a dict of Python values for each sub-environment.

    It splits column by column, for speed: this runs at every step, for thousands of episodes.

    Args:
        infos: arrays (n, ...); the mask ``_k`` (n,) says which sub-environments have key k, all if
            there is no mask. Other values than arrays are left out.
        which: (n,) bool; the dicts of the others are empty.
    """
    each: list[dict[str, Any]] = [{} for _ in which]
    for name, values in infos.items():
        if name.startswith("_") or not isinstance(values, np.ndarray):
            continue
        there = which & infos.get(f"_{name}", True)
        for i, value in zip(there.nonzero()[0].tolist(), _plain(values[there]), strict=True):
            each[i][name] = value
    return each


def _plain(values: np.ndarray) -> list[Any]:
    """An array (n, ...) as a list of n Python numbers or arrays."""
    if values.ndim == 1 and values.dtype != object:
        return values.tolist()
    return [value.item() if isinstance(value, np.generic) else value for value in values]


def _rows(batch: Any, which: np.ndarray) -> list[Any]:
    """The observations at which ``which`` (n,) is true, of an array or a dict of arrays."""
    if isinstance(batch, dict):
        columns = [_rows(array, which) for array in batch.values()]
        return [dict(zip(batch, row, strict=True)) for row in zip(*columns, strict=True)]
    return list(batch[which])


def base_vec_env(env: VecEnv) -> VecEnv:
    """The environment inside all of SB3's wrappers."""
    while isinstance(env, VecEnvWrapper):
        env = env.venv
    return env


def seed_sub_environments(env: VecEnv, sequence: np.random.SeedSequence) -> None:
    """Give each sub-environment its own random stream at the next reset.

    ``VecEnv.seed(s)`` gives sub-environment i the seed s + i, so neighbouring seeds train on mostly
    the same problems (SB3 #2268).
    """
    base = base_vec_env(env)
    base._seeds = [int(seed) for seed in sequence.generate_state(base.num_envs)]
