"""Speed of the environments: the native vector environment beside SyncVectorEnv, AsyncVectorEnv and
SB3's DummyVecEnv of the same task, and beside the copying of its observations alone.

    python benchmarks/env_speed.py --repeats 5 --out results/benchmarks

All take random actions and restart episodes within the step that ends them (SAME_STEP: under
NEXT_STEP every second step of a one-step task is idle).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from _compare import Table, in_turns, parser, progress, ratio, ratio_columns, spread, verdict
from gymnasium.utils.performance import benchmark_step, benchmark_vector_step
from gymnasium.vector import AutoresetMode, VectorEnv
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from grpo_bench.report.numbers import significant
from grpo_bench.report.writers import Column

IDS = ("GRPO-VLM-v0", "GRPO-Arithmetic-v0", "GRPO-Format-v0")
NATIVE, COPY = "native", "copying observations alone"
TARGET = 10.0  # times SyncVectorEnv at 1,024 sub-environments

Rate = Callable[[int], float]


def subjects(
    env_id: str, n: int, seconds: float, most: int, open_envs: ExitStack
) -> dict[str, Rate]:
    """What is measured at n sub-environments, each a function of the turn that gives transitions
    per second. The environments are made now and closed by ``open_envs``.

    Args:
        most: with more sub-environments than this only the native ones are made.
    """
    native = gym.make_vec(env_id, num_envs=n)
    found: dict[str, Rate] = {
        NATIVE: partial(stepping_vector, native, seconds),
        COPY: partial(copying, native.reset(seed=0)[0], n, seconds),
    }
    open_envs.callback(native.close)
    if n <= most:
        for name, mode in (("SyncVectorEnv", "sync"), ("AsyncVectorEnv", "async")):
            env = gym.make_vec(
                env_id,
                num_envs=n,
                vectorization_mode=mode,
                vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP},
            )
            open_envs.callback(env.close)
            found[name] = partial(stepping_vector, env, seconds)
        dummy = DummyVecEnv([partial(gym.make, env_id)] * n)
        open_envs.callback(dummy.close)
        found["DummyVecEnv"] = partial(stepping_sb3, dummy, seconds)
    if n == 1:
        scalar = gym.make(env_id)
        open_envs.callback(scalar.close)
        found["scalar"] = partial(stepping_scalar, scalar, seconds)
    return found


def stepping_scalar(env: gym.Env[Any, Any], seconds: float, turn: int) -> float:
    """Transitions per second of a scalar environment, by Gymnasium's own benchmark."""
    return benchmark_step(env, seconds, turn)  # type: ignore[arg-type]  # floats do as well


def stepping_vector(env: VectorEnv[Any, Any, Any], seconds: float, turn: int) -> float:
    """Transitions per second of a vector environment, by Gymnasium's own benchmark."""
    return benchmark_vector_step(env, seconds, turn)  # type: ignore[arg-type]


def stepping_sb3(env: VecEnv, seconds: float, turn: int) -> float:
    """Transitions per second of an SB3 VecEnv: Gymnasium's benchmark, for the other interface."""
    env.seed(turn)
    env.reset()
    batched = gym.vector.utils.batch_space(env.action_space, env.num_envs)
    batched.seed(turn)
    return repeated(lambda: env.step(batched.sample()), env.num_envs, seconds)


def copying(obs: Any, n: int, seconds: float, turn: int) -> float:
    """Observations per second gathered into fresh arrays in random order: what any environment
    that hands over observations has to do.

    Args:
        obs: a batch of n observations, an array or a dict of arrays.
    """
    parts = list(obs.values()) if isinstance(obs, dict) else [obs]
    order = np.random.default_rng(turn).permutation(n)
    return repeated(lambda: [part[order] for part in parts], n, seconds)


def repeated(call: Callable[[], object], n: int, seconds: float) -> float:
    """n times the number of calls per second, after one that does not count."""
    call()
    calls, elapsed, start = 0, 0.0, time.perf_counter()
    while not calls or elapsed < seconds:
        call()
        calls += 1
        elapsed = time.perf_counter() - start
    return n * calls / elapsed


def main(arguments: list[str] | None = None) -> None:
    command = parser(__doc__)
    command.add_argument("--ids", nargs="+", default=IDS, help="environments")
    command.add_argument("--sizes", nargs="+", type=int, default=(1, 64, 1024, 16384), metavar="N")
    command.add_argument("--most", type=int, default=1024, help="sub-environments but native ones")
    command.add_argument("--seconds", type=float, default=0.3, help="of each measurement")
    options = command.parse_args(arguments)
    table = Table(
        caption="Speed of the environments",
        labels=("environment", "sub-environments", "implementation"),
        columns=[
            Column("transitions/s", "rate", significant, interval=True),
            *ratio_columns("native / this"),
        ],
        repeats=options.repeats,
    )
    for env_id in options.ids:
        for n in options.sizes:
            progress(f"{env_id}, {n:,} sub-environments")
            with ExitStack() as open_envs:
                found = subjects(env_id, n, options.seconds, options.most, open_envs)
                rates = in_turns(found, options.repeats)
            for name, values in rates.items():
                labels = dict(zip(table.labels, (env_id, f"{n:,}", name), strict=True))
                against = {} if name == NATIVE else ratio(rates[NATIVE], values)
                table.add(labels, spread("rate", values), against)
                if name == "SyncVectorEnv" and n == 1024:
                    what = f"{env_id}, 1,024 sub-environments, native / SyncVectorEnv"
                    table.footnotes.append(verdict(what, against, at_least=TARGET))
    table.write(options.out, "env_speed")


if __name__ == "__main__":
    main()
