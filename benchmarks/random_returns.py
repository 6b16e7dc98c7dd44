"""The mean return of uniformly random actions on the control environments of ``conf/env``.

    python benchmarks/random_returns.py --episodes 200

prints a line for each environment that is installed: the source of ``returns.random`` in its file.
"""

from __future__ import annotations

import argparse

import numpy as np

from grpo_bench.config import CONF, ControlConfig, composed
from grpo_bench.config.schema import ControlEnvConfig
from grpo_bench.training.control import check_env, maker


def random_returns(env: ControlEnvConfig, episodes: int) -> np.ndarray:
    """The return of each episode, (episodes,); episode k starts from seed k."""
    made, returns = maker(env)(), []
    made.action_space.seed(0)
    for seed in range(episodes):
        made.reset(seed=seed)
        ended = False
        while not ended:
            _, _, terminated, truncated, info = made.step(made.action_space.sample())
            ended = terminated or truncated
        returns.append(info["episode"]["r"])
    return np.array(returns)


def main() -> None:
    """Print name, mean and standard error for each environment."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=200)
    episodes = parser.parse_args().episodes
    for name in sorted(path.stem for path in (CONF / "env").glob("*.yaml") if path.stem != "gym"):
        try:
            config = composed(f"env={name}", "algo=grpo")
        except ValueError:  # an environment for a language model
            continue
        if not isinstance(config, ControlConfig):
            continue
        try:
            check_env(config.env)
        except ValueError as error:
            print(f"{name}: {error}")
            continue
        returns = random_returns(config.env, episodes)
        error = returns.std(ddof=1) / len(returns) ** 0.5
        print(f"{name}: {returns.mean():.3g} ± {error:.2g} ({len(returns)} episodes)", flush=True)


if __name__ == "__main__":
    main()
