"""The control: GRPO learns nothing from the rewards of other problems, but does from its own. And
it learns control tasks with its defaults."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, VectorWrapper
from stable_baselines3.common.env_util import make_vec_env

from grpo_bench import GRPO
from grpo_envs.vlm import VLMTask

G, P = 8, 16
OPTIONS = {"source": "synthetic", "difficulty": 0.0, "embed_dim": 40}
CHANCE, PROBLEMS = 0.25, 1000


class Shuffled(VectorWrapper):
    """Pays each rollout the reward of another one, of any problem."""

    def __init__(self, env):
        super().__init__(env)
        self.rng = np.random.default_rng(0)

    def step(self, actions):
        observations, rewards, *rest = self.env.step(actions)
        return observations, self.rng.permutation(rewards), *rest


def held_out_accuracy(wrap, seed):
    env = gym.make_vec("GRPO-VLM-v0", G * P, autoreset_mode=AutoresetMode.DISABLED, **OPTIONS)
    model = GRPO(
        "MlpPolicy",
        wrap(env),
        learning_rate=1e-2,
        group_size=G,
        n_problems=P,
        n_epochs=2,
        seed=seed,
    )
    model.learn(G * P * 150)
    task = VLMTask(**OPTIONS)
    state = task.start(task.problem_ids("validation"))
    assert len(state["problem_id"]) == PROBLEMS
    actions, _ = model.predict(task.observe(state), deterministic=True)
    return task.step(state, actions).success.mean()


# 99.99 % of binomial(1000, 0.25) / 1000: four standard deviations
INTERVAL = 4 * np.sqrt(CHANCE * (1 - CHANCE) / PROBLEMS)


# Measured: 0.242 to 0.266 with 8 seeds of shuffled rewards, 0.388 to 0.442 with 3 of true ones.


@pytest.mark.parametrize("seed", [0, 1])
def test_shuffled_rewards_stay_at_chance(seed):
    assert held_out_accuracy(Shuffled, seed) == pytest.approx(CHANCE, abs=INTERVAL)


def test_true_rewards_do_not():
    assert held_out_accuracy(lambda env: env, seed=0) > CHANCE + INTERVAL


# -- the defaults. benchmarks/control.py measures what they reach with more steps -----------------


def last_returns(env, transitions):
    """Mean of the last 100 returns with all defaults, but for the seed."""
    model = GRPO("MlpPolicy", env, seed=1, device="cpu").learn(transitions)
    return np.mean([episode["r"] for episode in model.ep_info_buffer])


# Measured on CartPole: 112 to 138 with 4 seeds; with one gradient step for 256 episodes 23, as by
# chance. On FrozenLake: 0.99 to 1 with 4 seeds; by chance 0.015.


@pytest.mark.parametrize(
    ("env_id", "options", "transitions", "least"),
    [("CartPole-v1", {}, 15_000, 50), ("FrozenLake-v1", {"is_slippery": False}, 8_000, 0.5)],
)
@pytest.mark.filterwarnings("ignore::grpo_bench.grpo.doctor.DoctorWarning")  # all is learned
def test_the_defaults_learn(env_id, options, transitions, least):
    env = make_vec_env(env_id, 8, env_kwargs=options)
    assert last_returns(env, transitions) > least
