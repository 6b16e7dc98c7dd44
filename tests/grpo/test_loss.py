"""The loss of an optimiser step by hand: its terms, their sum and its gradient; new names."""

import inspect
from dataclasses import FrozenInstanceError, fields

import pytest
import torch
from support.new_names import MINE, with_mine
from support.toys import collected, parameters, walker

from grpo_bench import GRPO
from grpo_bench.grpo.loss import step_loss, value_loss, weighted_sum
from grpo_bench.grpo.objectives import aggregation_weights
from grpo_bench.grpo.settings import Settings

NAN, INF = torch.nan, torch.inf


def double(values):
    return torch.tensor(values, dtype=torch.float64)


# -- one step by hand -----------------------------------------------------------------------------

# Two rollouts, of two actions and of one. Each rollout has half of the weight.
MASK = torch.tensor([[True, True], [True, False]])
WEIGHTS = double([[1 / 4, 1 / 4], [1 / 2, 0]])
RATIO = double([[1.0, 1.5], [0.5, 1.0]])
ADVANTAGES = double([1.0, -1.0])
ENTROPY = double([[0.4, 0.8], [0.6, 9.0]])  # 9: padding, weight 0
KL = double([[0.02, 0.04], [0.1, 9.0]])
VALUES, RETURNS = double([[1.0, 2.0], [0.0, 9.0]]), double([[0.0, 2.0], [0.5, NAN]])

# min(rho A, clip(rho, 0.8, 1.2) A) is 1, 1.2 and -0.8
SURROGATE = -(1 / 4 * 1 + 1 / 4 * 1.2 - 1 / 2 * 0.8)  # -0.15
ENTROPY_SUM = 1 / 4 * 0.4 + 1 / 4 * 0.8 + 1 / 2 * 0.6  # 0.6
KL_SUM = 1 / 4 * 0.02 + 1 / 4 * 0.04 + 1 / 2 * 0.1  # 0.065
VALUE = 1 / 4 * 1 + 1 / 4 * 0 + 1 / 2 * 0.25  # 0.375


def loss_by_hand(settings=None, ratio=RATIO, **terms):
    settings = Settings() if settings is None else settings
    old = torch.zeros(2, 2, dtype=torch.float64)
    arguments = (ratio.log(), old, ADVANTAGES, MASK, WEIGHTS, settings, settings.clip())
    return step_loss(*arguments, **terms)


def test_the_surrogate_alone():
    loss = loss_by_hand()
    assert loss.total.item() == loss.surrogate.item() == pytest.approx(SURROGATE)
    assert loss.clip_fraction.item() == pytest.approx(2 / 3)
    torch.testing.assert_close(loss.ratio, RATIO)


@pytest.mark.parametrize("real", [False, True], ids=["every place", "real actions"])
def test_each_term_has_its_coefficient_and_sign(real):
    """Terms at every position, or at the three real actions alone."""
    entropy, kl = (ENTROPY[MASK], KL[MASK]) if real else (ENTROPY, KL)
    places = torch.arange(3)
    settings = Settings(ent_coef=0.5, kl="k3", kl_coef=2.0)
    value = value_loss(VALUES, VALUES, RETURNS, WEIGHTS, None)
    assert value.loss.item() == pytest.approx(VALUE)

    def total(**terms):
        return loss_by_hand(settings, places=places, **terms).total.item()

    assert total(entropy=entropy) == pytest.approx(SURROGATE - 0.5 * ENTROPY_SUM)
    assert total(kl=kl) == pytest.approx(SURROGATE + 2.0 * KL_SUM)
    assert total(value=value, vf_coef=0.4) == pytest.approx(SURROGATE + 0.4 * VALUE)
    everything = total(entropy=entropy, kl=kl, value=value, vf_coef=0.4)
    assert everything == pytest.approx(-0.15 - 0.3 + 0.13 + 0.15)


def test_a_term_without_a_weight_is_left_out():
    """0 times an infinite KL would not be 0."""
    loss = loss_by_hand(Settings(kl="k3"), kl=KL / 0, entropy=ENTROPY / 0)
    assert loss.total.item() == pytest.approx(SURROGATE)
    assert not Settings(kl="k3").kl_in("loss")
    assert not Settings(kl="k1_reward").kl_in("return")
    assert Settings(kl="k3", kl_coef=0.1).kl_in("loss")
    assert not Settings(kl="k3", kl_coef=0.1).kl_in("return")
    assert Settings(kl="k1_reward", kl_coef=0.1).kl_in("return")


def test_the_gradient_of_the_total_is_the_weighted_sum_of_the_gradients():
    """With respect to parameters on which every term depends."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 2, 2, generator=generator, dtype=torch.float64).requires_grad_()
    settings = Settings(ent_coef=0.5, kl="k3", kl_coef=2.0)
    value = value_loss(x[3] + x[0], x[3].detach(), RETURNS, WEIGHTS, 0.2)
    entropy, kl = x[1].square() + x[0], (x[2] - x[0]).square()
    loss = loss_by_hand(settings, x[0].exp(), entropy=entropy, kl=kl, value=value, vf_coef=0.4)
    parts = [
        (1.0, loss.surrogate),
        (-0.5, weighted_sum(entropy, WEIGHTS)),
        (2.0, weighted_sum(kl, WEIGHTS)),
        (0.4, value.loss),
    ]
    gradients = [c * torch.autograd.grad(part, x, retain_graph=True)[0] for c, part in parts]
    (whole,) = torch.autograd.grad(loss.total, x)
    assert all(gradient.any() for gradient in gradients)
    torch.testing.assert_close(whole, sum(gradients))


# -- the critic's loss ----------------------------------------------------------------------------

LONG_MASK = torch.arange(5) < torch.tensor([5, 1, 3, 2, 4, 5])[:, None]  # (6, 5)


def random_values():
    """V now and before, and R: (6, 5) each."""
    return torch.randn(3, 6, 5, generator=torch.Generator().manual_seed(3)).unbind()


def test_value_loss_by_hand():
    """The clip is 0.5, each old value 0, each weight 1/4 or, at the NaNs, 0.

    V 0.3, R 1: inside, error 0.49                               gradient 2 (0.3 - 1)
    V 0.9, R 1: bounded at 0.5, error 0.25 instead of 0.01       gradient 0
    V 0.9, R 0: outside, but farther from R: 0.81 over 0.25      gradient 2 (0.9 - 0)
    V -2, R 1: outside, but farther from R: 9 over 2.25          gradient 2 (-2 - 1)
    """
    values = torch.tensor([[0.3, 0.9, 0.9], [-2.0, NAN, NAN]], requires_grad=True)
    old = torch.tensor([[0.0, 0.0, 0.0], [0.0, NAN, NAN]])
    returns = torch.tensor([[1.0, 1.0, 0.0], [1.0, NAN, NAN]])
    weights = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]]) / 4
    loss, clip_fraction = value_loss(values, old, returns, weights, 0.5)
    assert loss.item() == pytest.approx((0.49 + 0.25 + 0.81 + 9.0) / 4)
    assert clip_fraction.item() == 0.25
    loss.backward()
    expected = torch.tensor([[-1.4, 0.0, 1.8], [-6.0, 0.0, 0.0]]) / 4
    torch.testing.assert_close(values.grad, expected)


def test_without_a_clip_it_is_the_mean_squared_error():
    values, old, returns = random_values()
    weights = aggregation_weights(LONG_MASK, "token_mean")
    loss, clip_fraction = value_loss(values, old, returns, weights, None)
    expected = torch.nn.functional.mse_loss(values[LONG_MASK], returns[LONG_MASK])
    torch.testing.assert_close(loss, expected)
    assert clip_fraction is None
    wide = value_loss(values, old, returns, weights, 1e6)
    torch.testing.assert_close(wide.loss, loss, rtol=1e-4, atol=1e-6)
    assert wide.clip_fraction == 0


def test_value_losses_of_micro_batches_add_up():
    arguments = [*random_values(), aggregation_weights(LONG_MASK, "sequence_mean")]
    whole = value_loss(*arguments, 0.2).loss
    parts = [
        value_loss(*(argument[rows] for argument in arguments), 0.2).loss
        for rows in (slice(0, 2), slice(2, 5), slice(5, 6))
    ]
    torch.testing.assert_close(torch.stack(parts).sum(), whole)


@pytest.mark.parametrize("clip", [0.0, -0.2])
def test_a_clip_that_makes_no_sense(clip):
    ones = torch.ones(1, 1)
    with pytest.raises(ValueError, match=rf"clip_range_vf={clip}: expected a positive number"):
        value_loss(ones, ones, ones, ones, clip)


# -- options and names ----------------------------------------------------------------------------


def test_the_signature_and_the_help_have_every_option():
    shown = inspect.signature(GRPO).parameters
    assert "options" not in shown
    for option in fields(Settings):
        assert shown[option.name].default == option.default
        assert shown[option.name].kind is inspect.Parameter.KEYWORD_ONLY
        assert f"{option.name}={option.default!r}: {option.metadata['meaning']}" in GRPO.__doc__
    with pytest.raises(TypeError, match="clip_rnage"):
        walker(clip_rnage=0.3)


def test_settings_follow_the_attributes_of_a_model():
    model = walker(clip_range=lambda progress: 0.1 * progress, clip_range_high=0.4)
    assert model.settings.clip(0.5) == (0.05, 0.4, None)
    model.ent_coef = 0.2
    assert model.settings.ent_coef == 0.2
    with pytest.raises(FrozenInstanceError):
        model.settings.ent_coef = 0.1
    model.ent_coef = -1
    with pytest.raises(ValueError, match="ent_coef=-1: expected a finite number"):
        collected(model), model.train()


@pytest.mark.parametrize("option", MINE)
def test_a_new_name_is_one_entry_of_a_table(option, monkeypatch):
    """Added while the program runs; the step differs from that of the default."""
    after = []
    for chosen in ({}, with_mine(option, monkeypatch)):
        model = walker(n_epochs=2, **chosen)
        collected(model)
        model.train()
        after.append(parameters(model))
    assert after[1].isfinite().all() and not torch.equal(*after)
