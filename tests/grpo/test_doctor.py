"""Each finding of the doctor, on a policy or an environment that has the fault; and none on healthy
training."""

import dataclasses
import math
import warnings

import gymnasium as gym
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from support.toys import FAILED, SMALL, SOLVED, UNIT, OneStep, Puzzle, Walk, collected, walker
from torch import nn

from grpo_bench import GRPO
from grpo_bench.grpo.alike import difference
from grpo_bench.grpo.doctor import PATIENCE, ROUNDING, Doctor, DoctorWarning
from grpo_bench.grpo.kl import FORMS
from grpo_bench.grpo.policies import ActorPolicy
from grpo_bench.grpo.update_log import UpdateLog

CONSTANT = OneStep(spaces.Discrete(2), UNIT, lambda seen, action: 0.1)


def warnings_of(model, steps=1, **learn):
    """The doctor's warnings while a model learns, as texts."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.learn(steps, **learn)
    return [str(w.message) for w in caught if issubclass(w.category, DoctorWarning)]


# -- noise ----------------------------------------------------------------------------------------


class FunctionalDropout(FlattenExtractor):
    """The commonest way to leave dropout on: the functional form, which ignores eval()."""

    def forward(self, observations):
        return F.dropout(super().forward(observations), 0.5)


class ModuleDropout(FlattenExtractor):
    def __init__(self, observation_space):
        super().__init__(observation_space)
        self.noise = nn.Dropout(0.5)

    def forward(self, observations):
        return self.noise(super().forward(observations))


class Stubborn(ActorPolicy):
    """Never leaves training mode."""

    def set_training_mode(self, mode):
        self.train(True)


def with_extractor(extractor, policy="MlpPolicy", **settings):
    kwargs = {"features_extractor_class": extractor, "ortho_init": False}
    return GRPO(policy, DummyVecEnv([Walk] * 4), policy_kwargs=kwargs, **SMALL | settings)


def test_functional_dropout_is_found_by_the_ratio():
    model = with_extractor(FunctionalDropout)
    (text,) = warnings_of(model)
    assert text.startswith("ratio: up to 1.") and "training=False" in text
    assert model.doctor.findings == {"ratio": text}


def test_functional_dropout_is_found_by_the_kl_too():
    model = with_extractor(FunctionalDropout, kl="k3")
    with torch.no_grad():
        model.policy.action_net.weight *= 10
    assert [text.split(":")[0] for text in warnings_of(model)] == ["ratio", "kl at start"]


def test_a_module_that_stays_in_training_mode_is_named():
    model = with_extractor(ModuleDropout, Stubborn)
    texts = warnings_of(model, 100)
    assert texts[0].startswith("dropout: features_extractor.noise (Dropout) in training mode")
    assert "train(False)" in texts[0]
    assert [text.split(":")[0] for text in texts] == ["dropout", "ratio"], "each once"
    assert model._n_updates > 2


def test_dropout_that_is_switched_off_is_no_fault():
    assert warnings_of(with_extractor(ModuleDropout, kl="exact", kl_coef=0.1), 100) == []


@pytest.mark.parametrize("module", [nn.Dropout2d(), nn.AlphaDropout(), nn.BatchNorm1d(3)], ids=str)
def test_other_modules_that_must_not_train_while_sampling(module):
    doctor, policy = Doctor(), nn.Sequential(nn.Linear(3, 3), module)
    policy.train(False)
    doctor.examine_policy(policy)
    assert not doctor.findings
    module.train()
    with pytest.warns(DoctorWarning, match=rf"^dropout: 1 \({type(module).__name__}\) in"):
        doctor.examine_policy(policy)


# -- policies and references that changed ---------------------------------------------------------


class Change(BaseCallback):
    """Calls ``change(model)`` once: as training or its first rollout starts, or as that ends."""

    def __init__(self, at, change):
        super().__init__()
        self.at, self.change = at, change

    def _once(self, at):
        if at == self.at:
            self.at = None
            self.change(self.model)

    def _on_training_start(self):
        self._once("training start")

    def _on_rollout_start(self):
        self._once("rollout start")

    def _on_step(self):
        return True

    def _on_rollout_end(self):
        self._once("rollout end")


def load_other_weights(model):
    other = walker(seed=9, policy_kwargs={"ortho_init": False})
    model.policy.load_state_dict(other.policy.state_dict())


def perturb_reference(model):
    with torch.no_grad():
        model.reference.action_net.bias += torch.tensor([0.3, 0.0])


@pytest.mark.parametrize(
    ("at", "change", "expected"),
    [
        ("training start", load_other_weights, ["kl at start"]),
        ("rollout start", load_other_weights, ["kl at start"]),
        ("rollout end", load_other_weights, ["ratio", "kl at start"]),
        ("training start", perturb_reference, ["kl at start"]),
        ("never", perturb_reference, []),
    ],
)
@pytest.mark.parametrize("form", ["exact", "k1_reward"])
def test_weights_loaded_when_the_reference_is_made(form, at, change, expected):
    model = walker(kl=form, kl_coef=0.01)
    texts = warnings_of(model, 60, callback=Change(at, change))
    assert [text.split(":")[0] for text in texts] == expected
    assert all("before learn()" in text for text in texts if text.startswith("kl"))


def test_weights_loaded_before_training_and_a_later_kl_are_no_faults():
    model = walker(kl="exact", kl_coef=0.01, learning_rate=0.05)
    load_other_weights(model)
    assert warnings_of(model, 300) == []
    collected(model)
    model.train()
    assert model.logger.name_to_value["train/kl_ref"] > ROUNDING
    assert warnings_of(model, 60) == [], "learning on: the reference is that of the first time"


@pytest.mark.parametrize(("off", "found"), [(0.9, False), (-0.9, False), (1.1, True), (-1.1, True)])
def test_rounding_is_no_finding(off, found):
    doctor, log = Doctor(), UpdateLog()
    log.add("kl_ref_k3", torch.tensor(0.9 * ROUNDING))
    log.add_ratio(torch.tensor([0.0, off * ROUNDING]))
    log.add_ratio(torch.tensor([1.0, 1.0]))
    log.add("kl_ref_k3", torch.tensor(9.0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        doctor.examine_update(log, first=True)
    assert list(doctor.findings) == (["ratio"] if found else []), "of the first minibatch alone"


# -- KL forms -------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kl_coef", [0.0, 0.1])
def test_a_form_that_does_not_hold_back_is_reported_if_it_is_trained_on(form, kl_coef):
    model = walker(kl=form, kl_coef=kl_coef)
    texts = warnings_of(model, 60) + warnings_of(model, 60)
    wrong = {"k1": "zero", "tutorial": "zero", "tutorial_reward": "minus the KL"}
    if form in wrong and kl_coef:
        assert len(texts) == 1, "once, whatever is learned again"
        assert texts[0].startswith(f"kl form: kl='{form}' has ") and wrong[form] in texts[0]
        assert "kl_coef=0.1" in texts[0] and "use kl='exact' where" in texts[0]
    else:
        assert texts == []


# -- nothing to learn -----------------------------------------------------------------------------


def puzzles(kind, reports=True):
    """A model whose groups are all of this kind."""
    model = GRPO("MlpPolicy", DummyVecEnv([lambda: Puzzle(None, reports)] * 4), **SMALL)
    model._setup_learn(1)
    model._source.draw = lambda n: kind + torch.arange(1, n + 1).numpy()
    return model


@pytest.mark.parametrize(
    ("kind", "reports", "remedy"),
    [
        (FAILED, True, "nothing to learn; use easier problems"),
        (SOLVED, True, "nothing to learn; every rollout succeeds: use harder problems, or stop"),
        (SOLVED, False, "nothing to learn; if every rollout succeeds.*stop; else use easier"),
    ],
)
def test_no_spread_is_reported_after_some_patience(kind, reports, remedy):
    model = puzzles(kind, reports)
    for update in range(1, PATIENCE + 3):
        texts = warnings_of(model, 1)
        assert model._n_updates == update
        assert len(texts) == (update == PATIENCE), "at once when patience is over, and once"
        if texts:
            with pytest.warns(match=rf"^no spread: in {PATIENCE} updates in a row .*{remedy}"):
                warnings.warn(texts[0], stacklevel=1)


@pytest.mark.parametrize("level", [0.0, 0.5])  # equal rewards, with a baseline and without
def test_an_update_with_spread_starts_the_patience_again(level):
    doctor = Doctor()
    flat, spread = torch.full((2, 4), level), torch.tensor([[0.0, 0.0], [-1.0, 1.0]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            for _ in range(PATIENCE - 1):
                doctor.examine_advantages(flat, 0.0)
            doctor.examine_advantages(spread, 0.5)
        for _ in range(PATIENCE - 1):
            doctor.examine_advantages(flat, 0.0)
    with pytest.warns(DoctorWarning, match="no spread"):
        doctor.examine_advantages(flat, 0.0)


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({}, True),
        ({"baseline": "rank"}, True),
        # of the rewards, whatever the KL does; the entropy moves the policy off the reference
        ({"kl": "k1_reward", "kl_coef": 0.1, "ent_coef": 0.1}, True),
        ({"baseline": "batch"}, False),  # the groups differ from each other
        ({"baseline": "none"}, False),
        ({"supervision": "process"}, False),  # the steps differ: the reward comes with the last
    ],
    ids=str,
)
def test_spread_is_of_what_the_baseline_compares(settings, found):
    """One group succeeds, one fails, in every rollout."""
    model = GRPO("MlpPolicy", DummyVecEnv([Puzzle] * 4), **SMALL | settings)
    model._setup_learn(1)
    model._source.draw = lambda n: torch.tensor([FAILED + 2, SOLVED + 2]).numpy()
    texts = warnings_of(model, 18 * PATIENCE)
    assert model._n_updates >= PATIENCE
    assert [text.split(":")[0] for text in texts] == ["no spread"] * found


def test_leaving_out_every_episode_is_reported():
    model = GRPO("MlpPolicy", DummyVecEnv([Puzzle] * 4), mask_truncated=True, **SMALL)
    model._setup_learn(1)
    model._source.draw = lambda n: torch.tensor([102, 104]).numpy()  # even: cut off
    (text,) = warnings_of(model, 100)
    assert text.startswith("nothing left: ") and "mask_truncated" in text
    assert model._n_updates == 0


# -- members that only look alike -----------------------------------------------------------------


class Hidden(gym.Env):
    """All starts look alike. The global generator draws the goal, whatever the id is."""

    observation_space, action_space = spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(2)

    def __init__(self, ids=False, at=1):
        self.ids, self.at = ids, at

    def reset(self, seed=None, options=None):
        super().reset(seed=None if self.ids else seed)
        drawn = int(np.random.randint(1000))  # noqa: NPY002 (that is the fault)
        self.goal, self.t = drawn % 2, 0
        id = float((options or {}).get("problem_id", drawn))
        return np.zeros(1, np.float32), {"problem_id": id} if self.ids else {}

    def step(self, action):
        self.t += 1
        right = self.t == self.at and action == self.goal
        return np.zeros(1, np.float32), float(right), self.t == self.at, False, {}


class Seeded(Hidden):
    """Chance that the seed decides."""

    def reset(self, seed=None, options=None):
        gym.Env.reset(self, seed=seed)
        self.goal, self.t = int(self.np_random.integers(2)), 0
        return np.zeros(1, np.float32), {}


@pytest.mark.parametrize(("ids", "at"), [(False, 1), (True, 1), (False, 2)])
@pytest.mark.parametrize("kind", [DummyVecEnv, SyncVectorEnv])
def test_members_that_only_look_alike_are_found_at_once(kind, ids, at):
    """Of 8 groups of 8: with two actions, to miss it all pairs of equal actions must agree by luck,
    which has a probability of at most 2^-24 (three pairs in each group)."""
    if kind is SyncVectorEnv and ids:
        pytest.skip("SyncVectorEnv is seeded")
    env = kind([lambda: Hidden(ids, at)] * 8)
    texts = warnings_of(GRPO("MlpPolicy", env, group_size=8, n_problems=8, seed=0))
    assert len(texts) == 1 and "check_group_env" in texts[0]
    assert texts[0].startswith("not alike: two members of the group of start ")
    assert f"in the reward of step {at}" in texts[0]


def test_chance_that_the_seed_decides_is_alike():
    env = DummyVecEnv([lambda: Seeded(at=3)] * 4)
    assert not warnings_of(GRPO("MlpPolicy", env, group_size=8, n_problems=8, seed=0))


@pytest.mark.parametrize("norm_reward", [True, False])
def test_a_wrapper_that_drifts_does_not_make_members_differ(norm_reward):
    env = VecNormalize(DummyVecEnv([Walk] * 3), norm_reward=norm_reward)
    texts = warnings_of(GRPO("MlpPolicy", env, group_size=8, n_problems=4, seed=0))
    assert not any(text.startswith("not alike") for text in texts)


def test_what_differs_is_named():
    """Four members of one group: all act alike at first, then 0 and 1 do, and 2 and 3."""
    rollout = collected(GRPO("MlpPolicy", DummyVecEnv([Walk] * 4), group_size=4, n_problems=1))
    n, t = 4, 2
    rollout = dataclasses.replace(
        rollout,
        observations=torch.tensor([[0.0, 0], [1, 0], [1, 0], [1, 0], [1, 0]]),
        rows=torch.tensor([[0, 1], [0, 2], [0, 3], [0, 4]]),
        actions=torch.tensor([[1, 0], [1, 0], [1, 1], [1, 1]]),
        rewards=torch.tensor([[0.0, 1], [0, 1], [0, 2], [0, 2]]),
        mask=torch.ones(n, t, dtype=torch.bool),
    )
    assert difference(rollout) is None
    rewards, mask = rollout.rewards.clone(), rollout.mask.clone()
    rewards[3, 1] = 7
    assert difference(dataclasses.replace(rollout, rewards=rewards)) == (0, 1, "reward")
    rewards[3, 1] = rewards[2, 1] = math.nan
    assert difference(dataclasses.replace(rollout, rewards=rewards)) is None, "both NaN"
    mask[2, 1] = False
    assert difference(dataclasses.replace(rollout, mask=mask)) == (0, 0, "end")
    seen = rollout.observations.clone()
    seen[4, 1] = 9
    assert difference(dataclasses.replace(rollout, observations=seen)) == (0, 0, "observation")


# -- pace -----------------------------------------------------------------------------------------


def test_few_gradient_steps_are_too_few():
    doctor = Doctor()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        doctor.examine_pace(1, 9_999, 0.0)  # too early to judge
        doctor.examine_pace(6, 12_000, 0.0)
    with pytest.warns(DoctorWarning, match="starved: 6 gradient steps in 34,498 transitions: low"):
        doctor.examine_pace(6, 34_498, 0.0)


def test_a_policy_that_a_rate_has_destroyed_has_collapsed():
    """After a step of 1e3 the policy is deterministic, and every group without spread."""
    env = DummyVecEnv([Walk] * 4)
    model = GRPO("MlpPolicy", env, **SMALL | {"learning_rate": 1e3, "n_epochs": 2})
    texts = warnings_of(model, 4_000)
    collapsed = [text for text in texts if text.startswith("collapsed: ")]
    assert len(collapsed) == 1 and "lower learning_rate" in collapsed[0]
    assert not any(text.startswith("no spread") for text in texts)


# -- errors ---------------------------------------------------------------------------------------


def test_meaningless_training_is_an_error_that_names_the_remedy():
    with pytest.raises(ValueError, match=r"batch_size=6: .*whole groups of 4 .*: 4, 8$"):
        walker(batch_size=6)
    bad = OneStep(spaces.Discrete(2), UNIT, lambda seen, action: math.nan)
    with pytest.raises(ValueError, match=r"not finite: .*; fix the reward, or pass nan_reward="):
        GRPO("MlpPolicy", bad, **SMALL).learn(1)
    drifting = OneStep(spaces.Discrete(2), UNIT, lambda seen, action: 0.0)
    reset = drifting.reset
    drifting.reset = lambda seed=None, options=None: reset()
    with pytest.raises(ValueError, match=r"Make reset\(\) depend on its seed.*mixed_start=True"):
        GRPO("MlpPolicy", drifting, **SMALL).learn(1)


# -- healthy training -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "form", [f for f, v in FORMS.items() if v.gradient in ("right", "reverse")]
)
def test_no_finding_where_the_kl_is_right(form):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = walker(kl=form, kl_coef=0.1, n_epochs=2, batch_size=4, learning_rate=0.01)
        model.learn(200)
    assert model.doctor.findings == {} and model._n_updates > 10


def test_a_loaded_model_has_a_doctor_of_its_own(tmp_path):
    model = walker(kl="k1", kl_coef=0.1)
    assert len(warnings_of(model)) == 1
    model.save(tmp_path / "model")
    loaded = GRPO.load(tmp_path / "model", env=DummyVecEnv([Walk] * 4))
    assert loaded.doctor.findings == {}
    collected(loaded)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded.train()  # the KL is not 0 any more, and that is no fault
