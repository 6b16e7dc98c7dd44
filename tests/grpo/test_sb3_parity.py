"""With equal advantages, Stable-Baselines3's own ``PPO.train`` takes the steps of our loss."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.logger import configure
from stable_baselines3.common.type_aliases import RolloutBufferSamples
from support.toys import OneStep
from torch import Tensor

from grpo_bench.grpo.kl import k3
from grpo_bench.grpo.objectives import AGGREGATIONS, RATIOS, Clip, PolicyLoss, policy_loss

CLIP = 0.15
LEARNING_RATE = 0.5
STEPS = 24  # in the buffer
SPACES = {
    "discrete": spaces.Discrete(3),
    "several": spaces.MultiDiscrete([2, 3]),
    "continuous": spaces.Box(-1, 1, (2,), np.float32),
}


class RecordingBuffer(RolloutBuffer):
    """Keeps every minibatch that it hands out."""

    def get(self, batch_size: int | None = None) -> Iterator[RolloutBufferSamples]:
        self.seen: list[RolloutBufferSamples] = getattr(self, "seen", [])
        for samples in super().get(batch_size):
            self.seen.append(samples)
            yield samples


def ppo_with_a_full_buffer(action_space: spaces.Space[Any], **options: Any) -> PPO:
    """PPO with nothing but its policy loss, whose buffer holds random advantages and
    log-probabilities of a policy that has moved on, so that the clip acts from the first step."""
    environment = OneStep(action_space, spaces.Box(-1, 1, (3,), np.float32), lambda *_: 0.0)
    model = PPO(
        "MlpPolicy",
        environment,
        seed=0,
        device="cpu",
        n_steps=STEPS,
        learning_rate=LEARNING_RATE,
        clip_range=CLIP,
        normalize_advantage=False,
        ent_coef=0.0,
        vf_coef=0.0,
        max_grad_norm=float("inf"),
        rollout_buffer_class=RecordingBuffer,
        policy_kwargs={"net_arch": [8], "optimizer_class": torch.optim.SGD},
        **options,
    )
    model.set_logger(configure(None, []))
    buffer, source = model.rollout_buffer, np.random.default_rng(0)
    observations = source.uniform(-1, 1, (STEPS, 1, 3)).astype(np.float32)
    with torch.no_grad():
        for observation in observations:
            action, value, log_prob = model.policy(torch.as_tensor(observation))
            moved = log_prob + 0.2 * source.normal()
            buffer.add(observation, action.numpy(), np.zeros(1), np.zeros(1), value[:, 0], moved)
    buffer.advantages[:] = source.normal(size=buffer.advantages.shape)
    buffer.seen = []
    return model


def our_loss(
    policy: torch.nn.Module, samples: RolloutBufferSamples, discrete: bool, **options: Any
) -> tuple[PolicyLoss, Tensor, Tensor]:
    """The loss of a minibatch as rollouts of one action, with its new and old log-probabilities."""
    actions = samples.actions.long().flatten() if discrete else samples.actions
    _, logp, _ = policy.evaluate_actions(samples.observations, actions)
    logp, old = logp[:, None], samples.old_log_prob[:, None]  # (batch, 1)
    mask = torch.ones_like(logp, dtype=torch.bool)
    options |= {"clip": Clip(CLIP, CLIP), "max_len": 1}
    return policy_loss(logp, old, samples.advantages, mask, **options), logp, old


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("batch_size", [STEPS, 7])
@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size of 7")
def test_the_same_parameters_after_the_same_update(
    space: str, batch_size: int, ratio: str, aggregation: str
) -> None:
    """Two epochs: parameters and logged values. With one action to a rollout all aggregations are
    equal, and so are both ratios. 7 does not divide 24: the last minibatch is smaller."""
    model = ppo_with_a_full_buffer(SPACES[space], n_epochs=2, batch_size=batch_size)
    ours, before = copy.deepcopy(model.policy), copy.deepcopy(model.policy.state_dict())
    model.train()

    optimiser = torch.optim.SGD(ours.parameters(), lr=LEARNING_RATE)
    logged: dict[str, list[float]] = {"loss": [], "outside": [], "bounded": [], "kl": []}
    options = {"ratio": ratio, "aggregation": aggregation}
    for samples in model.rollout_buffer.seen:
        result, logp, old = our_loss(ours, samples, space == "discrete", **options)
        optimiser.zero_grad()
        result.loss.backward()
        optimiser.step()
        logged["loss"].append(result.loss.item())
        logged["bounded"].append(result.clip_fraction.item())
        logged["outside"].append((result.ratio - 1).abs().gt(CLIP).double().mean().item())
        logged["kl"].append(k3(old, logp).mean().item())  # of the old policy to the new one

    assert len(model.rollout_buffer.seen) == 2 * -(-STEPS // batch_size)
    for name, value in model.policy.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value, rtol=1e-5, atol=1e-7)
    moved = max((value - before[name]).abs().max() for name, value in ours.state_dict().items())
    assert moved > 0.01
    values = model.logger.name_to_value
    last_epoch = len(model.rollout_buffer.seen) // 2
    assert values["train/policy_gradient_loss"] == pytest.approx(np.mean(logged["loss"]), rel=1e-5)
    assert values["train/approx_kl"] == pytest.approx(np.mean(logged["kl"][last_epoch:]), rel=1e-4)
    # SB3 counts all ratios outside the bounds, we only those without a gradient: a ratio on the
    # other side still learns, in SB3's own loss too.
    assert values["train/clip_fraction"] == pytest.approx(np.mean(logged["outside"]))
    assert 0 < np.mean(logged["bounded"]) < np.mean(logged["outside"])
