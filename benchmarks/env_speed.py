"""Speed of the environments: the native vector environment against SyncVectorEnv, AsyncVectorEnv,
SB3's DummyVecEnv, the torch view if there is one, and the floor, the least work of any step.

    python benchmarks/env_speed.py --repeats 5 --out results/benchmarks

All take random actions and restart episodes within the step that ends them (SAME_STEP; with
NEXT_STEP every second step of a one-step task would be idle).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import cycle
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from _compare import (
    Table,
    Target,
    interleaved,
    parser,
    progress,
    ratio,
    ratio_columns,
    spread,
    verdict,
)
from gymnasium.utils.performance import benchmark_step, benchmark_vector_step
from gymnasium.vector import AutoresetMode, VectorEnv
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from grpo_bench.report.text.numbers import significant
from grpo_bench.report.text.writers import Column
from grpo_envs.task import Task

VLM = "GRPO-VLM-v0"
IDS = (VLM, "GRPO-Arithmetic-v0", "GRPO-Format-v0")
SIZES = (1, 16, 64, 256, 1024, 8192, 65536)
NATIVE, SYNC = "native", "SyncVectorEnv"
DRAW, NEXT = "floor: drawing the problems", "floor: copying the next observations"
COPY, BOTH = "floor: copying the observations", "floor: drawing and copying"
JUDGED = 1024  # sub-environments: the targets are for this number
FLOOR = (
    "The floor takes random actions and does only what every implementation must do: it draws the "
    "problems of new episodes (task.sample) and fills new arrays with observations (task.observe), "
    "the next one of every sub-environment and the last one of each episode that ends. A task of "
    "one step has two observations for each transition."
)

Rate = Callable[[int], float]


def subjects(
    env_id: str, n: int, seconds: float, most: int, most_processes: int, open_envs: ExitStack
) -> dict[str, Rate]:
    """The implementations to measure at n sub-environments: functions of the turn that return
    transitions per second. ``open_envs`` closes the environments.

    Args:
        most: with more sub-environments than this, only the native ones run.
        most_processes: the same for AsyncVectorEnv, which starts a process for each.
    """
    native = gym.make_vec(env_id, num_envs=n)
    open_envs.callback(native.close)
    found: dict[str, Rate] = {NATIVE: partial(stepping_vector, native, seconds)}
    for name, part in floor(native.unwrapped.task, n).items():  # type: ignore[attr-defined]
        found[name] = partial(repeating, part, n, seconds)
    for name, mode, limit in (
        (SYNC, "sync", most),
        ("AsyncVectorEnv", "async", min(most, most_processes)),
    ):
        if n <= limit:
            env = gym.make_vec(
                env_id,
                num_envs=n,
                vectorization_mode=mode,
                vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP},
            )
            open_envs.callback(env.close)
            found[name] = partial(stepping_vector, env, seconds)
    if n <= most:
        dummy = DummyVecEnv([partial(gym.make, env_id)] * n)
        open_envs.callback(dummy.close)
        found["DummyVecEnv"] = partial(stepping_sb3, dummy, seconds)
    if env_id == VLM:
        view = gym.make_vec(env_id, num_envs=n, device="auto")
        name = f"torch view, {view.device.type}"  # type: ignore[attr-defined]
        found[name] = partial(stepping_torch, view, seconds)
    if n == 1:
        scalar = gym.make(env_id)
        open_envs.callback(scalar.close)
        found["scalar"] = partial(stepping_scalar, scalar, seconds)
    return found


# -- measurements ---------------------------------------------------------------------------------


def stepping_scalar(env: gym.Env[Any, Any], seconds: float, turn: int) -> float:
    """Transitions per second of a scalar environment, by Gymnasium's own benchmark."""
    return benchmark_step(env, seconds, turn)  # type: ignore[arg-type]  # floats work too


def stepping_vector(env: VectorEnv[Any, Any, Any], seconds: float, turn: int) -> float:
    """Transitions per second of a vector environment, by Gymnasium's own benchmark."""
    return benchmark_vector_step(env, seconds, turn)  # type: ignore[arg-type]


def stepping_sb3(env: VecEnv, seconds: float, turn: int) -> float:
    """Transitions per second of an SB3 VecEnv: Gymnasium's benchmark for SB3's interface."""
    env.seed(turn)
    env.reset()
    batched = gym.vector.utils.batch_space(env.action_space, env.num_envs)
    batched.seed(turn)
    return repeating(lambda: env.step(batched.sample()), env.num_envs, seconds, turn)


def stepping_torch(env: Any, seconds: float, turn: int) -> float:
    """Transitions per second of the torch view, with random actions from its device. It waits for
    the device only after every 20 steps."""
    env.reset(seed=turn)
    n_actions, per_wait = int(env.single_action_space.n), 20

    def steps() -> object:
        for _ in range(per_wait):
            held = env.step(torch.randint(n_actions, (env.num_envs,), device=env.device))
        return held[1].sum().item()

    return repeating(steps, per_wait * env.num_envs, seconds, turn)


def floor(task: Task, n: int) -> dict[str, Callable[[], object]]:
    """One step of n sub-environments with random actions, reduced to the parts in ``FLOOR``. On
    average as many episodes start and end as with random actions."""
    rng = np.random.default_rng(0)
    actions = gym.vector.utils.batch_space(task.action_space, n)
    # several states, so that a step's data are not in the cache
    states = cycle([task.start(task.sample(rng, n, "train")) for _ in range(4)])
    ending = cycle(rng.binomial(n, 1 / episode_length(task), size=256).tolist())

    def draw(m: int) -> object:
        return task.sample(rng, m, "train") if m else None

    def copy_next(m: int) -> object:
        return task.observe(next(states))

    def copy(m: int) -> object:
        last = {name: array[:m] for name, array in next(states).items()}
        return copy_next(m), task.observe(last) if m else None

    parts = {DRAW: draw, NEXT: copy_next, COPY: copy, BOTH: lambda m: (draw(m), copy(m))}
    return {
        name: lambda part=part: (actions.sample(), part(next(ending)))  # type: ignore[misc]
        for name, part in parts.items()
    }


def episode_length(task: Task) -> float:
    """Mean number of uniformly random actions in an episode, from 10,000 episodes."""
    rng, total = np.random.default_rng(0), 0
    state = task.start(task.sample(rng, 10_000, "train"))
    while running := len(state["problem_id"]):
        total += running
        going = ~task.step(state, rng.integers(task.action_space.n, size=running)).terminated
        state = {name: array[going] for name, array in state.items()}
    return total / 10_000


def repeating(call: Callable[[], object], n: int, seconds: float, turn: int) -> float:
    """n times the number of calls per second, after one warm-up call. The result of a call stays
    alive during the next one, as with an agent."""
    held = call()
    calls, elapsed, start = 0, 0.0, time.perf_counter()
    while not calls or elapsed < seconds:
        held = call()
        calls += 1
        elapsed = time.perf_counter() - start
    del held
    return n * calls / elapsed


# -- the table ------------------------------------------------------------------------------------


def verdicts(env_id: str, rates: Mapping[str, Sequence[float]]) -> list[Target]:
    """The targets at ``JUDGED`` sub-environments."""
    what = f"{env_id}, {JUDGED:,} sub-environments"
    over = {name: ratio(rates[NATIVE], rates[name]) for name in (SYNC, NEXT, COPY)}
    if env_id == VLM:
        limits = ((SYNC, 20.0), (NEXT, 0.5), (COPY, 0.5))
        return [verdict(f"{what}, {NATIVE} / {x}", over[x], at_least=y) for x, y in limits]
    absolute = spread("rate", rates[NATIVE])
    steps = verdict(f"{what}, {NATIVE}, token steps/s", absolute, at_least=1e6, name="rate")
    return [
        verdict(f"{what}, {NATIVE} / {SYNC}", over[SYNC], at_least=10.0),
        replace(steps, note="not a ratio: this machine only, [smallest, largest] turn"),
    ]


def main(arguments: list[str] | None = None) -> None:
    command = parser(__doc__)
    command.add_argument("--ids", nargs="+", default=IDS, help="environments")
    command.add_argument("--sizes", nargs="+", type=int, default=SIZES, metavar="N")
    command.add_argument("--most", type=int, default=1024, help="largest size except native ones")
    command.add_argument("--most-processes", type=int, default=64, help="of AsyncVectorEnv")
    command.add_argument("--seconds", type=float, default=0.2, help="of each measurement")
    options = command.parse_args(arguments)
    table = Table(
        caption="Speed of the environments",
        labels=("environment", "sub-environments", "implementation"),
        columns=[
            Column("transitions/s", "rate", significant, interval=True),
            *ratio_columns("native / this"),
        ],
        repeats=options.repeats,
        footnotes=[FLOOR],
    )
    for env_id in options.ids:
        for n in options.sizes:
            progress(f"{env_id}, {n:,} sub-environments")
            with ExitStack() as open_envs:
                limits = (options.most, options.most_processes)
                found = subjects(env_id, n, options.seconds, *limits, open_envs)
                rates = interleaved(found, options.repeats)
            for name, values in rates.items():
                labels = dict(zip(table.labels, (env_id, f"{n:,}", name), strict=True))
                against = {} if name == NATIVE else ratio(rates[NATIVE], values)
                table.add(labels, spread("rate", values), against)
            if n == JUDGED and SYNC in rates:
                table.targets += verdicts(env_id, rates)
    table.write(options.out, "env_speed")


if __name__ == "__main__":
    main()
