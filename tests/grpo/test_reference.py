"""The reference policy: frozen, or following; saved and loaded; and the KL to it."""

import copy
import itertools

import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.vec_env import DummyVecEnv
from support.toys import UNIT, OneStep, Walk, collected, parameters, walker
from test_persistence import learn_on
from torch import nn

from grpo_bench import GRPO
from grpo_bench.grpo.kl import FORMS
from grpo_bench.grpo.reference import follow, frozen_copy


def weights(policy):
    return torch.nn.utils.parameters_to_vector(policy.parameters()).detach().clone()


class Watch(BaseCallback):
    """Records the policy and its reference as each iteration begins."""

    def __init__(self):
        super().__init__()
        self.policies, self.references = [], []

    def _on_rollout_start(self):
        self.policies.append(weights(self.model.policy))
        self.references.append(weights(self.model.reference))

    def _on_step(self):
        return True


# -- frozen, or following --------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.filterwarnings("ignore::grpo_bench.grpo.doctor.DoctorWarning")
def test_a_frozen_reference_is_the_policy_before_training(form):
    model, watch = walker(kl=form, kl_coef=0.1, n_epochs=2, learning_rate=0.01), Watch()
    before = parameters(model)
    model.learn(200, callback=watch)
    assert len(watch.references) > 4
    assert all(torch.equal(reference, before) for reference in watch.references)
    assert not torch.equal(parameters(model), before)
    assert not any(p.requires_grad for p in model.reference.parameters())
    assert model.reference.optimizer is None and not model.reference.training


@pytest.mark.parametrize(("interval", "tau"), [(1, 1.0), (2, 1.0), (3, 0.25), (1, 0.1)])
def test_a_reference_that_follows_by_hand(interval, tau):
    """After every so many iterations, however many gradient steps they take."""
    model = walker(kl="exact", kl_coef=0.1, n_epochs=2, batch_size=4, learning_rate=0.01,
                   ref_update_interval=interval, ref_tau=tau)  # fmt: skip
    watch = Watch()
    model.learn(400, callback=watch)
    assert len(watch.policies) > 7
    expected = watch.policies[0]
    for k, (policy, reference) in enumerate(zip(watch.policies, watch.references, strict=True)):
        if k and k % interval == 0:  # k iterations are over
            expected = (1 - tau) * expected + tau * policy
        torch.testing.assert_close(reference, expected, rtol=0, atol=1e-6)
        if tau == 1:
            assert torch.equal(reference, watch.policies[k - k % interval])


class Normalised(FlattenExtractor):
    """With buffers, one of them an integer counter."""

    def __init__(self, observation_space):
        super().__init__(observation_space)
        self.norm = nn.BatchNorm1d(2)

    def forward(self, observations):
        return self.norm(super().forward(observations))


def test_buffers_are_followed_too():
    kwargs = {"features_extractor_class": Normalised}
    model = walker(kl="k3", ref_update_interval=1, ref_tau=0.5, policy_kwargs=kwargs)
    collected(model)
    norm = model.policy.features_extractor.norm
    norm.running_mean += 0.25
    norm.num_batches_tracked += 7
    model.train()
    followed = model.reference.features_extractor.norm
    assert followed.running_mean.tolist() == [0.25, 0.25]
    assert followed.num_batches_tracked == 7 and followed.num_batches_tracked.dtype == torch.long
    assert followed.num_batches_tracked is not norm.num_batches_tracked


def test_a_copy_is_frozen_and_apart():
    policy = walker().policy
    policy.train()
    reference = frozen_copy(policy)
    assert not reference.training and policy.training and policy.optimizer is not None
    assert all(p.requires_grad for p in policy.parameters())
    with torch.no_grad():
        policy.action_net.bias += 1
    assert not torch.equal(weights(reference), weights(policy))
    follow(reference, policy, 1.0)
    assert torch.equal(weights(reference), weights(policy))
    assert not any(p.requires_grad for p in reference.parameters())


@pytest.mark.parametrize("tau", [1.0, 0.25])
def test_a_reference_that_follows_is_saved_loaded_and_follows_on(tmp_path, tau):
    settings = {"kl": "exact", "kl_coef": 0.2, "ref_update_interval": 2, "ref_tau": tau}
    model = walker(learning_rate=0.01, **settings)
    initial = parameters(model)
    for _ in range(3):
        model.learn(1, reset_num_timesteps=False)
    assert model._n_iterations == 3, "saved between two moves"
    assert not torch.equal(weights(model.reference), initial)
    model.save(tmp_path / "model")
    loaded = GRPO.load(tmp_path / "model", env=DummyVecEnv([Walk] * 4))
    assert torch.equal(weights(loaded.reference), weights(model.reference))
    assert not torch.equal(weights(model.reference), weights(model.policy))
    assert loaded._n_iterations == model._n_iterations
    expected = learn_on(model, DummyVecEnv([Walk] * 4))
    assert torch.equal(learn_on(loaded, DummyVecEnv([Walk] * 4)), expected)
    assert torch.equal(weights(loaded.reference), weights(model.reference))
    assert loaded.reference.optimizer is None


# -- the KL to it ---------------------------------------------------------------------------------

ACTIONS = {
    "Discrete": (spaces.Discrete(3), [[a] for a in range(3)]),
    "MultiDiscrete": (spaces.MultiDiscrete([2, 3]), list(itertools.product(range(2), range(3)))),
    "MultiBinary": (spaces.MultiBinary(3), list(itertools.product((0.0, 1.0), repeat=3))),
}


def shifted(space, form, **settings):
    """A model on constant rewards whose reference differs from the policy, and one rollout."""
    env = OneStep(space, UNIT, lambda seen, action: 0.5)
    sizes = {"group_size": 8, "n_problems": 4, "n_epochs": 1}
    model = GRPO("MlpPolicy", env, seed=0, kl=form, **sizes | settings)
    rollout = copy.deepcopy(collected(model))
    with torch.no_grad():
        for p in model.reference.parameters():
            p += 0.2 * torch.randn_like(p)
    return model, rollout


@pytest.mark.filterwarnings("ignore::grpo_bench.grpo.doctor.DoctorWarning")
@pytest.mark.parametrize("name", ACTIONS)
@pytest.mark.parametrize("form", FORMS)
def test_the_exact_kl_is_logged_whatever_is_trained_on(form, name):
    space, actions = ACTIONS[name]
    model, rollout = shifted(space, form)
    seen = rollout.observations[rollout.rows[:, 0]]
    total = 0.0
    for action in actions:
        batch = torch.tensor([action] * len(seen))
        batch = batch.squeeze(-1) if name == "Discrete" else batch
        logp = model.policy.get_distribution(seen).log_prob(batch)
        ref_logp = model.reference.get_distribution(seen).log_prob(batch)
        total += (logp.exp() * (logp - ref_logp)).detach()
    model.train()
    log = dict(model.logger.name_to_value)
    assert log["train/kl_ref"] == pytest.approx(total.mean().item(), rel=1e-4) and total.min() > 0
    chosen = rollout.actions[:, 0]
    x = rollout.old_logp[:, 0] - model.reference.get_distribution(seen).log_prob(chosen).detach()
    assert log["train/kl_ref_k1"] == pytest.approx(x.mean().item(), rel=1e-3)
    assert log["train/kl_ref_k3"] == pytest.approx((torch.exp(-x) - 1 + x).mean().item(), rel=1e-3)


@pytest.mark.filterwarnings("ignore::grpo_bench.grpo.doctor.DoctorWarning")
def test_the_exact_kl_of_gaussians():
    """log(s2 / s1) + (s1^2 + (m1 - m2)^2) / (2 s2^2) - 1/2 of each number, added up."""
    model, rollout = shifted(spaces.Box(-1, 1, (2,)), "k1_reward")
    seen = rollout.observations[rollout.rows[:, 0]]
    with torch.no_grad():
        m1, m2 = model.policy(seen), model.reference(seen)
        s1, s2 = model.policy.log_std.exp(), model.reference.log_std.exp()
    assert not torch.equal(s1, s2)
    each = (s2 / s1).log() + (s1**2 + (m1 - m2) ** 2) / (2 * s2**2) - 0.5
    model.train()
    log = model.logger.name_to_value
    assert log["train/kl_ref"] == pytest.approx(each.sum(dim=1).mean().item(), rel=1e-4)


@pytest.mark.filterwarnings("ignore::grpo_bench.grpo.doctor.DoctorWarning")
@pytest.mark.parametrize("form", FORMS)
def test_only_a_form_of_the_loss_adds_a_term_to_it(form):
    model, _ = shifted(spaces.Discrete(3), form, kl_coef=0.5)
    model.train()
    log = model.logger.name_to_value
    term = log["train/loss"] - log["train/policy_gradient_loss"]
    k1, k3, exact = (log[f"train/kl_ref{name}"] for name in ("_k1", "_k3", ""))
    expected = {"k1": k1, "tutorial": -k1, "k3": k3, "k3_ratio": k3, "exact": exact}.get(form)
    if FORMS[form].place == "return":
        assert term == 0
    elif expected is not None:
        assert term == pytest.approx(0.5 * expected, rel=1e-3, abs=1e-6)
    else:
        assert term > 0


@pytest.mark.filterwarnings("ignore::grpo_bench.grpo.doctor.DoctorWarning")
@pytest.mark.parametrize(("form", "sign"), [("k1_reward", 1), ("tutorial_reward", -1)])
@pytest.mark.parametrize("baseline", ["group", "group_mean", "rank", "batch", "none"])
def test_a_form_in_the_return_pays_each_rollout_against_the_others(form, sign, baseline):
    """Constant rewards, so that (but for ``none``) the penalty alone moves the policy:
    -0.3 (x_i - mean of the others' x), whatever the baseline divides by."""
    model, rollout = shifted(spaces.Discrete(3), form, kl_coef=0.3, baseline=baseline,
                             max_grad_norm=1e9)  # fmt: skip
    policy = copy.deepcopy(model.policy)
    seen = rollout.observations[rollout.rows[:, 0]]
    chosen = rollout.actions[:, 0]
    ref_logp = model.reference.get_distribution(seen).log_prob(chosen).detach()
    x = sign * (rollout.old_logp[:, 0] - ref_logp).view(4, 8)
    advantage = -0.3 * (x - (x.sum(dim=1, keepdim=True) - x) / 7)
    if baseline == "none":
        advantage = advantage + 0.5
    logp = policy.get_distribution(seen).log_prob(chosen)
    (-(advantage.flatten() * logp).mean()).backward()
    model.train()
    for ours, theirs in zip(model.policy.parameters(), policy.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-6)


@pytest.mark.filterwarnings("ignore::grpo_bench.grpo.doctor.DoctorWarning")
@pytest.mark.parametrize(
    ("form", "nearer"),
    [("exact", True), ("k1_reward", True), ("k3_ratio", True), ("tutorial_reward", False)],
)
def test_what_a_form_does_to_the_true_kl(form, nearer):
    """Nothing else to learn: the policy goes to the reference, or away from it. Measured with 8
    seeds: 0.01 to 0.07 of the first KL after 30 updates, or 5 to 22 times as much."""
    model, _ = shifted(spaces.Discrete(3), form, kl_coef=1.0, learning_rate=0.01)
    kl = []
    for _ in range(30):
        model.train()
        kl.append(model.logger.name_to_value["train/kl_ref"])
        collected(model)
    assert kl[-1] < 0.2 * kl[0] if nearer else kl[-1] > 2 * kl[0]
