"""Clipping of gradients, against torch's."""

import pytest
import torch

from grpo_bench.fast.gradients import clip_grad_norm


def gradients(seed, missing=False):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(5, 3), (3,), (), (2, 2, 2)]
    made = [torch.zeros(shape, requires_grad=True) for shape in shapes]
    for parameter in made:
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    if missing:
        made[1].grad = None
    return made


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("max_norm", [1e-3, 0.5, 1e3, float("inf")])
def test_it_equals_torchs_number_for_number(max_norm, missing):
    ours, theirs = gradients(0, missing), gradients(0, missing)
    norm = clip_grad_norm(ours, max_norm)
    assert torch.equal(norm, torch.nn.utils.clip_grad_norm_(theirs, max_norm))
    for mine, its in zip(ours, theirs, strict=True):
        assert (mine.grad is None) == (its.grad is None)
        assert mine.grad is None or torch.equal(mine.grad, its.grad)


def test_by_hand():
    parameter = torch.zeros(2, requires_grad=True)
    parameter.grad = torch.tensor([3.0, 4.0])
    assert clip_grad_norm([parameter], 0.5).item() == 5.0
    torch.testing.assert_close(parameter.grad, torch.tensor([0.3, 0.4]))


def test_a_norm_that_is_not_finite_is_returned():
    parameter = torch.zeros(2, requires_grad=True)
    parameter.grad = torch.tensor([torch.nan, 1.0])
    assert clip_grad_norm([parameter], 0.5).isnan()
