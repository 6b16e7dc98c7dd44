"""The presets are what they say: each setting, and a whole update against its printed formula."""

from __future__ import annotations

import copy
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.utils import FloatSchedule
from support.configs import ALGOS, config
from torch import Tensor

from grpo_bench import GRPO
from grpo_bench.grpo.rollout import Rollout
from grpo_bench.runs.models import make_model, task_of


def preset(tmp_path: Path, name: str, *overrides: str) -> GRPO:
    model = make_model(config(tmp_path, "env=vlm", f"algo={name}", *overrides), "cpu")
    assert isinstance(model, GRPO)
    return model


# Of every preset but where it differs: GRPO's settings, by name.
GRPO_SETTINGS = {
    "group_size": 8,
    "n_epochs": 4,  # of vlm
    "clip_range": 0.2,
    "clip_range_high": None,
    "clip_dual": None,
    "surrogate": "clip",
    "ratio": "token",
    "aggregation": "sequence_mean",
    "max_len": None,
    "baseline": "group",
    "ddof": 0,
    "eps": 1e-4,
    "supervision": "outcome",
    "gamma": 1.0,
    "target_kl": None,
    "kl": "none",
    "kl_coef": 0.0,
    "ref_update_interval": None,
    "ref_tau": 1.0,
    "ent_coef": 0.0,
    "max_grad_norm": 0.5,
    "mask_truncated": False,
    "max_refills": 0,
    "spread_tol": 0.0,
    "mixed_start": False,
    "nan_reward": "error",
    "max_episode_steps": None,
}
ALL_AT_ONCE = {"n_epochs": 1}  # a single update following each exploration
DIFFERENCES: dict[str, dict[str, Any]] = {
    "grpo": {},
    # the formulas that beginners meet
    "grpo_tutorial": ALL_AT_ONCE | {"eps": 1e-8, "kl": "tutorial", "kl_coef": 0.04},
    # DeepSeekMath (arXiv 2402.03300), 4.2: 64 outputs, KL coefficient 0.04, a single update; 4.1.2:
    # rewards less their mean, divided by their deviation
    "grpo_paper": ALL_AT_ONCE | {"group_size": 64, "eps": 0.0, "kl": "k3", "kl_coef": 0.04},
    # arXiv 2503.20783, section 3.2: neither the deviation nor the length divides
    "dr_grpo": {"baseline": "group_mean", "aggregation": "constant_length", "max_len": 1},
    # arXiv 2503.14476, section 4.1: 0.2 and 0.28; 3.2 to 3.4
    "dapo": {
        "clip_range_high": 0.28,
        "aggregation": "token_mean",
        "max_refills": 4,
        "mask_truncated": True,
    },
    # arXiv 2507.18071, equation 7
    "gspo": {"ratio": "sequence"},
    # arXiv 2506.13585, equation 4: the weight is bounded above only
    "cispo": {
        "surrogate": "cispo",
        "aggregation": "token_mean",
        "clip_range": 1.0,
        "clip_range_high": 4.0,
    },
    # arXiv 2402.14740, section 3.2
    "rloo": {
        "baseline": "rloo",
        "aggregation": "constant_length",
        "max_len": 1,
        "kl": "k1_reward",
        "kl_coef": 0.05,
    },
    # arXiv 2501.03262: normalised over the batch
    "reinforce_pp": {
        "baseline": "batch",
        "aggregation": "token_mean",
        "kl": "k1_reward",
        "kl_coef": 0.01,
    },
    # arXiv 2510.03679: the group's mean return from each step on
    "grpo_rtg": {"supervision": "return_to_go"},
    # Williams 1992
    "reinforce": ALL_AT_ONCE | {"baseline": "none", "aggregation": "constant_length", "max_len": 1},
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_the_settings_of_a_preset(tmp_path: Path, name: str) -> None:
    model = preset(tmp_path, name)
    expected = GRPO_SETTINGS | DIFFERENCES[name]
    found = {option: getattr(model, option) for option in GRPO_SETTINGS}
    found = {k: v(1.0) if isinstance(v, FloatSchedule) else v for k, v in found.items()}
    assert found == expected
    assert model.n_problems is not None and model.n_problems * model.group_size == 2048
    minibatches = 1 if expected["n_epochs"] == 1 else 4
    assert model.batch_size == 2048 // minibatches


def test_every_option_and_every_preset_is_in_the_list() -> None:
    names = set(inspect.signature(GRPO).parameters) - {"_init_setup_model"}
    common = {"policy", "env", "learning_rate", "n_problems", "batch_size", "stats_window_size"}
    common |= {"tensorboard_log", "policy_kwargs", "verbose", "seed", "device"}
    assert names - common == set(GRPO_SETTINGS)
    found = {name for name in ALGOS if config(Path("x"), f"algo={name}").algo.kind == "grpo"}
    assert found == set(DIFFERENCES)


@pytest.mark.parametrize(("env", "max_len"), [("arithmetic", 4), ("format", 16)])
def test_constant_length_is_the_limit_of_the_environment(
    tmp_path: Path, env: str, max_len: int
) -> None:
    for name in ("dr_grpo", "rloo", "reinforce"):
        chosen = config(tmp_path, f"env={env}", f"algo={name}")
        model = make_model(chosen, "cpu")
        assert isinstance(model, GRPO) and model.max_len == task_of(chosen.env).max_steps
        assert model.max_len == max_len


class Watch(BaseCallback):
    """Keeps each iteration's rollout, the policy before its update and the step's gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.rollouts: list[Rollout] = []
        self.before: list[Any] = []
        self.gradients: list[Tensor] = []
        self.steps: list[tuple[int, Any]] = []  # rollout and policy of each gradient step

    def _init_callback(self) -> None:
        self.model.policy.optimizer.register_step_pre_hook(self._keep_gradient)

    def _keep_gradient(self, *_: Any) -> None:
        self.gradients.append(flat(p.grad for p in self.model.policy.parameters()))
        self.steps.append((len(self.rollouts) - 1, copy.deepcopy(self.model.policy)))

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


# -- several actions: the other presets -----------------------------------------------------------


class Played:
    """An episode: its return and (length,) log-probabilities now, at sampling and at the start."""

    def __init__(self, rollout: Rollout, e: int, policy: Any, initial: Any) -> None:
        length = int(rollout.mask[e].sum())
        assert isinstance(rollout.observations, dict)
        seen = {name: v[rollout.rows[e, :length]] for name, v in rollout.observations.items()}
        chosen = rollout.actions[e, :length]
        self.logp = policy.get_distribution(seen).log_prob(chosen)
        self.old = rollout.old_logp[e, :length]
        self.ref = initial.get_distribution(seen).log_prob(chosen).detach()
        self.paid = rollout.rewards[e, :length].tolist()
        self.r = sum(self.paid)
        self.cost = (self.old - self.ref).sum().item()  # k1 of the whole
        self.truncated = bool(rollout.truncated[e])
        self.rho = (self.logp - self.old).exp()


def clipped(rho: Tensor, advantage: float | Tensor, low: float = 0.2, high: float = 0.2) -> Tensor:
    return torch.min(rho * advantage, rho.clamp(1 - low, 1 + high) * advantage)


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def standardised(r: float, values: list[float]) -> float:
    deviation = mean([(v - mean(values)) ** 2 for v in values]) ** 0.5
    return (r - mean(values)) / (deviation + 1e-4)


def standardised_by_step(paid: list[float], everyone: list[list[float]]) -> Tensor:
    """Of each step's return to go, among those of the episodes that have such a step."""
    playing = [[sum(other[t:]) for other in everyone if len(other) > t] for t in range(len(paid))]
    return torch.tensor([standardised(sum(paid[t:]), playing[t]) for t in range(len(paid))])


def less_others(values: list[float], i: int) -> float:
    return values[i] - mean(values[:i] + values[i + 1 :])


def printed_objective(name: str, groups: list[list[Played]], max_len: int) -> Tensor:
    """What each paper maximises, over groups of episodes of up to ``max_len`` actions."""
    everything = [e for group in groups for e in group]
    kept = [e for e in everything if not e.truncated]
    n_all, n_tokens = len(everything), sum(len(e.old) for e in everything)
    total = torch.zeros(())
    for group in groups:
        r, cost = [e.r for e in group], [e.cost for e in group]
        for i, e in enumerate(group):
            a = standardised(e.r, r)
            if name == "dr_grpo":
                total = total + clipped(e.rho, e.r - mean(r)).sum() / (n_all * max_len)
            elif name == "dapo" and not e.truncated:
                n_kept = sum(len(other.old) for other in kept)
                total = total + clipped(e.rho, a, high=0.28).sum() / n_kept
            elif name == "gspo":
                total = total + clipped((e.logp - e.old).mean().exp(), a) / n_all
            elif name == "cispo":
                weight = e.rho.detach().clamp(max=5.0)
                total = total + (weight * a * e.logp).sum() / n_tokens
            elif name == "rloo":
                returns = [r_j - 0.05 * cost_j for r_j, cost_j in zip(r, cost, strict=True)]
                total = total + clipped(e.rho, less_others(returns, i)).sum() / (n_all * max_len)
            elif name == "reinforce_pp":
                advantage = standardised(e.r, [other.r for other in everything])
                advantage -= 0.01 * less_others(cost, i)
                total = total + clipped(e.rho, advantage).sum() / n_tokens
            elif name == "grpo_rtg":
                by_step = standardised_by_step(e.paid, [other.paid for other in group])
                total = total + clipped(e.rho, by_step).mean() / n_all
            elif name == "reinforce":
                total = total + (e.r * e.logp).sum() / (n_all * max_len)
    return total


class Rewarded(Watch):
    """Also gives rewards with spread, and cuts episodes off, which the task itself does not; stops
    after two rollouts."""

    def _on_step(self) -> bool:
        return len(self.rollouts) < 2

    def _on_rollout_end(self) -> None:
        rollout = self.locals["rollout"]
        rollout.rewards[:, :2] = torch.rand(len(rollout.rewards), 2).round()
        rollout.rewards.masked_fill_(~rollout.mask, 0.0)
        rollout.truncated[::5] = True
        super()._on_rollout_end()
        self.rollouts[-1] = copy.deepcopy(rollout)


@pytest.mark.parametrize(
    "name",
    ["dr_grpo", "dapo", "gspo", "cispo", "rloo", "reinforce_pp", "grpo_rtg", "reinforce"],
)
def test_updates_of_several_actions_are_the_printed_formula(tmp_path: Path, name: str) -> None:
    """Two iterations of two epochs (``reinforce``: of one): neither ratios nor KL are trivial."""
    overrides = ["env.train.episodes=32", "env.train.learning_rate=0.03", "env.network.width=8"]
    overrides += ["env.network.depth=1", "env.network.heads=1", "env.train.n_epochs=2"]
    chosen = config(tmp_path, "env=arithmetic", f"algo={name}", *overrides, "algo.minibatches=1")
    model = make_model(chosen, "cpu")
    assert isinstance(model, GRPO)
    model.max_grad_norm = 1e9
    initial, watch = copy.deepcopy(model.policy), Rewarded()
    model.learn(10_000, callback=watch)
    assert len(watch.gradients) == (2 if name == "reinforce" else 4)
    for (k, policy), gradient in zip(watch.steps, watch.gradients, strict=True):
        rollout = watch.rollouts[k]
        episodes = [Played(rollout, e, policy, initial) for e in range(32)]
        groups = [episodes[g : g + 8] for g in range(0, 32, 8)]
        assert len({len(e.old) for e in episodes}) > 1, "ragged"
        policy.zero_grad()
        (-printed_objective(name, groups, task_of(chosen.env).max_steps)).backward()
        expected = flat(p.grad for p in policy.parameters())
        assert expected.norm() > 1e-3
        torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-5)


def test_the_default_of_a_sweep_is_the_whole_comparison() -> None:
    from hydra import compose, initialize_config_dir

    from grpo_bench.config import CONF

    with initialize_config_dir(str(CONF), version_base="1.3"):
        whole = compose("config", return_hydra_config=True)
    assert dict(whole.hydra.sweeper.params) == {
        "env": "vlm,arithmetic,format",
        "algo": "ppo,grpo",
    }
