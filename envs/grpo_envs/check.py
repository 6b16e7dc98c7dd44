"""Check the group contract: for a given problem, observations and rewards depend only on the
actions.

Every problem is rolled out several times with the same actions: in every sub-environment, after
different episodes, next to different problems, and with different states of Python's and numpy's
global random generators. An error names the problem and the step of the first difference.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array

MAX_STEPS = 200  # compared in each episode
_MAX_DRAWS = 100  # resets to find different problems


@dataclass
class Trace:
    """One rollout of one problem: the results of ``reset`` (with reward 0.0) and of each step."""

    observations: list[Any] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    ends: list[tuple[bool, bool]] = field(default_factory=list)  # terminated, truncated

    @property
    def ended(self) -> bool:
        """The episode is over, or has ``MAX_STEPS`` steps."""
        return any(self.ends[-1]) or len(self.ends) > MAX_STEPS

    def add(self, observation: Any, reward: Any, terminated: Any, truncated: Any) -> None:
        """Append the results of one reset or step; the observation is copied."""
        self.observations.append(copy.deepcopy(observation))
        self.rewards.append(float(reward))
        self.ends.append((bool(terminated), bool(truncated)))


def check_group_env(
    env: gym.Env[Any, Any] | VectorEnv[Any, Any, Any], n_problems: int = 4, seed: int = 0
) -> None:
    """Check the group contract of ``env`` on ``n_problems`` problems.

    If ``info`` has a ``problem_id``, problems are started by ``reset(options={"problem_id": k})``,
    and ``info`` needs the same keys at every step, each a Python float (in a vector environment: a
    float64 array). Otherwise a problem is a seed shared by the whole group, from ``seed`` on.

    Args:
        env: a scalar or vector environment; it is reset and stepped, but not closed.
        n_problems: how many problems to try, at most.
        seed: of the problems and the actions.

    Raises:
        AssertionError: the contract is broken; names the problem, the step and the difference.
        ValueError: ``n_problems`` is below 1.
    """
    if n_problems < 1:
        raise ValueError(f"n_problems={n_problems}: expected at least 1")
    view = _VectorView(env) if isinstance(env, VectorEnv) else _ScalarView(env)
    problems = _find_problems(view, n_problems, seed)
    actions = {problem: _draw_actions(env, seed + i) for i, problem in enumerate(problems)}
    with _global_generators_restored():
        expected: dict[int, Trace] = {}
        for problem in problems:
            _disturb(seed)
            first, *others = view.rollout([problem] * view.n, actions)
            expected[problem] = first
            for member, other in enumerate(others, start=1):
                _compare(problem, first, other, f"group members 0 and {member}")
        # Backwards: some rollouts of a problem are an odd number of episodes apart, some an even.
        for repeat in reversed(range(len(problems))):
            _disturb(seed + 1 + repeat)
            mixture = [problems[(repeat + i) % len(problems)] for i in range(view.n)]
            for problem, trace in zip(mixture, view.rollout(mixture, actions), strict=True):
                _compare(problem, expected[problem], trace, "a first rollout and a later one")


# -- one interface for scalar and vector environments ---------------------------------------------


class _ScalarView:
    n = 1

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        self.env = env
        self.by_id = True

    def first_infos(self, seed: int) -> list[dict[str, Any]]:
        return [self.env.reset(seed=seed)[1]]

    def rollout(self, problems: list[int], actions: dict[int, list[Any]]) -> list[Trace]:
        (problem,) = problems
        start: dict[str, Any] = {"seed": problem}
        if self.by_id:
            start = {"options": {"problem_id": problem}}
        observation, info = self.env.reset(**start)
        keys, trace = self._check_info(problem, info, None), Trace()
        trace.add(observation, 0.0, False, False)
        for action in actions[problem]:
            observation, reward, terminated, truncated, info = self.env.step(copy.deepcopy(action))
            self._check_info(problem, info, keys)
            trace.add(observation, reward, terminated, truncated)
            if trace.ended:
                break
        return [trace]

    def _check_info(self, problem: int, info: dict[str, Any], keys: Any) -> Any:
        if not self.by_id:
            return None
        _check_keys(problem, info, keys)
        for name, value in info.items():
            if type(value) is not float:
                raise AssertionError(
                    f"problem {problem}: info[{name!r}] is {value!r}, a {type(value).__name__}: "
                    "expected a Python float"
                )
        _check_problem(problem, info["problem_id"])
        return info.keys()


class _VectorView:
    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        self.env = env
        self.n = env.num_envs
        self.by_id = True
        self.waits = env.metadata.get("autoreset_mode") == AutoresetMode.DISABLED

    def first_infos(self, seed: int) -> list[dict[str, Any]]:
        infos = self.env.reset(seed=seed)[1]
        if "problem_id" not in infos:
            return [{}]
        return [{"problem_id": problem} for problem in infos["problem_id"]]

    def rollout(self, problems: list[int], actions: dict[int, list[Any]]) -> list[Trace]:
        observations, infos = self._reset(problems)
        keys = self._check_infos(problems, infos, None, np.ones(self.n, dtype=bool))
        traces = [Trace() for _ in problems]
        for i, trace in enumerate(traces):
            trace.add(_member(observations, i), 0.0, False, False)
        for step in range(MAX_STEPS):
            batch = [actions[problem][step] for problem in problems]
            going = np.array([not trace.ended for trace in traces])
            observations, rewards, terminated, truncated, infos = self.env.step(self._join(batch))
            final = infos.pop("final_obs", None)
            had_final = infos.pop("_final_obs", np.zeros(self.n, dtype=bool))
            for name in ("final_info", "_final_info"):
                infos.pop(name, None)
            ended = np.logical_or(terminated, truncated)
            self._check_infos(problems, infos, keys, going & ~ended)
            for i in going.nonzero()[0].tolist():
                source = final if final is not None and had_final[i] else observations
                last = _member(source, i)
                traces[i].add(last, rewards[i], terminated[i], truncated[i])
            if all(trace.ended for trace in traces):
                break
            if self.waits and ended.any():
                self.env.reset(options={"reset_mask": ended})
        return traces

    def _reset(self, problems: list[int]) -> tuple[Any, dict[str, Any]]:
        start: dict[str, Any] = {"seed": problems}
        if self.by_id:
            start = {"options": {"problem_id": np.array(problems)}}
        try:
            return self.env.reset(**start)
        except Exception as error:
            raise AssertionError(
                f"problems {problems}: reset({start}) fails, so a group cannot be started: {error}"
            ) from error

    def _join(self, actions: list[Any]) -> Any:
        space = self.env.single_action_space
        return concatenate(space, actions, create_empty_array(space, self.n))  # type: ignore[arg-type]

    def _check_infos(
        self, problems: list[int], infos: dict[str, Any], keys: Any, going: np.ndarray
    ) -> Any:
        if not self.by_id:
            return None
        _check_keys(problems[0], infos, keys)
        for name, values in infos.items():
            wanted = bool if name.startswith("_") else np.float64
            if not isinstance(values, np.ndarray) or values.dtype != wanted:
                raise AssertionError(
                    f"problem {problems[0]}: infos[{name!r}] is {values!r}: "
                    f"expected an array of {np.dtype(wanted)}"
                )
        for i in going.nonzero()[0].tolist():
            _check_problem(problems[i], infos["problem_id"][i])
        return infos.keys()


def _member(batch: Any, i: int) -> Any:
    """Row i of a batched observation."""
    if isinstance(batch, dict):
        return {name: _member(part, i) for name, part in batch.items()}
    if isinstance(batch, tuple):
        if batch and not isinstance(batch[0], (np.ndarray, dict, tuple)):
            return batch[i]
        return tuple(_member(part, i) for part in batch)
    return batch[i]


# -- problems, actions, disturbances --------------------------------------------------------------


def _find_problems(view: _ScalarView | _VectorView, n_problems: int, seed: int) -> list[int]:
    """Different problem ids drawn by the environment, or seeds if it has no ids."""
    found: dict[int, None] = {}
    for draw in range(_MAX_DRAWS):
        for info in view.first_infos(seed + draw):
            if "problem_id" not in info:
                view.by_id = False
                return list(range(seed, seed + n_problems))
            found[int(info["problem_id"])] = None
        if len(found) >= n_problems:
            break
    return list(found)[:n_problems]


def _draw_actions(env: Any, seed: int) -> list[Any]:
    """``MAX_STEPS`` random actions for one problem."""
    vector = isinstance(env, VectorEnv)
    space = copy.deepcopy(env.single_action_space if vector else env.action_space)
    space.seed(seed)
    return [space.sample() for _ in range(MAX_STEPS)]


def _disturb(seed: int) -> None:
    """Change the global generators, in case the environment uses them."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002


@contextmanager
def _global_generators_restored() -> Iterator[None]:
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


# -- comparisons ----------------------------------------------------------------------------------


def _check_keys(problem: int, info: dict[str, Any], keys: Any) -> None:
    if "problem_id" not in info or (keys is not None and info.keys() != keys):
        raise AssertionError(
            f"problem {problem}: info has the keys {sorted(info)}: expected "
            f"{sorted(keys or ['problem_id', '...'])} at every step, as at the start"
        )


def _check_problem(problem: int, reported: Any) -> None:
    if reported != problem:
        raise AssertionError(
            f"problem {problem} was asked for by reset(options={{'problem_id': {problem}}}), "
            f"but info says {reported}: expected that problem until the episode ends"
        )


def _compare(problem: int, a: Trace, b: Trace, who: str) -> None:
    for step, (left, right) in enumerate(zip(a.observations, b.observations, strict=False)):
        if not data_equivalence(left, right, exact=True):
            what = "first observations" if step == 0 else f"observations after step {step}"
            raise AssertionError(f"problem {problem}: the {what} of {who} differ, {_CAUSE}")
        if a.rewards[step] != b.rewards[step]:
            raise AssertionError(
                f"problem {problem}: the rewards of {who} at step {step} are {a.rewards[step]} and "
                f"{b.rewards[step]}, {_CAUSE}"
            )
        if a.ends[step] != b.ends[step]:
            raise AssertionError(
                f"problem {problem}: (terminated, truncated) of {who} at step {step} is "
                f"{a.ends[step]} and {b.ends[step]}, {_CAUSE}"
            )


_CAUSE = (
    "with equal actions: they depend on something else too (a random generator, earlier episodes, "
    "or the place in the batch)"
)
