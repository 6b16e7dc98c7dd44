"""Test the group contract: for a given problem, observations and rewards depend only on the
actions.

Every problem is rolled out at least three times with the same actions: twice in a row, after other
problems, in every sub-environment, next to different problems, and while the world around it is
disturbed (see ``disturbances``). An error names the problem and the step of the first difference.
"""

from __future__ import annotations

import copy
import hashlib
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array

from grpo_envs.disturbances import disturbed, modules_of


@dataclass
class Trace:
    """One rollout of one problem: the results of ``reset`` (with reward 0.0) and of each step, of
    ``max_steps`` at most."""

    max_steps: int
    observations: list[Any] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    ends: list[tuple[bool, bool]] = field(default_factory=list)  # terminated, truncated

    @property
    def ended(self) -> bool:
        """The episode is over, or has ``max_steps`` steps."""
        return any(self.ends[-1]) or len(self.ends) > self.max_steps

    def add(self, observation: Any, reward: Any, terminated: Any, truncated: Any) -> None:
        """Append the results of one reset or step."""
        self.observations.append(_digest(observation))
        self.rewards.append(float(reward))
        self.ends.append((bool(terminated), bool(truncated)))


def _digest(observation: Any) -> Any:
    """A copy of the observation, with a hash in place of each array: images of all steps would fill
    the memory."""
    if isinstance(observation, dict):
        return {name: _digest(part) for name, part in observation.items()}
    if isinstance(observation, tuple):
        return tuple(map(_digest, observation))
    if not isinstance(observation, np.ndarray) or observation.dtype == object:
        return copy.deepcopy(observation)
    array = observation + 0 if observation.dtype.kind in "fc" else observation  # -0.0 equals 0.0
    return array.dtype.str, array.shape, hashlib.blake2b(array.tobytes(), digest_size=16).digest()


class Actions:
    """Random actions for one problem, always the same."""

    def __init__(self, space: gym.Space[Any], seed: int) -> None:
        self.space = copy.deepcopy(space)
        self.space.seed(seed)
        self.drawn: list[Any] = []

    def __getitem__(self, step: int) -> Any:
        while len(self.drawn) <= step:
            self.drawn.append(self.space.sample())
        return copy.deepcopy(self.drawn[step])


def check_group_env(
    env: gym.Env[Any, Any] | VectorEnv[Any, Any, Any],
    n_problems: int = 60,
    seed: int = 0,
    max_steps: int = 1_000,
) -> None:
    """Test the group contract of ``env`` on ``n_problems`` problems.

    If ``info`` has a ``problem_id``, a whole number, problems are started by
    ``reset(options={"problem_id": k})``, and ``info`` has to name the problem that was asked for.
    Other keys of ``info`` are free. Without ids a problem is a seed shared by the whole group, from
    ``seed`` on.

    This is a test, not a proof. It misses a fault in a share p of the problems with a probability
    of (1 - p)^n_problems, and one that shows at random in a share q of the episodes with a
    probability of (1 - q)^(3 n_problems), as each problem is played three times. With the default
    of 60, which finds one bad problem in 20 at 95 %:

    ========  =====  =====  =====
    p or q    1 %    5 %    20 %
    missed p  55 %   5 %    0.0 %
    missed q  16 %   0.0 %  0.0 %
    ========  =====  =====  =====

    It cannot see what random actions never reach, nor the clock where another process reads it (the
    workers of ``AsyncVectorEnv``) or code that is not Python.

    Args:
        env: a scalar or vector environment; it is reset and stepped, but not closed.
        n_problems: how many problems to try, at most.
        seed: of the problems and the actions.
        max_steps: of an episode, at most, are compared.

    Raises:
        AssertionError: the contract is broken; names the problem, the step and the difference.
        ValueError: ``n_problems`` or ``max_steps`` is below 1.
    """
    for name, value in (("n_problems", n_problems), ("max_steps", max_steps)):
        if value < 1:
            raise ValueError(f"{name}={value}: expected at least 1")
    view: _ScalarView | _VectorView
    if isinstance(env, VectorEnv):
        view = _VectorView(env, max_steps)
    else:
        view = _ScalarView(env, max_steps)
    modules = modules_of(env)
    with disturbed(0, modules):
        problems = _find_problems(view, n_problems, seed)
        actions = {problem: Actions(view.space, seed + i) for i, problem in enumerate(problems)}
        expected: dict[int, Trace] = {}
        for problem in problems:
            first, *others = view.rollout([problem] * view.n, actions)
            expected[problem] = first
            for member, other in enumerate(others, start=1):
                _compare(problem, first, other, f"group members 0 and {member}")
            for again in view.rollout([problem] * view.n, actions):
                _compare(problem, first, again, "two rollouts in a row")
    # Backwards: each follows another problem than before.
    for repeat in reversed(range(len(problems))):
        mixture = [problems[(repeat + i) % len(problems)] for i in range(view.n)]
        with disturbed(1 + repeat, modules):
            traces = view.rollout(mixture, actions)
        for problem, trace in zip(mixture, traces, strict=True):
            _compare(problem, expected[problem], trace, "a first rollout and a later one")


# -- one interface for scalar and vector environments ---------------------------------------------


class _ScalarView:
    n = 1

    def __init__(self, env: gym.Env[Any, Any], max_steps: int) -> None:
        self.env, self.max_steps = env, max_steps
        self.space = env.action_space
        self.by_id = True

    def first_ids(self, seed: int) -> list[Any]:
        """The ids of problems that the environment draws; none if it has no ids."""
        info = self.env.reset(seed=seed)[1]
        return [info["problem_id"]] if "problem_id" in info else []

    def rollout(self, problems: list[int], actions: dict[int, Actions]) -> list[Trace]:
        (problem,) = problems
        start: dict[str, Any] = {"seed": problem}
        if self.by_id:
            start = {"options": {"problem_id": problem}}
        observation, info = self.env.reset(**start)
        trace = Trace(self.max_steps)
        trace.add(observation, 0.0, False, False)
        self._check(problem, info, at_start=True)
        while not trace.ended:
            action = actions[problem][len(trace.ends) - 1]
            observation, reward, terminated, truncated, info = self.env.step(action)
            self._check(problem, info)
            trace.add(observation, reward, terminated, truncated)
        return [trace]

    def _check(self, problem: int, info: dict[str, Any], at_start: bool = False) -> None:
        if self.by_id and (at_start or "problem_id" in info):
            _check_problem(problem, info.get("problem_id", "nothing"))


class _VectorView:
    def __init__(self, env: VectorEnv[Any, Any, Any], max_steps: int) -> None:
        self.env, self.max_steps = env, max_steps
        self.n = env.num_envs
        self.space = env.single_action_space
        self.by_id = True
        self.waits = env.metadata.get("autoreset_mode") == AutoresetMode.DISABLED

    def first_ids(self, seed: int) -> list[Any]:
        """As of ``_ScalarView``."""
        return list(self.env.reset(seed=seed)[1].get("problem_id", []))

    def rollout(self, problems: list[int], actions: dict[int, Actions]) -> list[Trace]:
        observations, infos = self._reset(problems)
        traces = [Trace(self.max_steps) for _ in problems]
        for i, trace in enumerate(traces):
            trace.add(_member(observations, i), 0.0, False, False)
        self._check(problems, infos, np.ones(self.n, dtype=bool), at_start=True)
        for step in range(self.max_steps):
            batch = [actions[problem][step] for problem in problems]
            going = np.array([not trace.ended for trace in traces])
            observations, rewards, terminated, truncated, infos = self.env.step(self._join(batch))
            final = infos.get("final_obs")
            had_final = infos.get("_final_obs", np.zeros(self.n, dtype=bool))
            ended = np.logical_or(terminated, truncated)
            self._check(problems, infos, going & ~ended)
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
            same = isinstance(self.env.unwrapped, SyncVectorEnv | AsyncVectorEnv) and self.by_id
            raise AssertionError(
                f"problems {problems}: reset({start}) fails, so a group cannot be started: {error}"
                + (". Gymnasium gives all sub-environments the same options: test one alone" * same)
            ) from error

    def _join(self, actions: list[Any]) -> Any:
        space = self.env.single_action_space
        return concatenate(space, actions, create_empty_array(space, self.n))  # type: ignore[arg-type]

    def _check(
        self, problems: list[int], infos: dict[str, Any], going: np.ndarray, at_start: bool = False
    ) -> None:
        if not self.by_id:
            return
        said = infos.get("_problem_id", np.full(self.n, "problem_id" in infos))
        for i in (going & (said | at_start)).nonzero()[0].tolist():
            _check_problem(problems[i], infos["problem_id"][i] if said[i] else "nothing")


def _member(batch: Any, i: int) -> Any:
    """Row i of a batched observation."""
    if isinstance(batch, dict):
        return {name: _member(part, i) for name, part in batch.items()}
    if isinstance(batch, tuple):
        if batch and not isinstance(batch[0], (np.ndarray, dict, tuple)):
            return batch[i]
        return tuple(_member(part, i) for part in batch)
    return batch[i]


# -- problems -------------------------------------------------------------------------------------


def _find_problems(view: _ScalarView | _VectorView, n_problems: int, seed: int) -> list[int]:
    """Different problem ids drawn by the environment, or seeds if it has no ids."""
    found: dict[int, None] = {}
    for draw in range(2 * n_problems):
        ids = view.first_ids(seed + draw)
        if not ids:
            view.by_id = False
            return list(range(seed, seed + n_problems))
        found |= dict.fromkeys(map(_whole, ids))
        if len(found) >= n_problems:
            break
    return list(found)[:n_problems]


def _whole(id: Any) -> int:
    try:
        if int(id) == id:
            return int(id)
    except (TypeError, ValueError, OverflowError):
        pass
    raise AssertionError(f"info['problem_id'] is {id!r}: expected a whole number")


# -- comparisons ----------------------------------------------------------------------------------


def _check_problem(problem: int, reported: Any) -> None:
    if np.ndim(reported) or reported != problem:
        raise AssertionError(
            f"problem {problem} was asked for by reset(options={{'problem_id': {problem}}}), "
            f"but info says {reported}: expected that problem until the episode ends"
        )


def _compare(problem: int, a: Trace, b: Trace, who: str) -> None:
    for step, (left, right) in enumerate(zip(a.observations, b.observations, strict=False)):
        if not data_equivalence(left, right, exact=True):
            what = "first observations" if step == 0 else f"observations after step {step}"
            raise AssertionError(f"problem {problem}: the {what} of {who} differ, {_CAUSE}")
        if not np.array_equal(a.rewards[step], b.rewards[step], equal_nan=True):
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
    "with equal actions: they depend on something else too (a random generator, the clock, earlier "
    "episodes, or the place in the batch)"
)
