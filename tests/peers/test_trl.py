"""The loss of every ``loss_type`` that TRL 1.16's GRPOTrainer and we both have is TRL's, in value
and gradient, through a whole optimiser step of theirs; where not, a test says by what and why.

    TRL                                   here
    loss_type grpo                        aggregation sequence_mean
              bnpo, dapo                  token_mean: of a micro-batch, of the step
              dr_grpo                     constant_length
              luspo                       constant_length with max_len 1
              cispo                       token_mean, surrogate cispo
    importance_sampling_level             ratio
    epsilon, epsilon_high, delta          Clip.low, Clip.high, Clip.dual
    beta                                  KL form k3_ratio
      with use_bias_correction_kl=False   k3

TRL has, and we have not:

    loss_type sapo                        a sigmoid instead of the clip (arXiv 2511.20347)
    loss_type vespo                       a gamma-shaped weight of the sequence's ratio
    top_entropy_quantile                  only the tokens with the highest entropy are trained on
    off_policy_mask_threshold             drops bad rollouts that have become too unlikely
    vllm_importance_sampling_correction   another engine's sampling error
    use_adaptive_entropy                  an entropy coefficient that follows a target
    router_aux_loss_coef                  load balance of mixtures of experts
"""

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from trl_trainer import GROUP, MAX_LEN, Rollouts, draw, trl_step

from grpo_bench.grpo.advantages import group_advantages
from grpo_bench.grpo.kl import k3, sample_term
from grpo_bench.grpo.objectives import (
    Clip,
    aggregation_weights,
    importance_ratio,
    policy_loss,
)

BETA = 0.07
K3 = {"beta": BETA, "use_bias_correction_kl": False}  # for TRL; since 1.16 it corrects by default
NO_LOWER_BOUND = 1.0  # 1 - low is 0, and no ratio is below


class Case(NamedTuple):
    """One loss under both names."""

    trl: dict[str, Any]
    ours: dict[str, Any]


CASES = {
    "grpo": Case({"loss_type": "grpo"}, {"aggregation": "sequence_mean"}),
    "dapo": Case({"loss_type": "dapo"}, {"aggregation": "token_mean"}),
    "dr_grpo": Case({"loss_type": "dr_grpo"}, {"aggregation": "constant_length"}),
    # The sum over the tokens of a rollout: the same direction as dr_grpo, MAX_LEN times as long.
    "luspo": Case({"loss_type": "luspo"}, {"aggregation": "constant_length", "max_len": 1}),
    # TRL's epsilon_high of cispo is the bound itself, ours is its distance from 1.
    "cispo": Case(
        {"loss_type": "cispo", "epsilon_high": 1.3},
        {
            "aggregation": "token_mean",
            "surrogate": "cispo",
            "clip": Clip(low=NO_LOWER_BOUND, high=0.3),
        },
    ),
}
CLIPPED = [name for name in CASES if name != "cispo"]


def our_step(
    rollouts: Rollouts,
    mask: Tensor,
    *,
    aggregation: str,
    max_len: int = MAX_LEN,
    kl: str = "k3",
    beta: float = 0.0,
    rows: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Our loss of these rows as one optimiser step, and its gradient by all log-probabilities."""
    if rows is None:
        rows = torch.arange(len(mask))
    table = rollouts.logp.detach().requires_grad_()
    advantages = group_advantages(rollouts.rewards.view(-1, GROUP), ddof=1).flatten()[rows]
    logp, old, ref, mask = table[rows], rollouts.old[rows], rollouts.ref[rows], mask[rows]
    weights = aggregation_weights(mask, aggregation, max_len)
    loss = policy_loss(logp, old, advantages, mask, weights=weights, **options).loss
    loss = loss + beta * (weights * sample_term(kl, logp, ref, old, mask)).sum()
    return loss.detach(), torch.autograd.grad(loss, table)[0]


def assert_same(theirs: Any, ours: tuple[Tensor, Tensor], factor: float = 1.0) -> None:
    """Equal values and gradients, up to the rounding of the default dtype; none of them 0."""
    single = torch.get_default_dtype() == torch.float32
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if single else {"rtol": 1e-9, "atol": 1e-12}
    assert theirs.gradient.abs().max() > 1e-3
    torch.testing.assert_close(theirs.loss, factor * ours[0], **tolerance)
    torch.testing.assert_close(theirs.gradient, factor * ours[1], **tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], indirect=True)
@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("beta", [0.0, BETA])
@pytest.mark.parametrize("ratio", ["token", "sequence"])
@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient(
    name: str, ratio: str, beta: float, micro_batches: int, folder: Path, dtype: torch.dtype
) -> None:
    rollouts, case = draw(1), CASES[name]
    config = K3 | {"importance_sampling_level": ratio, "beta": beta} | case.trl
    theirs = trl_step(rollouts, folder, micro_batches, **config)
    assert theirs.gradient.dtype == dtype
    assert_same(theirs, our_step(rollouts, rollouts.mask, ratio=ratio, beta=beta, **case.ours))


@pytest.mark.parametrize("ratio", ["token", "sequence"])
@pytest.mark.parametrize("seed", range(5))
def test_bnpo_in_one_batch_is_the_token_mean(seed: int, ratio: str, folder: Path) -> None:
    rollouts = draw(seed)
    config = {"loss_type": "bnpo", "importance_sampling_level": ratio}
    theirs = trl_step(rollouts, folder, **config | K3)
    options = {"aggregation": "token_mean", "ratio": ratio, "beta": BETA}
    assert_same(theirs, our_step(rollouts, rollouts.mask, **options))


@pytest.mark.parametrize("ratio", ["token", "sequence"])
@pytest.mark.parametrize("name", CLIPPED)
@pytest.mark.parametrize("seed", range(3))
def test_clip_higher(seed: int, name: str, ratio: str, folder: Path) -> None:
    rollouts, case = draw(seed), CASES[name]
    bounds = {"epsilon": 0.1, "epsilon_high": 0.28, "importance_sampling_level": ratio}
    theirs = trl_step(rollouts, folder, **bounds | case.trl)
    options = {"clip": Clip(0.1, 0.28), "ratio": ratio} | case.ours
    assert_same(theirs, our_step(rollouts, rollouts.mask, **options))
    symmetric = our_step(rollouts, rollouts.mask, **options | {"clip": Clip(0.1, 0.1)})
    assert not torch.allclose(theirs.gradient, symmetric[1])


@pytest.mark.parametrize("name", CLIPPED)
def test_delta_is_the_dual_clip(name: str, folder: Path) -> None:
    """TRL clamps the ratio to delta before it takes the minimum. With delta above 1 + epsilon_high,
    as TRL recommends, that is c of the dual clip: for A > 0 the other bound is the lower one."""
    rollouts, case = draw(2), CASES[name]
    theirs = trl_step(rollouts, folder, delta=1.4, **case.trl)
    assert_same(theirs, our_step(rollouts, rollouts.mask, clip=Clip(dual=1.4), **case.ours))
    without = our_step(rollouts, rollouts.mask, **case.ours)
    assert not torch.allclose(theirs.gradient, without[1])


@pytest.mark.parametrize("name", CASES)
def test_the_default_kl_is_k3_ratio(name: str, folder: Path) -> None:
    """``use_bias_correction_kl``, on by default: k3 times the ratio, both differentiated."""
    rollouts, case = draw(3), CASES[name]
    theirs = trl_step(rollouts, folder, beta=BETA, **case.trl)
    ours = our_step(rollouts, rollouts.mask, beta=BETA, kl="k3_ratio", **case.ours)
    assert_same(theirs, ours)
    k3_alone = our_step(rollouts, rollouts.mask, beta=BETA, **case.ours)
    assert not torch.allclose(theirs.gradient, k3_alone[1])


@pytest.mark.parametrize("name", CASES)
def test_on_policy(name: str, folder: Path) -> None:
    """With one iteration TRL takes pi_old from pi by ``detach``: the ratio is 1, its gradient not
    0."""
    rollouts, case = draw(4), CASES[name]
    theirs = trl_step(rollouts, folder, num_iterations=1, **case.trl)
    sampled = rollouts._replace(old=rollouts.logp.detach())
    assert_same(theirs, our_step(sampled, rollouts.mask, **case.ours))


def test_entropy_bonus_is_a_token_mean(folder: Path) -> None:
    """TRL takes the entropy bonus as a token mean under every loss type; ours has the weights of
    the loss, so it is theirs with token_mean."""
    rollouts = draw(5)
    trl_step(rollouts, folder, loss_type="dapo", entropy_coef=0.3)
    weights = aggregation_weights(rollouts.mask, "token_mean")
    torch.testing.assert_close(rollouts.entropy.grad, -0.3 * weights)


def test_metrics(folder: Path) -> None:
    """kl is the mean of k3 over the tokens, clip_ratio/region_mean our clip fraction."""
    rollouts = draw(6)
    metrics = trl_step(rollouts, folder, loss_type="dapo", **K3).metrics
    estimate = k3(rollouts.logp, rollouts.ref)[rollouts.mask].mean()
    assert metrics["kl"] == pytest.approx([estimate.item()])
    advantages = group_advantages(rollouts.rewards.view(-1, GROUP), ddof=1).flatten()
    ours = policy_loss(rollouts.logp, rollouts.old, advantages, rollouts.mask).clip_fraction
    assert 0.1 < ours < 0.9
    # TRL counts in float32, whatever the log-probabilities are
    assert metrics["clip_ratio/region_mean"] == pytest.approx([ours.item()], rel=1e-6)


# -- a rollout that is masked whole ---------------------------------------------------------------

TRUNCATED = (2, 7, 8, 12, 13, 14)  # of 24


@pytest.mark.parametrize("ratio", ["token", "sequence"])
@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_truncated_completions(name: str, micro_batches: int, ratio: str, folder: Path) -> None:
    """``mask_truncated_completions`` masks them whole. TRL leaves them in the denominator wherever
    it counts rollouts (trl #6369), so that its step shrinks by the share that is kept; we divide by
    the rollouts that are left. Where it counts tokens the two are equal."""
    rollouts, case = draw(7, truncated=TRUNCATED), CASES[name]
    config = {"mask_truncated_completions": True, "importance_sampling_level": ratio} | K3
    theirs = trl_step(rollouts, folder, micro_batches, **config | case.trl)
    mask = rollouts.mask & rollouts.ended[:, None]
    ours = our_step(rollouts, mask, beta=BETA, ratio=ratio, **case.ours)
    counts_tokens = case.ours["aggregation"] == "token_mean"
    assert_same(theirs, ours, factor=1.0 if counts_tokens else 18 / 24)
    assert (theirs.gradient[list(TRUNCATED)] == 0).all()


def test_bnpo_with_truncated_completions(folder: Path) -> None:
    rollouts = draw(7, truncated=TRUNCATED)
    theirs = trl_step(rollouts, folder, loss_type="bnpo", mask_truncated_completions=True)
    mask = rollouts.mask & rollouts.ended[:, None]
    assert_same(theirs, our_step(rollouts, mask, aggregation="token_mean"))


# -- different, and why ---------------------------------------------------------------------------


def test_bnpo_depends_on_the_split(folder: Path) -> None:
    """bnpo divides each micro-batch by its own tokens: it is the mean of our token means, and moves
    with gradient accumulation. A token of ours weighs the same in whatever micro-batch it is."""
    rollouts = draw(8)
    theirs = trl_step(rollouts, folder, 3, loss_type="bnpo")
    whole = our_step(rollouts, rollouts.mask, aggregation="token_mean")
    assert not torch.allclose(theirs.gradient, whole[1], rtol=1e-2)
    options = {"aggregation": "token_mean"}
    each = [our_step(rollouts, rollouts.mask, rows=rows, **options) for rows in theirs.parts]
    assert_same(theirs, (sum(loss for loss, _ in each) / 3, sum(grad for _, grad in each) / 3))


@pytest.mark.parametrize("name", ["dapo", "cispo"])
def test_several_optimiser_steps_share_their_tokens_in_trl(name: str, folder: Path) -> None:
    """With two optimiser steps to one generation, TRL divides each by half of the tokens of both,
    so that steps with longer rollouts are larger; we divide by the tokens of the step."""
    rollouts, case = draw(9), CASES[name]
    theirs = trl_step(rollouts, folder, 2, steps_per_generation=4, **case.trl)
    rows = torch.cat(theirs.parts[:2])
    tokens, shared = rollouts.mask[rows].sum().item(), rollouts.mask.sum().item() / 2
    assert tokens != shared
    ours = our_step(rollouts, rollouts.mask, rows=rows, **case.ours)
    assert_same(theirs, ours, factor=tokens / shared)


def test_delta_below_the_upper_bound(folder: Path) -> None:
    """There TRL's delta is another thing: it bounds what good actions learn, which ours never does,
    and bad ones are held at 1 + epsilon_high instead. TRL's help advises against it."""
    rollouts, options = draw(2), {"aggregation": "sequence_mean"}
    theirs = trl_step(rollouts, folder, delta=1.1, loss_type="grpo").gradient
    good = group_advantages(rollouts.rewards.view(-1, GROUP)).flatten() > 0
    dual = our_step(rollouts, rollouts.mask, clip=Clip(dual=1.1), **options)[1]
    tighter = our_step(rollouts, rollouts.mask, clip=Clip(high=0.1), **options)[1]
    looser = our_step(rollouts, rollouts.mask, clip=Clip(dual=1.2), **options)[1]
    torch.testing.assert_close(theirs[good], tighter[good])
    torch.testing.assert_close(theirs[~good], looser[~good])
    assert not torch.allclose(theirs[good], dual[good])
    assert not torch.allclose(theirs[~good], dual[~good])


def test_bias_correction_under_a_sequence_ratio(folder: Path) -> None:
    """TRL weighs k3 by the same ratio as the advantage. Only the token's own ratio turns the
    expectation over the sampling policy into the KL, so ``k3_ratio`` keeps it under GSPO too."""
    rollouts = draw(3)
    config = {"beta": BETA, "importance_sampling_level": "sequence"}
    theirs = trl_step(rollouts, folder, loss_type="grpo", **config)
    options = {"aggregation": "sequence_mean", "ratio": "sequence"}
    loss, gradient = our_step(rollouts, rollouts.mask, **options)
    ours = our_step(rollouts, rollouts.mask, beta=BETA, kl="k3_ratio", **options)
    assert not torch.allclose(theirs.gradient, ours[1], rtol=1e-3)

    logp, mask = rollouts.logp.detach().requires_grad_(), rollouts.mask
    ratio = importance_ratio(logp, rollouts.old, mask, "sequence")
    weights = BETA * aggregation_weights(mask, "sequence_mean")
    term = (weights * ratio * sample_term("k3", logp, rollouts.ref, rollouts.old, mask)).sum()
    assert_same(theirs, (loss + term.detach(), gradient + torch.autograd.grad(term, logp)[0]))


@pytest.mark.parametrize("name", CASES)
def test_nan_outside_the_mask_poisons_trl_alone(name: str, folder: Path) -> None:
    """TRL multiplies by the mask, and 0 * NaN is NaN; we select."""
    rollouts, case = draw(10), CASES[name]
    clean = our_step(rollouts, rollouts.mask, **case.ours)
    outside = ~rollouts.mask
    poisoned = rollouts._replace(
        logp=rollouts.logp.detach().masked_fill(outside, torch.nan).requires_grad_()
    )
    assert trl_step(poisoned, folder, **case.trl).loss.isnan()
    dirty = our_step(poisoned, rollouts.mask, **case.ours)
    torch.testing.assert_close(dirty, clean, rtol=0, atol=0)
