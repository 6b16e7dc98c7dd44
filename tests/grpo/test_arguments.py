"""Invalid arguments are errors that name the value, before any training."""

import inspect
import itertools

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import DummyVecEnv
from support.properties import half, named, properties_of
from support.toys import SMALL, UNIT, OneStep, Walk, collected, parameters, walker

from grpo_bench import GRPO
from grpo_bench.grpo.advantages import BASELINES, baselines_that
from grpo_bench.grpo.credit import BY_STEP
from grpo_bench.grpo.keywords import ELSEWHERE
from grpo_bench.grpo.kl import FORMS
from grpo_bench.grpo.policies import ActorPolicy
from grpo_bench.grpo.settings import Settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"group_size": 1}, "group_size=1: .*at least 2"),
        ({"group_size": 8.0}, r"group_size=8\.0: expected a whole number"),
        ({"n_problems": 0}, "n_problems=0: .*at least 1"),
        ({"n_epochs": 0}, "n_epochs=0: .*at least 1"),
        ({"n_epochs": 1.5}, r"n_epochs=1\.5"),
        ({"target_kl": 0}, "target_kl=0: expected a number, more than 0"),
        ({"batch_size": 0}, "batch_size=0: .*at least 1"),
        ({"batch_size": 6}, "batch_size=6: .*groups of 4 .* 8 episodes .*: 4, 8"),
        ({"batch_size": 16}, "batch_size=16: "),
        ({"max_episode_steps": 0}, "max_episode_steps=0: expected a whole number, at least 1"),
        ({"baseline": "critic"}, "baseline='critic': expected one of group"),
        ({"ddof": 2}, "ddof=2: "),
        ({"eps": -1e-4}, r"eps=-0\.0001: "),
        ({"eps": float("nan")}, "eps=nan: "),
        ({"aggregation": "sum"}, "aggregation='sum': expected one of sequence_mean"),
        ({"aggregation": "constant_length", "max_len": 0}, "max_len=0"),
        ({"ratio": "word"}, "ratio='word': expected one of token, sequence"),
        ({"kl": "k9"}, "kl='k9': expected one of none, exact, k1, k2, k3, k3_ratio, tutorial"),
        ({"kl": "k3", "kl_coef": -1.0}, r"kl_coef=-1\.0: "),
        ({"ent_coef": -0.1}, r"ent_coef=-0\.1: "),
        ({"clip_range": 0.0}, r"clip_range=0\.0: "),
        ({"clip_range": None}, "clip_range=None: expected a number, more than 0"),
        ({"clip_range": "linear"}, "clip_range=linear: expected a number"),
        ({"max_grad_norm": None}, "max_grad_norm=None: expected a number, more than 0"),
        ({"max_grad_norm": float}, "max_grad_norm=.*expected a number"),
        ({"n_epochs": True}, "n_epochs=True: expected a whole number"),
        ({"ddof": True}, "ddof=True: expected 0"),
        ({"kl": "k3", "kl_coef": True}, "kl_coef=True: expected a finite number"),
        ({"kl": "k3", "kl_coef": "much"}, "kl_coef=much: expected a finite number"),
        ({"mask_truncated": 3}, "mask_truncated=3: expected True or False"),
        ({"mixed_start": "no"}, "mixed_start='no': expected True or False"),
        ({"clip_range": float("nan")}, "clip_range=nan: "),
        ({"clip_range_high": -0.1}, r"clip_range_high=-0\.1: "),
        ({"max_grad_norm": 0}, "max_grad_norm=0: "),
        ({"clip_dual": 1.0}, r"clip_dual=1\.0: expected more than 1, or none"),
        ({"clip_dual": float("nan")}, "clip_dual=nan: "),
        ({"surrogate": "ppo"}, "surrogate='ppo': expected one of clip, cispo"),
        ({"supervision": "token"}, "supervision='token': .*outcome, process, return_to_go"),
        ({"supervision": len}, "supervision=.*len.*: expected one of outcome"),
        ({"gamma": 1.01}, r"gamma=1\.01: expected a number from 0 to 1"),
        ({"ref_update_interval": 0}, "ref_update_interval=0: .*at least 1"),
        ({"ref_update_interval": 1.5}, r"ref_update_interval=1\.5: .*whole number"),
        ({"ref_tau": 0.0}, r"ref_tau=0\.0: expected more than 0, at most 1"),
        ({"ref_tau": 1.01}, r"ref_tau=1\.01: "),
        ({"ref_tau": float("nan")}, "ref_tau=nan: "),
        ({"max_refills": -1}, "max_refills=-1: .*at least 0"),
        ({"max_refills": 2.0}, r"max_refills=2\.0: .*whole number"),
        ({"spread_tol": -0.1}, r"spread_tol=-0\.1: expected a finite number, 0 or more"),
        ({"spread_tol": float("inf")}, "spread_tol=inf: "),
        ({"kl": "k3", "kl_coef": float("inf")}, "kl_coef=inf: "),
        ({"nan_reward": "skip"}, "nan_reward='skip': expected one of error, drop"),
        ({"learning_rate": -1.0}, r"-1\.0"),
        ({"policy_kwargs": {"net_arch": {"pi": [8]}}}, "net_arch=.*no value network"),
    ],
    ids=named,
)
def test_wrong_arguments_are_errors_that_name_the_value(settings, message):
    with pytest.raises(ValueError, match=message):
        walker(**settings)


@pytest.mark.parametrize(
    ("keyword", "message"),
    [
        ({"n_steps": 128}, "n_steps=128: GRPO has no n_steps; .* whole episodes, .*set n_problems"),
        ({"vf_coef": 0.5}, r"vf_coef=0\.5: .*no critic"),
        ({"clip_range_vf": None}, "clip_range_vf=None: .*no critic"),
        ({"gae_lambda": 0.95}, "gae_lambda=.*no critic.*gamma"),
        ({"normalize_advantage": True}, "normalize_advantage=True: .*baseline='group' divides"),
        ({"use_sde": True}, "use_sde=True: .*sampled independently"),
        ({"num_generations": 8}, "num_generations=8: .*group_size"),
        ({"grop_size": 8}, "grop_size=8: GRPO has no grop_size, did you mean group_size"),
        ({"n_epoch": 8}, "n_epoch=8: .*did you mean n_epochs"),
        ({"learning_rat": 8}, "learning_rat=8: .*did you mean learning_rate"),
        ({"xyz": 1}, "xyz=1: GRPO has no xyz; it has policy, env, .*group_size, .*device"),
    ],
    ids=named,
)
def test_an_unknown_keyword_is_refused_with_what_takes_its_place(keyword, message):
    with pytest.raises(TypeError, match=message):
        GRPO("MlpPolicy", "CartPole-v1", **keyword)


@pytest.mark.parametrize("cls", [PPO, A2C])
def test_every_keyword_of_sb3_is_ours_or_explained(cls):
    ours = {*inspect.signature(GRPO).parameters, *ELSEWHERE}
    assert set(inspect.signature(cls).parameters) <= ours
    assert not set(inspect.signature(GRPO).parameters) & set(ELSEWHERE)


def test_a_negative_budget_is_refused():
    with pytest.raises(ValueError, match="total_timesteps=-5: expected 0 or more"):
        walker().learn(-5)


# -- combinations ---------------------------------------------------------------------------------

PROCESS = {"supervision": "process"}
REFUSED = [
    ({"aggregation": "constant_length"}, "max_len=None: constant_length needs the length limit"),
    ({"max_len": 8}, "aggregation='sequence_mean' with max_len=8: .*nothing else reads it"),
    *(
        ({"ddof": 1, "baseline": name}, f"ddof=1 with baseline='{name}'.*group, batch, batch_std")
        for name in ("group_mean", "rloo", "rank", "none")
    ),
    ({"ddof": 1, "baseline": half}, "ddof=1 with baseline=half, which divides by no standard dev"),
    *(
        (PROCESS | {"baseline": name}, f"'process' with baseline='{name}'.*whole rollouts.*group, ")
        for name in ("rloo", "rank")
    ),
    *(
        (
            {"supervision": name, "ratio": "sequence"},
            f"'{name}' with ratio='sequence': .*expected ratio='token'",
        )
        for name in BY_STEP
    ),
    ({"surrogate": "cispo", "clip_dual": 3.0}, r"clip_dual=3\.0 with surrogate='cispo'.*bounded"),
    *(
        (
            {"max_refills": 1, "baseline": name},
            f"max_refills=1 with baseline='{name}'.*teaches something: expected 0, .*group, ",
        )
        for name in ("batch", "none")
    ),
    *(
        (
            {"max_refills": 1, "supervision": name},
            f"max_refills=1 with supervision='{name}': .*teaches by its steps; expected 0",
        )
        for name in BY_STEP
    ),
    ({"spread_tol": 0.1}, r"spread_tol=0\.1 with max_refills=0: nothing is refilled"),
    ({"kl_coef": 0.1}, r"kl_coef=0\.1 with kl='none': choose a form among exact, k1"),
    ({"ref_update_interval": 2}, "ref_update_interval=2 with kl='none': there is no reference"),
    ({"kl": "k3", "ref_tau": 0.5}, r"ref_tau=0\.5 without ref_update_interval: .*never moves"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED, ids=named)
def test_combinations_that_make_no_sense_are_refused_with_the_reason(settings, message):
    with pytest.raises(ValueError, match=message):
        walker(**settings)


CHOICES = {
    "baseline": (*BASELINES, half),
    "ddof": (0, 1),
    "supervision": ("outcome", *BY_STEP),
    "surrogate": ("clip", "cispo"),
    "clip_dual": (None, 3.0),
    "ratio": ("token", "sequence"),
    "max_refills": (0, 2),
    "spread_tol": (0.0, 0.1),
    "aggregation": ("sequence_mean", "token_mean", "constant_length"),
    "max_len": (None, 6),
}
KL_CHOICES = {
    "kl": ("none", *FORMS),
    "kl_coef": (0.0, 0.1),
    "ref_update_interval": (None, 1),
    "ref_tau": (1.0, 0.9),
}


def grid(choices):
    return [
        dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())
    ]


def makes_sense(s):
    """The rules, in one sentence each."""
    found, process = properties_of(s["baseline"]), s["supervision"] == "process"
    return (
        (s["aggregation"] == "constant_length") == (s["max_len"] is not None)
        and (s["ddof"] == 0 or "ignores ddof" not in found)
        and (not process or s["baseline"] in baselines_that("by_step"))
        and (s["supervision"] == "outcome" or (s["ratio"] == "token" and s["max_refills"] == 0))
        and (s["surrogate"] == "clip" or s["clip_dual"] is None)
        and (s["max_refills"] == 0 or "needs spread" in found)
        and (s["spread_tol"] == 0 or s["max_refills"] > 0)
    )


def kl_makes_sense(s):
    moves = s["ref_update_interval"] is not None
    return (s["kl"] != "none" or (s["kl_coef"] == 0 and not moves)) and (s["ref_tau"] == 1 or moves)


@pytest.mark.parametrize(
    ("choices", "sense"), [(CHOICES, makes_sense), (KL_CHOICES, kl_makes_sense)], ids=["rest", "kl"]
)
def test_of_all_combinations_those_that_make_sense_are_accepted(choices, sense):
    accepted = 0
    for settings in grid(choices):
        if sense(settings):
            Settings(**settings)
            accepted += 1
        else:
            with pytest.raises(ValueError, match="="):
                Settings(**settings)
    assert accepted > 40


@pytest.mark.parametrize("baseline", CHOICES["baseline"])
@pytest.mark.parametrize("kl", KL_CHOICES["kl"])
def test_accepted_settings_construct_a_model_and_take_a_step(baseline, kl):
    settings = {"baseline": baseline, "kl": kl, "mask_truncated": True}
    if kl != "none":
        settings |= {"kl_coef": 0.1, "ref_update_interval": 1, "ref_tau": 0.5}
    if baseline in ("group", "group_mean", "batch_std"):
        settings |= {"supervision": "process"}
    if baseline in ("batch", half):
        settings |= {"supervision": "return_to_go", "gamma": 0.9}
    if baseline == "rloo":
        settings |= {"surrogate": "cispo", "ratio": "sequence", "max_refills": 1, "spread_tol": 0.2}
    if baseline == "rank":
        settings |= {"clip_dual": 2.0, "aggregation": "constant_length", "max_len": 6}
    model = walker(**settings)
    collected(model)
    before = parameters(model)
    model.train()
    assert model._n_updates == 1 and not torch.equal(parameters(model), before)


# -- spaces ---------------------------------------------------------------------------------------

IMAGE = spaces.Box(0, 255, (36, 36, 3), np.uint8)
DICT = spaces.Dict(place=UNIT, kind=spaces.Discrete(3))


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Tuple([UNIT, UNIT]), r"observation space Tuple\(.*\): .*FlattenObservation"),
        (spaces.Text(5), "observation space Text"),
        (spaces.Dict(a=UNIT, words=spaces.Text(5)), "Text.* of key 'words': .*FilterObservation"),
        (spaces.Dict(a=UNIT, more=DICT), "Dict.* of key 'more': expected Box, Discrete"),
    ],
    ids=named,
)
@pytest.mark.parametrize("policy", ["MlpPolicy", "MultiInputPolicy"])
def test_observations_that_no_policy_reads_are_refused(space, message, policy):
    with pytest.raises(ValueError, match=message):
        GRPO(policy, OneStep(spaces.Discrete(2), space, lambda *_: 0.0))


@pytest.mark.parametrize(
    ("policy", "space", "message"),
    [
        ("CnnPolicy", UNIT, r"CnnPolicy reads images.* Box\(.*expected MlpPolicy"),
        ("MultiInputPolicy", UNIT, r"MultiInputPolicy reads dicts.* Box\(.*expected MlpPolicy"),
        (
            "MultiInputPolicy",
            IMAGE,
            "MultiInputPolicy reads dicts.*: expected CnnPolicy or Mlp",
        ),
        (ActorPolicy, DICT, "MlpPolicy reads arrays.*Dict.*expected MultiInputPolicy"),
        (ActorCriticPolicy, UNIT, "policy=ActorCriticPolicy: .*MlpPolicy.*no value network"),
    ],
    ids=named,
)
def test_a_policy_that_does_not_fit_is_refused(policy, space, message):
    with pytest.raises(ValueError, match=message):
        GRPO(policy, OneStep(spaces.Discrete(2), space, lambda *_: 0.0), **SMALL)


class Broken(Walk):
    """Its third observation has a NaN."""

    def __init__(self, action_space, observation_space):
        self.action_space, self.observation_space = action_space, observation_space

    def step(self, action):
        seen, *rest = super().step(int(np.asarray(action).flat[0] > 0))
        if self.t == 2:
            seen[1] = np.nan
        return {"place": seen, "more": seen[:1] * 0} if self.is_dict else seen, *rest

    def reset(self, **kwargs):
        seen, info = super().reset(**kwargs)
        return {"place": seen, "more": seen[:1]} if self.is_dict else seen, info

    @property
    def is_dict(self):
        return isinstance(self.observation_space, spaces.Dict)


@pytest.mark.parametrize("kind", [DummyVecEnv, SyncVectorEnv])
@pytest.mark.parametrize(
    "space",
    [spaces.Discrete(2), spaces.MultiDiscrete([2, 2]), spaces.MultiBinary(2), UNIT],
    ids=named,
)
@pytest.mark.parametrize("validated", [True, False])
def test_an_observation_that_is_not_finite_is_named(space, kind, validated, monkeypatch):
    """Whether torch's distributions check their parameters or not: it is a global switch."""
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", validated)
    env = kind([lambda: Broken(space, Walk.observation_space)] * 4)
    message = r"observation of sub-environment 0 \(start \d+\) has nan at place 1: expected finite"
    with pytest.raises(ValueError, match=message):
        GRPO("MlpPolicy", env, **SMALL).learn(40)


def test_of_a_dict_the_part_is_named():
    parts = spaces.Dict(place=Walk.observation_space, more=spaces.Box(-4.0, 4.0, (1,)))
    with pytest.raises(ValueError, match=r"observation 'place' of .* has nan at place 1"):
        GRPO("MultiInputPolicy", Broken(spaces.Discrete(2), parts), **SMALL).learn(40)


# -- environments ---------------------------------------------------------------------------------


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
