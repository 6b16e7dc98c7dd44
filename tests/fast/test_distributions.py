"""The fast categorical is SB3's, in values and in gradients."""

import pytest
import torch
from stable_baselines3.common.distributions import CategoricalDistribution

from grpo_bench.fast.distributions import LogSoftmaxDistribution
from grpo_bench.grpo import kl


def pair(seed, steep):
    """(ours, its logits), (SB3's, its logits) of the same 7 random states; 5 actions."""
    made = []
    for kind in (LogSoftmaxDistribution, CategoricalDistribution):
        generator = torch.Generator().manual_seed(seed)
        logits = (steep * torch.randn(7, 5, generator=generator)).requires_grad_()
        made.append((kind(5).proba_distribution(logits), logits))
    return made


def agree(value):
    """The same value and the same gradient by the logits, finite where probabilities vanish."""
    for steep in (1.0, 300.0):
        got = []
        for distribution, logits in pair(0, steep):
            out = value(distribution)
            grad = torch.autograd.grad(out.sum(), logits)[0] if out.requires_grad else out
            assert torch.isfinite(grad).all()
            got.append((out, grad))
        torch.testing.assert_close(*[out for out, _ in got], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(*[grad for _, grad in got], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("action", [0, 4])
def test_log_probability(action):
    agree(lambda d: d.log_prob(torch.full((7,), action)))
    agree(lambda d: d.log_prob(torch.full((7,), float(action))))


def test_entropy_and_mode():
    agree(lambda d: d.entropy())
    agree(lambda d: d.mode())


def test_torchs_own_is_the_same():
    agree(lambda d: d.distribution.probs)


def test_exact_kl():
    for one, two in zip(pair(1, 1.0), pair(2, 1.0), strict=True):
        two_logits, value = two[1], kl.exact(one[0], two[0])
        expected = (one[1].softmax(1) * (one[1].log_softmax(1) - two_logits.log_softmax(1))).sum(1)
        torch.testing.assert_close(value, expected)


def test_samples_have_the_right_frequencies():
    logits = torch.tensor([0.1, 0.2, 0.7]).log().expand(20_000, 3)
    torch.manual_seed(0)
    counts = LogSoftmaxDistribution(3).proba_distribution(logits).sample().bincount() / 20_000
    # four standard deviations of a binomial share are at most 0.013
    torch.testing.assert_close(counts, torch.tensor([0.1, 0.2, 0.7]), rtol=0, atol=0.013)


def test_nan_logits_cannot_be_sampled():
    with pytest.raises(RuntimeError, match="nan"):
        LogSoftmaxDistribution(3).proba_distribution(torch.full((2, 3), torch.nan)).sample()
