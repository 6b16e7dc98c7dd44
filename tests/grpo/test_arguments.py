"""What cannot be meant is an error before anything is trained, and names the value."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from toys import SMALL, OneStep, walker

from grpo_bench import GRPO

UNIT = spaces.Box(-1, 1, (2,), np.float32)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"group_size": 1}, "group_size=1: .*at least 2"),
        ({"group_size": 8.0}, r"group_size=8\.0: expected a whole number"),
        ({"n_problems": 0}, "n_problems=0: .*at least 1"),
        ({"n_epochs": 0}, "n_epochs=0: .*at least 1"),
        ({"n_epochs": 1.5}, r"n_epochs=1\.5"),
        ({"batch_size": 0}, "batch_size=0: .*at least 1"),
        ({"batch_size": 6}, "batch_size=6: .*groups of 4 .* 8 episodes .*: 4, 8"),
        ({"batch_size": 16}, "batch_size=16: "),
        ({"group_size": 3}, r"group_size=3 on 4 sub.*: group_size of 2, 4, 8.*group_size=3: 1, 3,"),
        ({"group_size": 2, "n_problems": 3}, "n_problems=3: .*multiple of 2"),
        ({"baseline": "critic"}, "baseline='critic': expected one of group"),
        ({"ddof": 2}, "ddof=2: "),
        ({"eps": -1e-4}, r"eps=-0\.0001: "),
        ({"eps": float("nan")}, "eps=nan: "),
        ({"aggregation": "sum"}, "aggregation='sum': expected one of sequence_mean"),
        ({"aggregation": "constant_length"}, "max_len=None"),
        ({"max_len": 8}, "max_len=8"),
        ({"aggregation": "constant_length", "max_len": 0}, "max_len=0"),
        ({"ratio": "word"}, "ratio='word': expected one of token, sequence"),
        ({"kl": "k9"}, "kl='k9': expected one of none, tutorial, k3, exact"),
        ({"kl_coef": 0.1}, r"kl_coef=0\.1 with kl='none'"),
        ({"kl": "k3", "kl_coef": -1.0}, r"kl_coef=-1\.0: "),
        ({"ent_coef": -0.1}, r"ent_coef=-0\.1: "),
        ({"clip_range": 0.0}, r"clip_range=0\.0: "),
        ({"clip_range": float("nan")}, "clip_range=nan: "),
        ({"clip_range_high": -0.1}, r"clip_range_high=-0\.1: "),
        ({"max_grad_norm": 0}, "max_grad_norm=0: "),
        ({"nan_reward": "skip"}, "nan_reward='skip': expected one of error, drop"),
        ({"learning_rate": -1.0}, r"-1\.0"),
        ({"policy_kwargs": {"net_arch": {"pi": [8]}}}, "net_arch=.*no value network"),
    ],
    ids=str,
)
def test_wrong_arguments_are_errors_that_name_the_value(settings, message):
    with pytest.raises(ValueError, match=message):
        walker(**settings)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Discrete(3, start=1), r"Discrete\(3, start=1\).*number actions from 0"),
        (spaces.MultiDiscrete([2, 3], start=[0, 1]), "number actions from 0"),
        (spaces.MultiDiscrete([[2, 3], [2, 2]]), "flatten"),
    ],
)
def test_action_spaces_that_would_be_numbered_wrongly_are_refused(space, message):
    with pytest.raises(ValueError, match=message):
        GRPO("MlpPolicy", OneStep(space, UNIT, lambda *_: 0.0))


def test_a_vector_environment_that_cannot_start_members_alike_is_refused():
    env = gym.make_vec("CartPole-v1", 4, vectorization_mode="vector_entry_point")
    with pytest.raises(ValueError, match=r"one seed .*SyncVectorEnv.*mixed_start=True"):
        GRPO("MlpPolicy", env, **SMALL).learn(1)
    GRPO("MlpPolicy", env, mixed_start=True, **SMALL).learn(1)
