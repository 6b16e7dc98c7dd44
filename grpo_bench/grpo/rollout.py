"""Collect groups of rollouts: play every member to its end, and keep the data of the update."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from grpo_bench.grpo.groups import GroupSource, Step
from grpo_bench.grpo.policies import ActorPolicy

TensorObs = Tensor | dict[str, Tensor]


@dataclass
class Rollout:
    """N = n_problems * group_size episodes in group order, padded to T actions.

    Each observation is kept once, and ``rows`` has the observation of each action. The members of
    a group share their first observation, so a one-step task stores, and sends through the
    network, one observation per problem instead of one per rollout.

    Observations, actions and rewards are on the policy's device. The structure of the episodes
    (``rows``, ``mask``, ``truncated``) is on the host, which plays them.
    """

    observations: TensorObs  # (M, ...) distinct observations
    rows: Tensor  # (N, T) long, index into observations; 0 outside the mask
    actions: Tensor  # (N, T, *action shape)
    old_logp: Tensor  # (N, T) log-probability at sampling
    rewards: Tensor  # (N, T)
    mask: Tensor  # (N, T) bool, true where an action was taken
    truncated: Tensor  # (N,) bool, ended by a time limit alone
    success: np.ndarray  # (N,) at each episode's end; NaN where unknown
    starts: np.ndarray  # (n_problems,) problem ids or seeds
    group_size: int

    @property
    def lengths(self) -> Tensor:
        """Steps of each episode, (N,)."""
        return self.mask.sum(dim=1)

    @property
    def returns(self) -> Tensor:
        """Undiscounted sum of rewards of each rollout, (n_problems, group_size) float64. In float32
        the order of the rewards could make equal returns differ by rounding, and a group without
        spread would seem to have some."""
        return self.rewards.double().sum(dim=1).view(-1, self.group_size)

    @property
    def outcomes(self) -> Tensor:
        """By which dynamic sampling judges groups, (n_problems, group_size): success where the
        environment reports it for every member, else the returns."""
        if np.isnan(self.success).any():
            return self.returns
        return torch.as_tensor(self.success, device=self.rewards.device).view(-1, self.group_size)


# Called after each vector step with its number of transitions and the locals for SB3's callbacks.
# False stops the collection.
OnStep = Callable[[int, dict[str, Any]], bool]


def collect_groups(
    source: GroupSource,
    policy: ActorPolicy,
    n_problems: int,
    group_size: int,
    on_step: OnStep,
) -> Rollout | None:
    """Play ``group_size`` episodes of each of ``n_problems`` problems; None if stopped.

    Episode e belongs to group e // group_size. With E sub-environments they are played in waves
    of E; either a wave holds whole groups, or a group takes whole waves. The last wave may leave
    sub-environments idle.

    Raises:
        ValueError: members of a group whose first observations differ, unless the source's kind
            is ``mixed_start``.
    """
    starts = source.draw(n_problems)
    episodes = np.arange(n_problems * group_size)
    builder = RolloutBuilder(policy.device, group_size, share_first=source.kind != "mixed_start")
    for first in range(0, len(episodes), source.n_envs):
        wave = episodes[first : first + source.n_envs]
        if not _play_wave(source, policy, starts[wave // group_size], wave, builder, on_step):
            return None
    return builder.finish(starts)


def _play_wave(
    source: GroupSource,
    policy: ActorPolicy,
    starts: np.ndarray,
    wave: np.ndarray,
    builder: RolloutBuilder,
    on_step: OnStep,
) -> bool:
    """Play the episodes of a wave, one in each of the first sub-environments, until all have ended.
    Sub-environments without an episode wait."""
    space = policy.action_space
    obs = source.reset(np.resize(starts, source.n_envs))
    active = np.arange(len(wave))
    first = True
    while len(active):
        if first:
            seen, rows = builder.first(take(obs, active), wave, starts)
        else:
            seen, rows = builder.next(obs, active)
        with torch.no_grad():
            params = policy(as_tensors(seen, policy.device))
            local = upload(torch.as_tensor(rows.local), policy.device) if first else None
            distribution = policy.distribution(params, local)  # members of a group share a row
            actions = distribution.get_actions()
            logp = distribution.log_prob(actions)
        chosen = to_env(actions, space, source.device)
        if first:  # sub-environments beyond the wave need valid actions too
            sent = chosen[np.resize(active, source.n_envs)]
        else:
            sent[active] = chosen
        step = source.step(sent)
        builder.add(wave[active], rows.index, actions, logp, step.rewards[active])
        dones = step.dones[active]
        ended = active[dones]
        builder.end(wave[ended], step.success[ended], step.truncated[ended])
        if not on_step(len(active), _seen(step, active, ended)):
            return False
        active, obs, first = active[~dones], step.obs, False
    return True


def _seen(step: Step, active: np.ndarray, ended: np.ndarray) -> dict[str, Any]:
    """The locals for callbacks, without the sub-environments that wait."""
    rewards, dones = np.zeros_like(step.rewards), np.zeros_like(step.dones)
    rewards[active], dones[ended] = step.rewards[active], True
    return {"obs": step.obs, "rewards": rewards, "dones": dones, "active": active}


def to_env(actions: Tensor, space: spaces.Space[Any], device: torch.device | None = None) -> Any:
    """Sampled actions in the form the environment takes: an array, clipped into a Box; or for an
    environment of tensors, whose actions are discrete, a tensor on its device."""
    if device is not None:
        return actions.to(device)
    array = actions.cpu().numpy().reshape(-1, *(space.shape or ()))
    if isinstance(space, spaces.Box):
        array = np.clip(array, space.low, space.high)
    return array.astype(space.dtype, copy=False)


@dataclass
class Rows:
    """The place of the observation of each of n episodes."""

    index: np.ndarray  # (n,) row in the rollout's observations
    local: np.ndarray  # (n,) row in the present batch of the network


@dataclass
class RolloutBuilder:
    """Gathers the steps of all waves, then pads them into one Rollout."""

    device: torch.device
    group_size: int
    share_first: bool
    n_rows: int = 0
    observations: list[Any] = field(default_factory=list)  # distinct, in order of their row
    steps: list[tuple[np.ndarray, np.ndarray, Tensor, Tensor, np.ndarray]] = field(
        default_factory=list
    )
    ends: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = field(default_factory=list)
    leader: tuple[int, int, Any] | None = None  # group, row and first observation of the last group

    def first(self, obs: Any, wave: np.ndarray, starts: np.ndarray) -> tuple[Any, Rows]:
        """Rows for the first observations of a wave: one per group, or one per episode."""
        if not self.share_first:
            return self.next(obs, np.arange(len(wave)))
        group = wave // self.group_size
        local = group - group[0]
        leaders = take(obs, np.searchsorted(group, np.arange(group[0], group[-1] + 1)))
        if self.leader is not None and self.leader[0] == group[0]:
            row, leaders = self.leader[1], self.leader[2]  # this wave goes on with that group
        else:
            row = self._store(leaders)
        self._check_alike(obs, leaders, local, starts)
        self.leader = (int(group[-1]), row + int(local[-1]), take(leaders, [int(local[-1])]))
        return leaders, Rows(row + local, local)

    def next(self, obs: Any, active: np.ndarray) -> tuple[Any, Rows]:
        """Rows for the observations of the episodes that go on."""
        seen = take(obs, active)
        local = np.arange(len(active))
        return seen, Rows(self._store(seen) + local, local)

    def add(
        self,
        episodes: np.ndarray,
        rows: np.ndarray,
        actions: Tensor,
        logp: Tensor,
        rewards: np.ndarray,
    ) -> None:
        """Add one step of n episodes; every argument has n rows."""
        self.steps.append((episodes, rows, actions, logp, rewards))

    def end(self, episodes: np.ndarray, success: np.ndarray, truncated: np.ndarray) -> None:
        """End n episodes: success (n,), NaN where unknown; truncated (n,) bool."""
        self.ends.append((episodes, success, truncated))

    def finish(self, starts: np.ndarray) -> Rollout:
        """Scatter the steps into (N, T) tensors."""
        n = len(starts) * self.group_size
        episodes = np.concatenate([step[0] for step in self.steps])
        times = occurrence(episodes)
        t_max = int(times.max()) + 1
        at = torch.as_tensor(episodes * t_max + times)  # of each action in the n * t_max places
        there = upload(at, self.device)

        def scatter(values: Tensor) -> Tensor:
            flat = values.new_zeros((n * t_max, *values.shape[1:]))
            places = there if values.device == there.device else at
            return flat.index_copy(0, places, values).unflatten(0, (n, t_max))

        rewards = np.concatenate([step[4] for step in self.steps]).astype(np.float32)
        rows = np.concatenate([step[1] for step in self.steps])
        success, truncated = np.full(n, np.nan), np.zeros(n, dtype=bool)
        for ended, succeeded, cut_off in self.ends:
            success[ended], truncated[ended] = succeeded, cut_off
        return Rollout(
            observations=as_tensors(_concatenate(self.observations), self.device),
            rows=scatter(torch.as_tensor(rows)),
            actions=scatter(torch.cat([step[2] for step in self.steps])),
            old_logp=scatter(torch.cat([step[3] for step in self.steps])),
            rewards=scatter(upload(torch.as_tensor(rewards), self.device)),
            mask=scatter(torch.ones(len(episodes), dtype=torch.bool)),
            truncated=torch.as_tensor(truncated),
            success=success,
            starts=starts,
            group_size=self.group_size,
        )

    def _store(self, obs: Any) -> int:
        self.observations.append(obs)
        row, n = self.n_rows, len(next(iter(obs.values())) if isinstance(obs, dict) else obs)
        self.n_rows += n
        return row

    def _check_alike(self, obs: Any, leaders: Any, local: np.ndarray, starts: np.ndarray) -> None:
        parts = obs if isinstance(obs, dict) else {"observation": obs}
        firsts = leaders if isinstance(leaders, dict) else {"observation": leaders}
        for name, values in parts.items():
            differs = values != firsts[name][local]
            if differs.any():
                slot = int(differs.nonzero()[0][0])
                raise ValueError(
                    f"members of the group of start {starts[slot]} begin with different "
                    f"observations (in {name!r}, sub-environment {slot}): a group is G rollouts "
                    "of one problem. Make reset() depend on its seed or problem_id alone, or pass "
                    "mixed_start=True to compare episodes with different starts. (A wrapper that "
                    "drifts, such as VecNormalize, needs a whole group side by side: a multiple "
                    f"of {self.group_size} sub-environments)"
                )


def occurrence(values: np.ndarray) -> np.ndarray:
    """How many equal values precede each value, (n,): the time step of each transition."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    begins = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    counts = np.diff(np.concatenate([begins, [len(values)]]))
    times = np.empty(len(values), dtype=np.int64)
    times[order] = np.arange(len(values)) - np.repeat(begins, counts)
    return times


def upload(host: Tensor, device: torch.device) -> Tensor:
    """Copy a host tensor to the device, without waiting for the device."""
    if device.type == "cuda":
        host = host.pin_memory()
    return host.to(device, non_blocking=True)


def as_tensors(obs: Any, device: torch.device) -> TensorObs:
    """Observations, arrays or tensors or a dict of them, as tensors on the device."""
    if isinstance(obs, dict):
        return {name: torch.as_tensor(values, device=device) for name, values in obs.items()}
    return torch.as_tensor(obs, device=device)


def take(obs: Any, index: Any) -> Any:
    """Rows of observations, arrays or tensors, or dicts of them."""
    if isinstance(obs, dict):
        return {name: values[index] for name, values in obs.items()}
    return obs[index]


def _concatenate(parts: list[Any]) -> Any:
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], dict):
        return {name: _concatenate([part[name] for part in parts]) for name in parts[0]}
    return torch.cat(parts) if isinstance(parts[0], Tensor) else np.concatenate(parts)
