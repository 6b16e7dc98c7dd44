"""Helpers of the tests of the oracle: closeness in float64, and random policies."""

import torch

from grpo_bench.enumeration.examples import Example
from grpo_bench.enumeration.gradients import Policies
from grpo_bench.enumeration.tasks import true_gradient


def double(values):
    return torch.tensor(values, dtype=torch.float64)


def close(found, expected, rtol=1e-10):
    torch.testing.assert_close(found, expected, rtol=rtol, atol=1e-13)


def example(task, new, old=None, reference=None):
    """An example of logits; by default on-policy and with a uniform reference."""
    old = new if old is None else old
    reference = torch.zeros_like(new) if reference is None else reference
    return Example("test", task, Policies(new, old, reference))


def random_example(task, seed, off_policy=True):
    generator = torch.Generator().manual_seed(seed)
    new, old, reference = torch.randn(3, *task.shape, generator=generator, dtype=torch.float64)
    return example(task, new, old if off_policy else new, reference)


def truth(at, kl_coef=0.0):
    return true_gradient(at.task, at.policies.new, at.policies.reference, kl_coef)
