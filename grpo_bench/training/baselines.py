"""SB3's own algorithms on the same native vector environment and with the same actor network.

The critic is what PPO has and GRPO lacks, so it is named: ``separate`` has a body of its own, as
large as the actor's; ``shared`` is one more linear layer on the actor's body.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sb3_contrib import TRPO, MaskablePPO
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.type_aliases import Schedule
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecEnv

from grpo_bench.grpo.choices import check_choice

KINDS: dict[str, type[OnPolicyAlgorithm]] = {
    "ppo": PPO,
    "a2c": A2C,
    "trpo": TRPO,
    "maskable_ppo": MaskablePPO,
}
CRITICS = ("separate", "shared")


def make_baseline(
    kind: str,
    env: VecEnv,
    *,
    critic: str,
    n_steps: int,
    n_minibatches: int,
    n_epochs: int,
    learning_rate: float | Callable[[float], float],
    policy: str,
    policy_kwargs: dict[str, Any],
    seed: int,
    device: str,
    **settings: Any,
) -> OnPolicyAlgorithm:
    """The SB3 algorithm of that kind.

    Args:
        kind: a name in ``KINDS``.
        critic: a name in ``CRITICS``.
        n_steps: vector steps of an iteration; with E sub-environments it has n_steps * E
            transitions, cut into ``n_minibatches`` and passed over ``n_epochs`` times (A2C takes
            one step on all of them; TRPO uses these for its critic).
        settings: the algorithm's own, by SB3's names.
    """
    check_choice("critic", critic, CRITICS)
    if kind == "a2c":
        batching: dict[str, Any] = {}
        settings = {"use_rms_prop": False, **settings}  # the same optimiser as everyone else
    else:
        batch_size = n_steps * env.num_envs // n_minibatches
        epochs = {"n_critic_updates" if kind == "trpo" else "n_epochs": n_epochs}
        batching = {"batch_size": batch_size, **epochs}
    return KINDS[kind](
        policy,
        env,
        learning_rate=learning_rate,
        n_steps=n_steps,
        policy_kwargs=policy_kwargs | {"share_features_extractor": critic == "shared"},
        seed=seed,
        device=device,
        **batching,
        **settings,
    )


def make_zoo(*, learning_rate: Schedule, linear: bool, clip_range: float, **keywords: Any) -> PPO:
    """PPO with the settings that RL Baselines3 Zoo publishes.

    Args:
        learning_rate: falls linearly to 0.
        linear: whether the learning rate does fall, and the clip range with it.
    """
    if linear:
        return PPO(
            learning_rate=learning_rate, clip_range=LinearSchedule(clip_range, 0.0, 1.0), **keywords
        )
    return PPO(learning_rate=learning_rate(1.0), clip_range=clip_range, **keywords)


def actor_modules(policy: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Body and action net of SB3's actor-critic or of our actor, under one pair of names."""
    body = getattr(policy, "pi_features_extractor", None) or policy.features_extractor
    assert isinstance(body, torch.nn.Module) and isinstance(policy.action_net, torch.nn.Module)
    return {"body": body, "action_net": policy.action_net}


def critic_modules(policy: torch.nn.Module) -> list[torch.nn.Module]:
    """What a policy has for its critic alone, in SB3's on- and off-policy algorithms."""
    shares = getattr(policy, "share_features_extractor", True)
    extractor = getattr(policy, "mlp_extractor", None)
    found = [
        None if shares else getattr(policy, "vf_features_extractor", None),
        getattr(extractor, "value_net", None),
        *(getattr(policy, name, None) for name in ("value_net", "critic", "critic_target")),
    ]
    return [module for module in found if isinstance(module, torch.nn.Module)]


def load_actor(policy: torch.nn.Module, state: dict[str, dict[str, torch.Tensor]]) -> None:
    """Start from a warmed-up actor: ``state`` has the state dicts of ``actor_modules``. A separate
    critic's body starts from the same weights, as in RLHF, where it starts from the language
    model."""
    for name, module in actor_modules(policy).items():
        module.load_state_dict(state[name])
    critic_body = getattr(policy, "vf_features_extractor", None)
    if isinstance(critic_body, torch.nn.Module):
        critic_body.load_state_dict(state["body"])
