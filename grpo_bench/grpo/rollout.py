"""The data of one update: rollouts in group order, and how they are gathered step by step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grpo_bench.grpo.groups import Step

TensorObs = Tensor | dict[str, Tensor]


@dataclass
class EpisodeLog:
    """How the episodes of a rollout were played, for the log and the doctor. The update needs none
    of it, so it is dropped before."""

    ended: np.ndarray  # (N,) the episodes in the order of their ends
    raw_returns: np.ndarray | None  # (N,) before VecNormalize; None: those of the rewards
    infos: dict[int, dict[str, Any]]  # of a Monitor, by episode
    wrapped: bool  # whether wrappers such as VecNormalize may have changed the observations


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
    log: EpisodeLog | None = None  # until it is logged

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


@dataclass
class RolloutBuilder:
    """Gathers the steps of all episodes, then pads them into one Rollout."""

    device: torch.device
    group_size: int
    starts: np.ndarray  # (n_problems,)
    share_first: bool
    wrapped: bool = False
    n_rows: int = 0
    observations: list[Any] = field(default_factory=list)  # distinct, in order of their row
    steps: list[tuple[np.ndarray, np.ndarray, Tensor, Tensor, np.ndarray, np.ndarray]] = field(
        default_factory=list
    )
    ends: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = field(default_factory=list)
    infos: dict[int, dict[str, Any]] = field(default_factory=dict)  # of a Monitor
    leader: tuple[int, int, Any, Any] | None = None  # of the last group: number, row, observations

    def observe(
        self, obs: Any, raw: Any, fresh: np.ndarray, going: np.ndarray, playing: np.ndarray
    ) -> tuple[Any, np.ndarray, np.ndarray | None]:
        """Keep the observations of the sub-environments that begin an episode, and of those that
        go on.

        Returns:
            What the network is to see; the row of each in the rollout, (n,); and the row of each in
            what the network sees, None if they are the same.
        """
        self.wrapped |= raw is not obs
        if not len(fresh):
            seen = take(obs, going)
            return seen, self._store(seen) + np.arange(len(going)), None
        first, rows, local = self._first(take(obs, fresh), take(raw, fresh), playing[fresh])
        if not len(going):
            return first, rows, local
        seen, n = take(obs, going), int(local[-1]) + 1
        later = np.arange(len(going))
        rows = np.concatenate([rows, self._store(seen) + later])
        return _concatenate([first, seen]), rows, np.concatenate([local, n + later])

    def _first(
        self, obs: Any, raw: Any, episodes: np.ndarray
    ) -> tuple[Any, np.ndarray, np.ndarray]:
        """Observations, rows and local rows of episodes that begin: one row for each group, or one
        for each episode."""
        own = np.arange(len(episodes))
        if not self.share_first:
            return obs, self._store(obs) + own, own
        group = episodes // self.group_size
        local = group - group[0]
        heads = np.searchsorted(group, np.arange(group[0], group[-1] + 1))
        leaders, raw_leaders = take(obs, heads), take(raw, heads)
        began_before = self.leader is not None and self.leader[0] == group[0]
        if began_before:
            assert self.leader is not None
            leaders = _concatenate([self.leader[2], take(leaders, np.s_[1:])])
            raw_leaders = _concatenate([self.leader[3], take(raw_leaders, np.s_[1:])])
        self._check_alike(raw, raw_leaders, local, group)
        last = [int(local[-1])]
        if raw is not obs and _difference(obs, leaders, local) is not None:
            rows = self._store(obs) + own  # a wrapper such as VecNormalize drifts
            self.leader = (int(group[-1]), int(rows[-1]), take(obs, [-1]), take(raw, [-1]))
            return obs, rows, own
        if began_before:
            assert self.leader is not None
            row = self.leader[1]
            new = self._store(take(leaders, np.s_[1:])) if last[0] else 0
            rows = np.where(local == 0, row, new + local - 1)
        else:
            rows = self._store(leaders) + local
        self.leader = (int(group[-1]), int(rows[-1]), take(leaders, last), take(raw_leaders, last))
        return leaders, rows, local

    def add(
        self,
        episodes: np.ndarray,
        rows: np.ndarray,
        actions: Tensor,
        logp: Tensor,
        step: Step,
        active: np.ndarray,
    ) -> None:
        """Add a step of n episodes; all but ``step`` have n rows."""
        rewards, dones = step.rewards[active], step.dones[active]
        raw = rewards if step.raw_rewards is step.rewards else step.raw_rewards[active]
        self.steps.append((episodes, rows, actions, logp, rewards, raw))
        over = np.flatnonzero(dones)
        over = over[np.argsort(active[over])]  # by sub-environment, as wrappers count episodes
        ended = active[over]
        self.ends.append((episodes[over], step.success[ended], step.truncated[ended]))
        if isinstance(step.infos, list | tuple):
            for slot, episode in zip(ended.tolist(), episodes[over].tolist(), strict=True):
                if "episode" in step.infos[slot]:
                    self.infos[episode] = step.infos[slot]["episode"]

    def finish(self) -> Rollout:
        """Scatter the steps into (N, T) tensors."""
        n = len(self.starts) * self.group_size
        episodes = np.concatenate([step[0] for step in self.steps])
        times = occurrence(episodes)
        t_max = int(times.max()) + 1
        at = torch.as_tensor(episodes * t_max + times)  # of each action in the n * t_max places
        there = upload(at, self.device)

        def scatter(values: Tensor) -> Tensor:
            flat = values.new_zeros((n * t_max, *values.shape[1:]))
            places = there if values.device == there.device else at
            return flat.index_copy(0, places, values).unflatten(0, (n, t_max))

        paid = np.concatenate([step[4] for step in self.steps])
        rewards = paid.astype(np.float32)
        rows = np.concatenate([step[1] for step in self.steps])
        success, truncated = np.full(n, np.nan), np.zeros(n, dtype=bool)
        ended = np.concatenate([episodes for episodes, _, _ in self.ends])
        success[ended] = np.concatenate([succeeded for _, succeeded, _ in self.ends])
        truncated[ended] = np.concatenate([cut_off for _, _, cut_off in self.ends])
        raw_returns = None
        if any(step[5] is not step[4] for step in self.steps):
            raw = np.concatenate([step[5] for step in self.steps])
            raw_returns = None if np.array_equal(raw, paid) else np.bincount(episodes, raw, n)
        return Rollout(
            observations=as_tensors(_concatenate(self.observations), self.device),
            rows=scatter(torch.as_tensor(rows)),
            actions=scatter(torch.cat([step[2] for step in self.steps])),
            old_logp=scatter(torch.cat([step[3] for step in self.steps])),
            rewards=scatter(upload(torch.as_tensor(rewards), self.device)),
            mask=scatter(torch.ones(len(episodes), dtype=torch.bool)),
            truncated=torch.as_tensor(truncated),
            success=success,
            starts=self.starts,
            group_size=self.group_size,
            log=EpisodeLog(ended, raw_returns, self.infos, self.wrapped),
        )

    def _store(self, obs: Any) -> int:
        self.observations.append(obs)
        row, n = self.n_rows, len(next(iter(obs.values())) if isinstance(obs, dict) else obs)
        self.n_rows += n
        return row

    def _check_alike(self, obs: Any, leaders: Any, local: np.ndarray, group: np.ndarray) -> None:
        found = _difference(obs, leaders, local)
        if found is not None:
            name, i = found
            raise ValueError(
                f"members of the group of start {self.starts[group[i]]} begin with different "
                f"observations (in {name!r}): a group is G rollouts of one problem. Make reset() "
                "depend on its seed or problem_id alone, or pass mixed_start=True to compare "
                "episodes with different starts. (Where sub-environments cannot be restarted one "
                "by one, a wrapper that drifts, such as VecNormalize, needs whole groups at once: "
                f"a multiple of {self.group_size} sub-environments)"
            )


def _difference(obs: Any, leaders: Any, local: np.ndarray) -> tuple[str, int] | None:
    """The first observation, of n, that is not that of its leader: the name of the part that
    differs, and its place; None if all are equal."""
    parts = obs if isinstance(obs, dict) else {"observation": obs}
    firsts = leaders if isinstance(leaders, dict) else {"observation": leaders}
    for name, values in parts.items():
        differs = values != firsts[name][local]
        if differs.any():
            return name, int(differs.nonzero()[0][0])
    return None


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
