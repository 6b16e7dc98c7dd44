"""What TRL 1.16 makes of rewards and completions before the loss, and what we make of them.

    scale_rewards group                   baseline group with ddof 1
                  batch                   batch_std with ddof 1
                  none                    group_mean
    normalize_then_sum                    group for each reward, their sum through batch
    a reward of None                      valid is False

Not in TRL's GRPOTrainer: rloo (it has a trainer of its own), batch, rank, none, and process
supervision.
"""

from pathlib import Path

import pytest
import torch
from support.tiny import replayed
from trl_trainer import EOS, GROUP, PAD, WORD, draw, trl_inputs, trl_scored, trl_trainer

from grpo_bench.grpo.advantages import group_advantages, without_spread

NAN = torch.nan

# -- advantages -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("scale", "baseline"), [("group", "group"), ("batch", "batch_std"), ("none", "group_mean")]
)
def test_advantages(scale: str, baseline: str, seed: int, folder: Path) -> None:
    rollouts = draw(seed)
    theirs = trl_scored(rollouts, folder, scale_rewards=scale)["advantages"]
    ours = group_advantages(rollouts.rewards.view(-1, GROUP), baseline, ddof=1).flatten()
    torch.testing.assert_close(theirs, ours, rtol=1e-9, atol=1e-12)


def test_the_default_divides_by_the_population_std(folder: Path) -> None:
    """TRL has Bessel's correction, ours is an option: without it, advantages are sqrt(G / (G - 1))
    times as large (up to eps)."""
    rollouts = draw(0)
    theirs = trl_scored(rollouts, folder)["advantages"]
    ours = group_advantages(rollouts.rewards.view(-1, GROUP)).flatten()
    torch.testing.assert_close(ours, theirs * (4 / 3) ** 0.5, rtol=1e-3, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32], indirect=True)
def test_without_spread_advantages_are_exactly_zero_here(folder: Path, dtype: torch.dtype) -> None:
    """The mean of equal rewards need not be that reward. TRL divides by 1e-4 what is left, and
    misses such groups in its share of them, as it looks for a standard deviation of 0."""
    rewards = torch.tensor([[0.9] * 8, [0.3] * 8, [1.0] + [0.0] * 7])
    rollouts = draw(0)._replace(rewards=rewards.flatten())
    scored = trl_scored(rollouts, folder, num_generations=8)
    theirs = scored["advantages"].view_as(rewards)
    ours = group_advantages(rewards, ddof=1)
    assert (ours[:2] == 0).all() and (theirs[:2] != 0).all()
    torch.testing.assert_close(theirs[2], ours[2])
    assert scored["metrics"]["frac_reward_zero_std"] == [0.0]
    assert without_spread(rewards).tolist() == [True, True, False]


def test_share_of_groups_without_spread(folder: Path) -> None:
    """Equal where the mean is exact, as with rewards of 0 and 1."""
    rewards = torch.tensor([[1.0] * 8, [0.0] * 8, [1.0] + [0.0] * 7])
    scored = trl_scored(draw(0)._replace(rewards=rewards.flatten()), folder, num_generations=8)
    share = without_spread(rewards).double().mean().item()
    assert scored["metrics"]["frac_reward_zero_std"] == pytest.approx([share], rel=1e-6)
    assert share == 2 / 3


@pytest.mark.parametrize(
    ("scale", "baseline"), [("group", "group"), ("batch", "batch_std"), ("none", "group_mean")]
)
def test_a_rollout_without_a_reward_is_left_out(scale: str, baseline: str, folder: Path) -> None:
    """One of the first group, three of the second: what is left alone there has advantage 0."""
    rollouts = draw(1)
    rollouts.rewards[[1, 4, 5, 7]] = NAN
    theirs = trl_scored(rollouts, folder, scale_rewards=scale)["advantages"]
    grouped = rollouts.rewards.view(-1, GROUP)
    valid = ~grouped.isnan()
    ours = group_advantages(grouped, baseline, ddof=1, valid=valid).flatten()
    torch.testing.assert_close(theirs, ours, rtol=1e-9, atol=1e-12)
    assert (ours[[1, 4, 5, 6, 7]] == 0).all() and (ours[[0, 2, 3]] != 0).all()


WEIGHTS = [1.0, 0.5]


@pytest.mark.parametrize("how", ["sum_then_normalize", "normalize_then_sum"])
def test_several_rewards(how: str, folder: Path) -> None:
    """TRL's two ways to add rewards up, from our one function."""
    rollouts = draw(2)
    length = torch.tensor([float(len(ids)) for ids in rollouts.completions])
    both = torch.stack([rollouts.rewards, length])

    def first(reward: list[float], **_: object) -> list[float]:
        return reward

    def second(completion_ids: list[list[int]], **_: object) -> list[float]:
        return [float(len(ids)) for ids in completion_ids]

    theirs = trl_scored(
        rollouts,
        folder,
        reward_funcs=[first, second],
        reward_weights=WEIGHTS,
        multi_objective_aggregation=how,
    )["advantages"]
    weights = torch.tensor(WEIGHTS)[:, None, None]
    grouped = both.view(2, -1, GROUP)
    if how == "sum_then_normalize":
        ours = group_advantages((weights * grouped).sum(0), ddof=1)
    else:
        each = torch.stack([group_advantages(rewards, ddof=1) for rewards in grouped])
        ours = group_advantages((weights * each).sum(0), "batch", ddof=1)
    torch.testing.assert_close(theirs, ours.flatten(), rtol=1e-9, atol=1e-12)


# -- completions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("pad", [PAD, EOS])
def test_completion_masks(pad: int, folder: Path) -> None:
    """TRL samples from its model; both keep the tokens up to and including the first EOS, also
    where EOS is what the batch is padded with."""
    torch.manual_seed(0)
    rollouts = draw(0)
    trainer = trl_trainer(
        rollouts,
        folder,
        generate=True,
        pad_token=str(pad),
        per_device_train_batch_size=24,
        max_completion_length=12,
        mask_truncated_completions=True,
        generation_kwargs={"suppress_tokens": [PAD]},  # see below
    )
    trainer.model.train()
    scored = trainer._generate_and_score_completions(trl_inputs(rollouts))
    ids, mask = scored["completion_ids"], scored["completion_mask"].bool()
    ours = replayed(ids, EOS)
    cut_off = ours.truncated
    assert cut_off.any() and not cut_off.all()
    assert torch.equal(mask, ours.mask & ~cut_off[:, None])  # masked whole, as TRL was asked to
    share = trainer._metrics["train"]["completions/clipped_ratio"]
    assert share == pytest.approx([cut_off.float().mean().item()])


def test_a_last_token_that_is_padding(folder: Path) -> None:
    """TRL takes a completion that ends in the padding id for one that has ended; only EOS does."""
    rollouts = draw(0)
    rollouts.completions[0] = [WORD, WORD, PAD]
    assert trl_scored(rollouts, folder)["metrics"]["completions/clipped_ratio"] == [0.0]
    assert replayed(torch.tensor([rollouts.completions[0]] * 2), EOS).truncated.all()
