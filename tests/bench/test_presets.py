"""The presets are what they say: each setting, and a whole update against its printed formula."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from bench_configs import config
from stable_baselines3.common.callbacks import BaseCallback
from torch import Tensor

from grpo_bench import GRPO
from grpo_bench.grpo.rollout import Rollout
from grpo_bench.job import make_model


def preset(tmp_path: Path, name: str, *overrides: str) -> GRPO:
    model = make_model(config(tmp_path, "env=vlm", f"algo={name}", *overrides), "cpu")
    assert isinstance(model, GRPO)
    return model


def settings(model: GRPO) -> dict[str, Any]:
    names = ("group_size", "n_epochs", "baseline", "ddof", "eps", "aggregation", "ratio")
    names += ("clip_range", "clip_range_high", "kl", "kl_coef", "ent_coef")  # type: ignore[assignment]
    return {name: getattr(model, name) for name in names}


def test_the_tutorial_preset(tmp_path: Path) -> None:
    model = preset(tmp_path, "grpo_tutorial")
    assert settings(model) == {
        "group_size": 8,
        "n_epochs": 1,
        "baseline": "group",
        "ddof": 0,
        "eps": 1e-8,
        "aggregation": "sequence_mean",
        "ratio": "token",
        "clip_range": 0.2,
        "clip_range_high": None,
        "kl": "tutorial",
        "kl_coef": 0.04,
        "ent_coef": 0.0,
    }
    assert model.n_problems is not None
    assert model.batch_size == model.n_problems * 8  # all of an iteration: one step


def test_the_paper_preset(tmp_path: Path) -> None:
    """DeepSeekMath (arXiv 2402.03300), 4.2: 64 outputs, KL coefficient 0.04, a single update
    following each exploration; 4.1.2: rewards less their mean, divided by their deviation."""
    model = preset(tmp_path, "grpo_paper")
    assert settings(model) == {
        "group_size": 64,
        "n_epochs": 1,
        "baseline": "group",
        "ddof": 0,
        "eps": 0.0,
        "aggregation": "sequence_mean",
        "ratio": "token",
        "clip_range": 0.2,
        "clip_range_high": None,
        "kl": "k3",
        "kl_coef": 0.04,
        "ent_coef": 0.0,
    }
    assert model.n_problems is not None
    assert model.batch_size == model.n_problems * 64


class Watch(BaseCallback):
    """Keeps each iteration's rollout, the policy before its update and the step's gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.rollouts: list[Rollout] = []
        self.before: list[Any] = []
        self.gradients: list[Tensor] = []

    def _init_callback(self) -> None:
        self.model.policy.optimizer.register_step_pre_hook(self._keep_gradient)

    def _keep_gradient(self, *_: Any) -> None:
        self.gradients.append(flat(p.grad for p in self.model.policy.parameters()))

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        self.rollouts.append(self.locals["rollout"])
        self.before.append(copy.deepcopy(self.model.policy))


def flat(tensors: Any) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors]).clone()


def printed_loss(
    policy: Any, reference: Any, rollout: Rollout, size: int, eps: float, form: str
) -> Tensor:
    """The formula for one-step episodes: minus the mean over groups and members of
    min(rho A, clip(rho, 0.8, 1.2) A) - 0.04 KL, with A = (r - mean) / (std + eps)."""
    observations = rollout.observations
    assert isinstance(observations, Tensor)
    logits = policy(observations)[rollout.rows[:, 0]]
    reference_logits = reference(observations)[rollout.rows[:, 0]].detach()
    chosen = rollout.actions[:, 0].long().unsqueeze(1)
    logp = logits.log_softmax(1).gather(1, chosen)[:, 0]
    ref_logp = reference_logits.log_softmax(1).gather(1, chosen)[:, 0]
    rewards = rollout.rewards[:, 0].double().view(-1, size)
    total = torch.zeros((), dtype=torch.float64)
    for g, group in enumerate(rewards.tolist()):
        mean = sum(group) / size
        std = (sum((r - mean) ** 2 for r in group) / size) ** 0.5
        for i, r in enumerate(group):
            k = g * size + i
            advantage = (r - mean) / (std + eps) if std else 0.0
            rho = (logp[k] - rollout.old_logp[k, 0]).exp()
            surrogate = torch.min(rho * advantage, rho.clamp(0.8, 1.2) * advantage)
            x = logp[k] - ref_logp[k]
            kl = {"tutorial": -x, "k3": torch.exp(-x) + x - 1}[form]
            total = total + surrogate - 0.04 * kl
    return -total / rewards.numel()


@pytest.mark.parametrize(
    ("name", "size", "eps", "form"),
    [("grpo_tutorial", 8, 1e-8, "tutorial"), ("grpo_paper", 64, 0.0, "k3")],
)
def test_an_update_is_the_printed_formula(
    tmp_path: Path, name: str, size: int, eps: float, form: str
) -> None:
    small = ["env.train.episodes=128", "env.train.learning_rate=0.01", "env.network.widths=[16]"]
    model = preset(tmp_path, name, *small)
    model.max_grad_norm = 1e9  # the clipping of the norm is not part of the formula
    initial = copy.deepcopy(model.policy)
    watch = Watch()
    model.learn(5 * 128, callback=watch)
    assert len(watch.gradients) == len(watch.rollouts) == 5  # one step for each exploration
    rewards = torch.stack([rollout.rewards[:, 0] for rollout in watch.rollouts])
    assert set(rewards.unique().tolist()) == {1.0, -0.5}
    for policy, rollout, gradient in zip(
        watch.before, watch.rollouts, watch.gradients, strict=True
    ):
        assert rollout.returns.shape == (128 // size, size)
        policy.zero_grad()
        printed_loss(policy, initial, rollout, size, eps, form).backward()
        expected = flat(p.grad for p in policy.parameters())
        assert expected.norm() > 1e-3
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-6)
    # the KL is that to the policy before training, all along
    assert model.reference is not None
    assert torch.equal(flat(model.reference.parameters()), flat(initial.parameters()))
    assert not torch.equal(flat(model.policy.parameters()), flat(initial.parameters()))


def test_the_default_of_a_sweep_is_the_whole_comparison() -> None:
    from hydra import compose, initialize_config_dir

    from grpo_bench.config import CONF

    with initialize_config_dir(str(CONF), version_base="1.3"):
        whole = compose("config", return_hydra_config=True)
    assert dict(whole.hydra.sweeper.params) == {
        "env": "vlm,arithmetic,format",
        "algo": "ppo,grpo",
    }
