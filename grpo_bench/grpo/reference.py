"""The reference policy, and the KL to it in a rollout and in a minibatch."""

from __future__ import annotations

import copy

import torch
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.utils import polyak_update
from torch import Tensor

from grpo_bench.grpo.batches import Minibatch
from grpo_bench.grpo.kl import FORMS, exact, k1, k3, sample_term
from grpo_bench.grpo.policies import ActorPolicy
from grpo_bench.grpo.rollout import Rollout, upload
from grpo_bench.grpo.settings import Settings
from grpo_bench.grpo.update_log import UpdateLog


def frozen_copy(policy: ActorPolicy) -> ActorPolicy:
    """A copy of the policy without gradients, optimiser and dropout."""
    reference = copy.deepcopy(policy).requires_grad_(False)
    reference.optimizer = None  # type: ignore[assignment]
    reference.set_training_mode(False)
    return reference


@torch.no_grad()
def follow(reference: ActorPolicy, policy: ActorPolicy, tau: float) -> None:
    """reference <- (1 - tau) reference + tau policy, as for SB3's target networks.

    With ``tau`` 1 it becomes the policy; below 1 it is a moving average of the policies at each
    call. Buffers are copied, since they may be whole numbers.
    """
    polyak_update(policy.parameters(), reference.parameters(), tau)
    for ours, theirs in zip(reference.buffers(), policy.buffers(), strict=True):
        ours.copy_(theirs)


@torch.no_grad()
def reference_params(reference: ActorPolicy | None, rollout: Rollout) -> Tensor | None:
    """The reference's distribution of each observation of a rollout, (M, n_params), or None."""
    return None if reference is None else reference(rollout.observations)


def kl_of_rollouts(
    form: str, reference: ActorPolicy, ref_params: Tensor, rollout: Rollout
) -> Tensor:
    """The sum of a form over each rollout as it was sampled, (n_problems, group_size)."""
    device = ref_params.device
    ref = reference.distribution(ref_params, upload(rollout.rows[rollout.mask], device))
    mask = upload(rollout.mask, device)
    ref_logp = torch.zeros_like(rollout.old_logp)
    ref_logp[mask] = ref.log_prob(rollout.actions[mask])
    terms = sample_term(form, rollout.old_logp, ref_logp, rollout.old_logp, mask)
    return terms.sum(dim=1).view(-1, rollout.group_size)


def kl_of_actions(
    reference: ActorPolicy,
    batch: Minibatch,
    distribution: Distribution,
    logp: Tensor,
    settings: Settings,
    log: UpdateLog,
) -> Tensor | None:
    """The KL term of each action, (n, T), or (m,) for the exact form; None if the loss has none.
    Logs k1, k3 and the exact KL in any case.

    Args:
        distribution: of the policy, for the m real actions of the minibatch.
        logp: (n, T) of those actions, 0 elsewhere.
    """
    assert batch.ref_params is not None
    in_loss, form = settings.kl_in("loss"), FORMS[settings.kl]
    ref = reference.distribution(batch.ref_params, batch.rows)
    ref_logp = batch.padded(ref.log_prob(batch.actions))
    log.add("kl_ref_k1", batch.real(k1(logp.detach(), ref_logp)).mean())
    log.add("kl_ref_k3", batch.real(k3(logp.detach(), ref_logp)).mean())
    with torch.set_grad_enabled(in_loss and form.term is None):
        divergence = exact(distribution, ref)  # (m,)
    log.add("kl_ref", divergence.mean())
    if not in_loss:
        return None
    if form.term is None:
        return divergence
    return sample_term(settings.kl, logp, ref_logp, batch.old_logp, batch.mask)
