"""Rewards, advantages and values of tokens: by hand, and against Stable-Baselines3."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")

import numpy as np
import torch
import torch.nn.functional as F
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from torch import Tensor

from grpo_bench.lm.gae import gae, token_rewards, whiten

NAN = float("nan")
LENGTHS = [4, 1, 6, 2, 0, 6]


def mask_of(lengths: list[int]) -> Tensor:
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


def random(seed: int, lengths: list[int] = LENGTHS) -> Tensor:
    """(n, T), NaN beyond the length: whatever looks there shows."""
    mask = mask_of(lengths)
    drawn = torch.randn(mask.shape, generator=torch.Generator().manual_seed(seed))
    return drawn.masked_fill(~mask, NAN)


# -- rewards --------------------------------------------------------------------------------------


def test_a_completion_is_paid_at_its_last_token() -> None:
    mask = mask_of([3, 1, 0])
    outcome = torch.tensor([2.0, -0.5, 7.0])
    assert token_rewards(outcome, None, mask).tolist() == [[0, 0, 2], [-0.5, 0, 0], [0, 0, 0]]
    penalties = torch.tensor([[0.5, -1.0, 0.25], [1.0, NAN, NAN], [NAN, NAN, NAN]])
    expected = [[-0.5, 1.0, 1.75], [-1.5, 0, 0], [0, 0, 0]]
    assert token_rewards(outcome, penalties, mask).tolist() == expected


@pytest.mark.parametrize("wrong", [NAN, float("inf")])
def test_a_reward_that_is_no_number(wrong: float) -> None:
    with pytest.raises(ValueError, match=rf"outcome\[1\]={wrong}: expected a finite reward"):
        token_rewards(torch.tensor([1.0, wrong]), None, mask_of([2, 2]))


# -- advantages -----------------------------------------------------------------------------------


def test_three_tokens_by_hand() -> None:
    """gamma 0.5, lambda 0.8, so each later delta counts 0.4 of the one before it.

    delta_2 = 3 - 1 = 2                  A_2 = 2
    delta_1 = 0 + 0.5 * 1 - 2 = -1.5     A_1 = -1.5 + 0.4 * 2 = -0.7
    delta_0 = 1 + 0.5 * 2 - 4 = -2       A_0 = -2 + 0.4 * -0.7 = -2.28
    """
    rewards, values = torch.tensor([[1.0, 0.0, 3.0]]), torch.tensor([[4.0, 2.0, 1.0]])
    advantages, returns = gae(rewards, values, mask_of([3]), 0.5, 0.8)
    torch.testing.assert_close(advantages, torch.tensor([[-2.28, -0.7, 2.0]]))
    torch.testing.assert_close(returns, torch.tensor([[1.72, 1.3, 3.0]]))


def test_lambda_one_is_the_discounted_return_less_the_value() -> None:
    rewards, values = random(0), random(1)
    advantages, returns = gae(rewards, values, mask_of(LENGTHS), 0.9, 1.0)
    for i, length in enumerate(LENGTHS):
        for t in range(length):
            to_come = sum(0.9 ** (k - t) * rewards[i, k].item() for k in range(t, length))
            assert returns[i, t].item() == pytest.approx(to_come, abs=1e-6)
            assert advantages[i, t].item() == pytest.approx(to_come - values[i, t].item(), abs=1e-6)


def test_lambda_zero_is_the_error_of_one_step() -> None:
    rewards, values = random(0), random(1)
    advantages, returns = gae(rewards, values, mask_of(LENGTHS), 0.9, 0.0)
    for i, length in enumerate(LENGTHS):
        for t in range(length):
            target = rewards[i, t] + (0.9 * values[i, t + 1] if t + 1 < length else 0.0)
            torch.testing.assert_close(returns[i, t], target)
            torch.testing.assert_close(advantages[i, t], target - values[i, t])


def test_padding_changes_nothing() -> None:
    """NaN beyond the length, more columns and the other rows: each row as it is alone."""
    rewards, values = F.pad(random(0), (0, 3), value=NAN), F.pad(random(1), (0, 3), value=NAN)
    mask = F.pad(mask_of(LENGTHS), (0, 3))
    advantages, returns = gae(rewards, values, mask, 0.9, 0.7)
    assert (advantages[~mask] == 0).all()
    assert (returns[~mask] == 0).all()
    for i, length in enumerate(LENGTHS):
        row = slice(i, i + 1), slice(0, length)
        alone = gae(rewards[row], values[row], mask[row], 0.9, 0.7)
        assert torch.equal(advantages[row], alone[0])
        assert torch.equal(returns[row], alone[1])


@pytest.mark.parametrize(("gamma", "gae_lambda"), [(1.0, 0.95), (0.9, 0.5), (1.0, 1.0), (0.0, 0.3)])
def test_the_same_as_in_sb3(gamma: float, gae_lambda: float) -> None:
    """Its buffer has a row for each step; an episode that ends is followed by another."""
    mask, n, longest = mask_of(LENGTHS), len(LENGTHS), max(LENGTHS)
    rewards, values = random(0), random(1)
    box = spaces.Box(-1, 1)
    buffer = RolloutBuffer(longest, box, box, gae_lambda=gae_lambda, gamma=gamma, n_envs=n)
    buffer.rewards = np.nan_to_num(rewards.numpy().T, nan=5.0)
    buffer.values = np.nan_to_num(values.numpy().T, nan=-7.0)
    for i, length in enumerate(LENGTHS):
        if length < longest:
            buffer.episode_starts[length, i] = 1.0
    ended = np.array([length == longest for length in LENGTHS])
    buffer.compute_returns_and_advantage(torch.full((n,), 11.0), ended)
    advantages, returns = gae(rewards, values, mask, gamma, gae_lambda)
    theirs = torch.from_numpy(buffer.advantages.T)[mask], torch.from_numpy(buffer.returns.T)[mask]
    torch.testing.assert_close(advantages[mask], theirs[0])
    torch.testing.assert_close(returns[mask], theirs[1])


def test_no_gradient_goes_into_advantages() -> None:
    values = torch.ones(1, 2, requires_grad=True)
    advantages, returns = gae(torch.ones(1, 2), values, mask_of([2]), 1.0, 1.0)
    assert not advantages.requires_grad
    assert not returns.requires_grad


def test_arguments_that_make_no_sense() -> None:
    ones, mask = torch.ones(2, 3), mask_of([3, 3])
    with pytest.raises(ValueError, match=r"gamma=1\.5: expected a number from 0 to 1"):
        gae(ones, ones, mask, 1.5, 0.9)
    with pytest.raises(ValueError, match=r"gae_lambda=-0\.1: expected a number from 0 to 1"):
        gae(ones, ones, mask, 1.0, -0.1)
    mask[1, 1] = False
    with pytest.raises(ValueError, match=r"mask\[1\]: expected tokens first"):
        gae(ones, ones, mask, 1.0, 0.9)


# -- whitening ------------------------------------------------------------------------------------


def test_whitened_by_hand() -> None:
    """1, 2, 3, 6: the mean is 3, the variance (4 + 1 + 0 + 9) / 3."""
    advantages = torch.tensor([[1.0, 2.0, 3.0], [6.0, NAN, NAN]])
    deviation = (14 / 3) ** 0.5
    expected = torch.tensor([[-2.0, -1.0, 0.0], [3.0, 0.0, 0.0]]) / deviation
    torch.testing.assert_close(whiten(advantages, mask_of([3, 1])), expected)


def test_whitened_as_in_sb3() -> None:
    mask, advantages = mask_of(LENGTHS), random(2)
    flat = advantages[mask]
    torch.testing.assert_close(
        whiten(advantages, mask)[mask], (flat - flat.mean()) / (flat.std() + 1e-8)
    )


def test_nothing_to_whiten() -> None:
    """One token stays as it is, equal ones become 0, and none is no error."""
    assert whiten(torch.tensor([[3.0, NAN]]), mask_of([1, 2])[:1]).tolist() == [[3.0, 0.0]]
    assert whiten(torch.full((2, 2), 3.0), mask_of([2, 2])).tolist() == [[0.0, 0.0]] * 2
    assert whiten(torch.full((1, 2), NAN), torch.zeros(1, 2).bool()).tolist() == [[0.0, 0.0]]
