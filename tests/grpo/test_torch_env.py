"""GRPO on an environment of tensors: the same results, stored on the device."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from support.toys import collected, parameters

from grpo_bench import GRPO
from grpo_bench.grpo.vec_env import VectorEnvAdapter

G, P = 4, 6


def make(n_envs=G * P, seed=0, mode="Disabled", **options):
    env = gym.make_vec("GRPO-VLM-v0", n_envs, autoreset_mode=mode, **options)
    return GRPO("MlpPolicy", env, group_size=G, n_problems=P, n_epochs=2, batch_size=8, seed=seed)


def given(model, ids):
    """The model, made to play these problems in order."""
    env, drawn = model.env.env.unwrapped, iter(ids)
    own = env.draw_problems
    env.draw_problems = lambda n: next(drawn) if n == P else own(n)
    return model


@pytest.mark.parametrize("n_envs", [G * P, 2 * G, 2], ids=["all", "waves", "a group in waves"])
def test_a_run_equals_that_on_arrays_to_the_bit(n_envs):
    env = gym.make_vec("GRPO-VLM-v0", 1)
    ids = [env.unwrapped.draw_problems(P) for _ in range(3)]
    total = 3 * G * P
    arrays = given(make(n_envs), ids).learn(total, log_interval=None)
    tensors = given(make(n_envs, device="cpu"), map(torch.from_numpy, ids))
    tensors.learn(total, log_interval=None)
    assert torch.equal(parameters(arrays), parameters(tensors))
    assert arrays.ep_info_buffer == tensors.ep_info_buffer
    assert arrays.logger.name_to_value == tensors.logger.name_to_value
    assert arrays.logger.name_to_value["train/grad_norm"] > 0


@pytest.mark.parametrize("mode", ["Disabled", "SameStep"])
def test_what_it_stores(mode):
    model = make(device="cpu", mode=mode)
    rollout = collected(model)
    task = model.env.env.unwrapped.task
    assert rollout.observations.shape == (P, 128), "one observation per problem"
    np.testing.assert_array_equal(
        rollout.observations.numpy(), task.observe(task.start(rollout.starts))
    )
    outcome = task.step(task.start(rollout.starts.repeat(G)), rollout.actions.flatten().numpy())
    np.testing.assert_array_equal(rollout.rewards.flatten().numpy(), outcome.reward)
    np.testing.assert_array_equal(rollout.success, outcome.success)
    assert rollout.mask.all() and not rollout.truncated.any()


@pytest.mark.parametrize("mode", ["Disabled", "SameStep"])
def test_sb3_gets_arrays(mode):
    arrays, tensors = (
        VectorEnvAdapter(gym.make_vec("GRPO-VLM-v0", 8, autoreset_mode=mode, **options))
        for options in ({}, {"device": "cpu"})
    )
    ids = [np.arange(8) * 7, np.arange(8) + 100]
    for adapter, draw in ((arrays, iter(ids)), (tensors, map(torch.from_numpy, ids))):
        adapter.env.unwrapped.draw_problems = lambda n, draw=draw: next(draw)
    np.testing.assert_array_equal(tensors.reset(), arrays.reset())
    assert tensors.reset_infos == arrays.reset_infos
    got, expected = (adapter.step(np.arange(8) % 4) for adapter in (tensors, arrays))
    for ours, theirs in zip(got[:3], expected[:3], strict=True):
        np.testing.assert_array_equal(ours, theirs, strict=True)
    for ours, theirs in zip(got[3], expected[3], strict=True):
        last = "terminal_observation"
        np.testing.assert_array_equal(ours.pop(last), theirs.pop(last), strict=True)
        assert ours == theirs
