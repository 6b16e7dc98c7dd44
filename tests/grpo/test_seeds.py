"""The audit: no two seeds share problems, for any algorithm on any of our environments; with SB3's
own seeding they do."""

from itertools import combinations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv
from support.toys import Starts, Walk

from grpo_bench import GRPO
from grpo_bench.grpo.seeds import STREAMS, integer_seed, stream
from grpo_bench.grpo.vec_env import VectorEnvAdapter, seed_sub_environments

N = 8
SEEDS = range(10)
OPTIONS = {"source": "synthetic", "embed_dim": 20}  # 2**53 problems: none comes twice by chance


def native():
    return gym.make_vec("GRPO-VLM-v0", N, autoreset_mode=AutoresetMode.SAME_STEP, **OPTIONS)


def scalars():
    return [lambda: gym.make("GRPO-VLM-v0", **OPTIONS)] * N


ENVS = {
    "native": native,
    "dummy": lambda: DummyVecEnv(scalars()),
    "sync": lambda: SyncVectorEnv(scalars(), autoreset_mode=AutoresetMode.SAME_STEP),
    "seeds": lambda: DummyVecEnv([Walk] * N),
}


class Problems(BaseCallback):
    """Records the problem of every episode that ends."""

    def __init__(self):
        super().__init__()
        self.noted = []

    def _on_step(self):
        self.noted += [info["problem_id"] for info in self.locals["infos"]]
        return True


def grpo_problems(kind, seed):
    note = Starts()
    GRPO("MlpPolicy", ENVS[kind](), group_size=4, n_problems=6, seed=seed).learn(120, note)
    return note.noted


def ppo_problems(env, seed, ours):
    note = Problems()
    model = PPO("MlpPolicy", env, n_steps=6, batch_size=48, n_epochs=1, seed=seed)
    if ours:
        seed_sub_environments(model.env, stream(seed, "environment"))
    model.learn(96, note)
    return note.noted


def assert_disjoint(runs, at_least):
    assert all(len(set(run)) >= at_least for run in runs)
    for one, two in combinations(runs, 2):
        assert not set(one) & set(two)


@pytest.mark.parametrize("kind", ENVS)
def test_grpo(kind):
    runs = [grpo_problems(kind, seed) for seed in SEEDS]
    assert_disjoint(runs, at_least=6)
    assert grpo_problems(kind, 3) == runs[3], "and each seed repeats itself"


def test_ppo_on_the_native_environment():
    runs = [ppo_problems(VectorEnvAdapter(native()), seed, ours=True) for seed in SEEDS]
    assert_disjoint(runs, at_least=96)
    assert ppo_problems(VectorEnvAdapter(native()), 3, ours=True) == runs[3]
    sb3_seeded = [ppo_problems(VectorEnvAdapter(native()), seed, ours=False) for seed in SEEDS]
    assert_disjoint(sb3_seeded, at_least=96)  # one stream for all its sub-environments


@pytest.mark.parametrize("kind", ["dummy", "sync"])
def test_ppo_on_scalar_environments(kind):
    def env():
        return ENVS[kind]() if kind == "dummy" else VectorEnvAdapter(ENVS[kind]())

    assert_disjoint([ppo_problems(env(), seed, ours=True) for seed in SEEDS], at_least=96)
    one, two = (ppo_problems(env(), seed, ours=False) for seed in (1, 2))
    shared = len(set(one) & set(two)) / len(set(one))
    assert shared == pytest.approx((N - 1) / N), "SB3: seed + i for sub-environment i"


def test_sub_environments_differ_and_groups_of_one_run_too():
    starts = grpo_problems("dummy", 0)
    assert len(set(starts)) == len(starts)
    env = DummyVecEnv(scalars())
    seed_sub_environments(env, stream(0, "environment"))
    env.reset()
    assert len({info["problem_id"] for info in env.reset_infos}) == N


@pytest.mark.parametrize("kind", ENVS)
def test_seeding_a_trained_model_restarts_its_streams(kind):
    model = GRPO("MlpPolicy", ENVS[kind](), group_size=4, n_problems=6, seed=0)
    noted = []
    for _ in range(3):
        noted.append(Starts())
        model.learn(24, noted[-1])
        model.set_random_seed(5)
    assert noted[1].noted[:6] == noted[2].noted[:6]
    assert not set(noted[0].noted) & set(noted[1].noted)


def test_streams():
    drawn = {
        (seed, name): tuple(np.random.default_rng(stream(seed, name)).integers(2**62, size=4))
        for seed in SEEDS
        for name in STREAMS
    }
    assert len({draw for row in drawn.values() for draw in row}) == 4 * len(drawn)
    assert drawn[1, "policy"] == tuple(
        np.random.default_rng(stream(1, "policy")).integers(2**62, size=4)
    )
    integers = {integer_seed(seed, name) for seed in SEEDS for name in STREAMS}
    assert len(integers) == len(drawn) and all(0 <= i < 2**31 for i in integers)
    with pytest.raises(ValueError, match="stream='problem': expected one of policy"):
        stream(0, "problem")
