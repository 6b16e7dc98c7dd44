"""Cut a rollout into minibatches of whole groups, with every weight of the loss fixed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_bench.grpo.objectives import aggregation_weights
from grpo_bench.grpo.rollout import Rollout, TensorObs, take


@dataclass
class Minibatch:
    """n episodes padded to T actions, of which m are real; the network sees u observations."""

    observations: TensorObs  # (u, ...)
    rows: Tensor  # (m,) observation of each action
    actions: Tensor  # (m, *action shape)
    old_logp: Tensor  # (n, T)
    advantages: Tensor  # (n,), or (n, T) with process supervision
    mask: Tensor  # (n, T)
    weights: Tensor  # (n, T) aggregation weights of this optimiser step
    ref_params: Tensor | None  # (u, n_params)

    @property
    def token_weights(self) -> Tensor:
        """The weights of the real actions, (m,)."""
        return self.weights[self.mask]

    def padded(self, values: Tensor) -> Tensor:
        """Values of the real actions (m,) at their places in (n, T), 0 elsewhere."""
        if values.numel() == self.mask.numel():
            return values.view(self.mask.shape)
        return values.new_zeros(self.mask.shape).masked_scatter(self.mask, values)


def minibatches(
    rollout: Rollout,
    advantages: Tensor,
    ref_params: Tensor | None,
    groups_per_batch: int,
    aggregation: str,
    max_len: int | None,
) -> Iterator[Minibatch]:
    """One pass over the rollout in random order; a minibatch without one real action is left out.

    Args:
        advantages: (n_problems, group_size), or (n_problems, group_size, T).
        ref_params: (M, n_params) of each observation of the rollout, or None.
        groups_per_batch: divides n_problems.
    """
    n_problems, group_size = advantages.shape[:2]
    device = advantages.device
    whole = groups_per_batch == n_problems
    order = torch.arange(n_problems) if whole else torch.randperm(n_problems)
    members = torch.arange(group_size, device=device)
    episodes = (order.to(device)[:, None] * group_size + members).flatten()  # (N,)
    # Put in order once for the whole pass: the minibatches are views of it.
    mask = rollout.mask[episodes]  # (N, T)
    masks = mask.view(n_problems // groups_per_batch, -1, mask.shape[1])  # (batches, n, T)
    counts = masks.sum(dim=(1, 2)).tolist()  # m of each minibatch
    n = masks.shape[1]
    parts = zip(
        rollout.rows[episodes][mask].split(counts),
        rollout.actions[episodes][mask].split(counts),
        rollout.old_logp[episodes].split(n),
        advantages.flatten(0, 1)[episodes].split(n),
        masks,
        aggregation_weights(masks, aggregation, max_len),
        strict=True,
    )
    for rows, actions, old_logp, advantage, valid, weights in parts:
        if not len(rows):  # all its rollouts were dropped
            continue
        observations, params = rollout.observations, ref_params
        if not whole:  # only the observations that these episodes met, each once
            used, rows = torch.unique(rows, return_inverse=True)
            observations = take(observations, used)
            params = None if params is None else params[used]
        yield Minibatch(
            observations=observations,
            rows=rows,
            actions=actions,
            old_logp=old_logp,
            advantages=advantage,
            mask=valid,
            weights=weights,
            ref_params=params,
        )
