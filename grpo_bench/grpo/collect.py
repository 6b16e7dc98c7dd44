"""Collect groups of rollouts: play every member to its end."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from grpo_bench.grpo.episode_queue import EpisodeQueue
from grpo_bench.grpo.finite import naming_observations
from grpo_bench.grpo.groups import GroupSource, Step
from grpo_bench.grpo.policies import ActorPolicy
from grpo_bench.grpo.rollout import Rollout, RolloutBuilder, as_tensors, upload

# Called after each vector step with its number of transitions and the locals for SB3's callbacks.
# False stops the collection.
OnStep = Callable[[int, dict[str, Any]], bool]


def collect_groups(
    source: GroupSource,
    policy: ActorPolicy,
    n_problems: int,
    group_size: int,
    on_step: OnStep,
    max_episode_steps: int | None = None,
) -> Rollout | None:
    """Play ``group_size`` episodes of each of ``n_problems`` problems; None if stopped.

    Episode e belongs to group e // group_size. A sub-environment whose episode has ended plays the
    next one, in order; where the source cannot restart a single one, all begin together.

    Raises:
        ValueError: members of a group whose first observations differ, unless the source's kind
            is ``mixed_start``; or an episode that has not ended after ``max_episode_steps``.
    """
    starts = source.draw(n_problems)
    queue = EpisodeQueue(np.repeat(starts, group_size), source.n_envs, source.kind)
    builder = RolloutBuilder(
        policy.device, group_size, starts, share_first=source.kind != "mixed_start"
    )
    with source.playing(queue):
        while queue.left:
            if not _play(source, queue, policy, builder, on_step, max_episode_steps):
                return None
    return builder.finish()


def _play(
    source: GroupSource,
    queue: EpisodeQueue,
    policy: ActorPolicy,
    builder: RolloutBuilder,
    on_step: OnStep,
    max_episode_steps: int | None,
) -> bool:
    """Begin episodes in all sub-environments, and play until none has an episode."""
    obs, raw_obs = source.begin(queue)
    fresh, going = queue.active(), np.zeros(0, dtype=int)
    sent: Any = None
    since = np.zeros(source.n_envs, dtype=np.int64)  # the vector step at which each began
    for t in count(1):
        active = np.concatenate([fresh, going])
        if not len(active):
            return True
        episodes = queue.playing[active]
        seen, rows, local = builder.observe(obs, raw_obs, fresh, going, queue.playing)
        played = obs, active, queue.starts[episodes]
        with torch.no_grad(), naming_observations(*played):
            params = policy(as_tensors(seen, policy.device))
            shared = None if local is None else upload(torch.as_tensor(local), policy.device)
            distribution = policy.distribution(params, shared)  # members of a group share a row
            actions = distribution.get_actions()
            if isinstance(policy.action_space, spaces.Box) and not actions.isfinite().all():
                raise ValueError(f"the policy's action is {actions[~actions.isfinite()][0].item()}")
            logp = distribution.log_prob(actions)
        chosen = to_env(actions, policy.action_space, source.device)
        if sent is None:  # sub-environments without an episode need valid actions, too
            sent = chosen[np.resize(np.arange(len(active)), source.n_envs)]
        sent[active] = chosen
        step = source.step(sent, queue)
        builder.add(episodes, rows, actions, logp, step, active)
        if max_episode_steps is not None and t - since[active].min() >= max_episode_steps:
            _check_ended(step.dones, active, t - since >= max_episode_steps, max_episode_steps)
        if not on_step(len(active), _seen(step, active, chosen)):
            return False
        since[step.began] = t
        stays = ~step.dones[active]
        fresh, going = step.began, np.sort(active[stays])
        obs, raw_obs = step.obs, step.raw_obs
    raise AssertionError("not reached")


def _check_ended(dones: np.ndarray, active: np.ndarray, late: np.ndarray, limit: int) -> None:
    """ValueError if an episode that is late, (E,) bool, has not ended."""
    endless = active[late[active] & ~dones[active]]
    if len(endless):
        raise ValueError(
            f"the episode in sub-environment {endless[0]} has not ended after {limit} steps: GRPO "
            "plays whole episodes. Wrap the environment in gymnasium.wrappers.TimeLimit, or pass a "
            "larger max_episode_steps"
        )


def _seen(step: Step, active: np.ndarray, actions: Any) -> dict[str, Any]:
    """The locals for callbacks, as SB3 names them; ``active`` are the sub-environments that had an
    episode, and all rows of ``actions`` are theirs."""
    rewards, dones = np.zeros_like(step.rewards), np.zeros_like(step.dones)
    rewards[active], dones[active] = step.rewards[active], step.dones[active]
    return {
        "new_obs": step.obs,
        "rewards": rewards,
        "dones": dones,
        "infos": step.infos,
        "actions": actions,
        "active": active,
    }


def to_env(actions: Tensor, space: spaces.Space[Any], device: torch.device | None = None) -> Any:
    """Sampled actions in the form the environment takes: an array, clipped into a Box; or for an
    environment of tensors, whose actions are discrete, a tensor on its device."""
    if device is not None:
        return actions.to(device)
    array = actions.cpu().numpy().reshape(-1, *(space.shape or ()))
    if isinstance(space, spaces.Box):
        array = np.clip(array, space.low, space.high)
    return array.astype(space.dtype, copy=False)
