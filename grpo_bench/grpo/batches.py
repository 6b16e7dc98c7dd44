"""Cut a rollout into minibatches of whole groups, with every weight of the loss fixed.

The host knows the place of each action (``Rollout.mask``, ``Rollout.rows``). So it does all
counting, sorting and searching, for a whole pass at once, and sends plain indices. It never waits
for the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_bench.grpo.objectives import Aggregation, aggregation_weights
from grpo_bench.grpo.rollout import Rollout, TensorObs, take, upload


@dataclass
class Minibatch:
    """n episodes padded to T actions, of which m are real; the network sees u observations."""

    observations: TensorObs  # (u, ...)
    rows: Tensor  # (m,) observation of each action
    actions: Tensor  # (m, *action shape)
    places: Tensor  # (m,) place of each action in n * T
    old_logp: Tensor  # (n, T)
    advantages: Tensor  # (n,), or (n, T) with process supervision
    mask: Tensor  # (n, T)
    weights: Tensor  # (n, T) aggregation weights of this optimiser step
    ref_params: Tensor | None  # (u, n_params)

    def real(self, values: Tensor) -> Tensor:
        """The values (n, T) of the real actions, (m,)."""
        flat = values.flatten()
        return flat if len(flat) == len(self.places) else flat[self.places]

    def padded(self, values: Tensor) -> Tensor:
        """Values of the real actions (m,) at their places in (n, T), 0 elsewhere."""
        if values.numel() == self.mask.numel():
            return values.view(self.mask.shape)
        flat = values.new_zeros(self.mask.numel()).index_copy(0, self.places, values)
        return flat.view(self.mask.shape)


def minibatches(
    rollout: Rollout,
    advantages: Tensor,
    ref_params: Tensor | None,
    groups_per_batch: int,
    aggregation: str | Aggregation,
    max_len: int | None,
) -> Iterator[Minibatch]:
    """One pass over the rollout in random order. Minibatches without a real action are skipped.

    Args:
        advantages: (n_problems, group_size), or (n_problems, group_size, T).
        ref_params: (M, n_params) of each observation of the rollout, or None.
        groups_per_batch: divides n_problems.
    """
    n_problems, group_size = advantages.shape[:2]
    device, length = advantages.device, rollout.mask.shape[1]
    whole = groups_per_batch == n_problems
    order = torch.arange(n_problems) if whole else torch.randperm(n_problems)
    episodes = (order[:, None] * group_size + torch.arange(group_size)).flatten()  # (N,)

    # on the host, for the whole pass
    mask = rollout.mask[episodes]  # (N, T)
    masks = mask.view(n_problems // groups_per_batch, -1, length)  # (batches, n, T)
    counts = masks.sum(dim=(1, 2))  # m of each minibatch
    places = masks.flatten(1).nonzero()[:, 1]
    actions = (episodes[:, None] * length + torch.arange(length))[mask]
    rows, used, n_used = rollout.rows[episodes][mask], torch.arange(0), counts * 0
    if not whole:  # only the observations of a minibatch, each once
        rows, used, n_used = renumbered(rows, counts)

    # on the device: the minibatches are views of it
    episodes, masks = upload(episodes, device), upload(masks, device)
    n, sizes = masks.shape[1], counts.tolist()
    parts = zip(
        upload(rows, device).split(sizes),
        upload(used, device).split(n_used.tolist()),
        upload(actions, device).split(sizes),
        upload(places, device).split(sizes),
        rollout.old_logp[episodes].split(n),
        advantages.flatten(0, 1)[episodes].split(n),
        masks,
        aggregation_weights(masks, aggregation, max_len),
        strict=True,
    )
    taken = rollout.actions.flatten(0, 1)  # (N * T, *action shape)
    for row, seen, action, place, old_logp, advantage, valid, weights in parts:
        if not len(row):  # all its rollouts were dropped
            continue
        yield Minibatch(
            observations=rollout.observations if whole else take(rollout.observations, seen),
            rows=row,
            actions=taken[action],
            places=place,
            old_logp=old_logp,
            advantages=advantage,
            mask=valid,
            weights=weights,
            ref_params=ref_params if whole or ref_params is None else ref_params[seen],
        )


def renumbered(rows: Tensor, counts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The observations of each minibatch, each once.

    Args:
        rows: (m,) observation of each action, one minibatch after another.
        counts: (batches,) actions of each minibatch.

    Returns:
        The number of each action's observation within its minibatch, (m,); the observations, (u,),
        one minibatch after another; how many each minibatch has, (batches,).
    """
    batch = torch.arange(len(counts)).repeat_interleave(counts)  # (m,)
    n_rows = int(rows.amax()) + 1 if len(rows) else 1
    pairs, place = torch.unique(batch * n_rows + rows, return_inverse=True)
    n_used = torch.bincount(pairs // n_rows, minlength=len(counts))
    first = n_used.cumsum(dim=0) - n_used
    return place - first[batch], pairs % n_rows, n_used
