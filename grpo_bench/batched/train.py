"""S seeds of GRPO learning together. ``update`` is ``GRPO.train`` for all of them, top to bottom.

Nothing of one seed touches another: the sum of their losses has for the parameters of each the
gradient of its own, Adam works element by element, and norms are clipped for each. So every seed
takes the steps of its own run, but for the rounding of batched products.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from stable_baselines3.common.utils import polyak_update, update_learning_rate
from torch import Tensor

from grpo_bench.batched.log import StackedLog, rollout_metrics
from grpo_bench.batched.policy import clip_norm_of_each, stacked
from grpo_bench.batched.rollout import (
    StackedMinibatch,
    StackedRollout,
    collect,
    log_prob_of,
    policy_of,
)
from grpo_bench.grpo.advantages import find_baseline, return_penalty
from grpo_bench.grpo.algorithm import GRPO
from grpo_bench.grpo.distributions import LogSoftmaxDistribution
from grpo_bench.grpo.doctor import ROUNDING
from grpo_bench.grpo.kl import FORMS, exact, k1, k3, sample_term
from grpo_bench.grpo.objectives import Clip, PolicyLoss, aggregation_weights, policy_loss

Metrics = dict[str, list[float]]  # one value for each seed


class Company:
    """Models of one configuration that learn together, each as it would alone.

    Args:
        makers: of each seed's model on its environment, as its own run makes it; equal but for the
            seed. From there on the seed has the state of torch's global generator to itself.
        total: transitions that each seed learns from, at least.

    Attributes:
        models: keep what is a seed's own: its environment's stream, and the doctor's findings.
        generators: of actions and minibatches, one for each seed.
        iteration: how many there have been.
        num_timesteps, n_updates: transitions and gradient steps of each seed so far.
    """

    def __init__(self, makers: Sequence[Callable[[], GRPO]], total: int) -> None:
        self.models: list[GRPO] = []
        self.generators: list[torch.Generator] = []
        self.total = total
        for make in makers:
            self.models.append(make())
            self.generators.append(torch.Generator())
            self.generators[-1].set_state(torch.get_rng_state())
        for model in self.models:
            model._setup_learn(total)
            model._before_training()
        self.settings = self.models[0]
        self.network = stacked([model.policy for model in self.models])
        self.reference = None if self.settings.kl == "none" else self.network.frozen_copy()
        policy = self.settings.policy
        self.optimizer = policy.optimizer_class(
            self.network.parameters,
            lr=self.settings.lr_schedule(1.0),  # type: ignore[call-arg]
            **policy.optimizer_kwargs,
        )
        self.iteration = self.num_timesteps = self.n_updates = 0
        self.places = torch.arange(len(makers))[:, None]  # (S, 1), beside an index of problems

    def collect(self) -> StackedRollout:
        """Play this iteration's groups."""
        rollout = collect(self.models, self.network, self.generators)
        self.num_timesteps += rollout.returns[0].numel()
        for model in self.models:
            model.num_timesteps = self.num_timesteps
        return rollout

    # -- the update -------------------------------------------------------------------------------

    def update(self, rollout: StackedRollout) -> Metrics:
        """``n_epochs`` passes over the rollout in minibatches of whole groups; what to log."""
        s, parameters = self.settings, self.network.parameters
        s._update_current_progress_remaining(self.num_timesteps, self.total)
        rate = s.lr_schedule(s._current_progress_remaining)
        update_learning_rate(self.optimizer, rate)
        clip = s._clip()
        reference_logits = self._reference_logits(rollout)  # (S, P, n_actions), None without KL
        advantages = self._advantages(rollout, reference_logits)  # (S, P, G)
        loss_of_each = torch.func.vmap(partial(_policy_loss, s, clip))
        log = StackedLog()

        for _ in range(s.n_epochs):
            for batch in self._minibatches(rollout, advantages, reference_logits):
                distribution = policy_of(self.network(batch.observations))
                logp = log_prob_of(distribution, batch.actions)  # (S, k, G)
                mask = as_tokens(torch.ones_like(logp, dtype=torch.bool))  # (S, n, 1)
                weights = aggregation_weights(mask, s.aggregation, s.max_len)
                surrogate = loss_of_each(
                    as_tokens(logp),
                    as_tokens(batch.old_logp),
                    as_tokens(batch.advantages),
                    mask,
                    weights,
                )
                loss = surrogate.loss  # (S,)
                weights = weights.view_as(logp)
                with torch.set_grad_enabled(s.ent_coef > 0):
                    entropy = distribution.entropy().view(*logp.shape[:2], 1)  # of each state
                if s.ent_coef:
                    loss = loss - s.ent_coef * (weights * entropy).sum(dim=(1, 2))
                if batch.ref_logits is not None:
                    kl = self._kl_term(distribution, batch.ref_logits, batch, logp, log)
                    if s.kl_coef:
                        loss = loss + s.kl_coef * (weights * kl).sum(dim=(1, 2))

                for parameter in parameters:  # optimizer.zero_grad(), less its hooks
                    parameter.grad = None
                loss.sum().backward()
                log.add("grad_norm", clip_norm_of_each(parameters, s.max_grad_norm))
                self.optimizer.step()
                self.n_updates += 1

                log.add("loss", loss)
                log.add("policy_gradient_loss", surrogate.loss)
                log.add("clip_fraction", surrogate.clip_fraction)
                log.add("entropy_loss", -entropy.mean(dim=(1, 2)))
                log.add_ratio(logp, batch.old_logp)

        if self.iteration == 0 or log.log_ratios[0].abs().max() > ROUNDING:  # else all are well
            for seed, model in enumerate(self.models):
                model.doctor.examine_update(log.of(seed), first=self.iteration == 0)
        self.iteration += 1
        if s.ref_update_interval and self.iteration % s.ref_update_interval == 0:
            assert self.reference is not None
            polyak_update(parameters, self.reference.parameters, s.ref_tau)
        alike = {"learning_rate": rate, "n_updates": self.n_updates, "clip_range": clip.low}
        if s.clip_range_high is not None:
            alike["clip_range_high"] = clip.high
        means = {f"train/{name}": values for name, values in log.means().items()}
        means |= {f"train/{name}": [value] * len(self.models) for name, value in alike.items()}
        return rollout_metrics(rollout) | means

    # -- the pieces of an update ------------------------------------------------------------------

    def _advantages(self, rollout: StackedRollout, reference_logits: Tensor | None) -> Tensor:
        """Of each rollout, (S, P, G). With one action an episode, process supervision is outcome
        supervision."""
        s = self.settings
        advantages = torch.func.vmap(partial(_baseline, s))(rollout.returns)  # float64
        success = rollout.success.mean(axis=(1, 2)).tolist()
        for model, mine, rate in zip(self.models, advantages.unbind(), success, strict=True):
            model.doctor.examine_advantages(mine, rate)
        if reference_logits is not None and FORMS[s.kl].place == "return":
            old_logp = rollout.old_logp
            ref_logp = log_prob_of(policy_of(reference_logits), rollout.actions)
            mask = torch.ones_like(old_logp, dtype=torch.bool)
            divergences = sample_term(s.kl, old_logp, ref_logp, old_logp, mask)
            penalty = return_penalty(divergences.flatten(0, 1))  # (S * P, G)
            advantages = advantages + s.kl_coef * penalty.view_as(advantages)
        return advantages.to(rollout.old_logp.dtype)

    @torch.no_grad()
    def _reference_logits(self, rollout: StackedRollout) -> Tensor | None:
        return None if self.reference is None else self.reference(rollout.observations)

    def _minibatches(
        self, rollout: StackedRollout, advantages: Tensor, reference_logits: Tensor | None
    ) -> Iterator[StackedMinibatch]:
        """One pass over the groups of each seed, in its own random order."""
        s, n_problems = self.settings, rollout.actions.shape[1]
        k = (s.batch_size or n_problems * s.group_size) // s.group_size
        parts = [rollout.observations, rollout.actions, rollout.old_logp, advantages]
        if reference_logits is not None:
            parts.append(reference_logits)
        if k < n_problems:  # a pass in one piece draws no order
            order = torch.stack([torch.randperm(n_problems, generator=g) for g in self.generators])
            parts = [part[self.places, order] for part in parts]
        for pieces in zip(*(part.split(k, dim=1) for part in parts), strict=True):
            yield StackedMinibatch(*pieces)

    def _kl_term(
        self,
        distribution: LogSoftmaxDistribution,
        ref_logits: Tensor,
        batch: StackedMinibatch,
        logp: Tensor,
        log: StackedLog,
    ) -> Tensor:
        """The KL of each action in the loss, (S, k, G) or, where its members share it, (S, k, 1).
        Whatever is trained on, k1, k3 and the exact KL are logged, as ``kl_loss`` does."""
        form = self.settings.kl
        reference = policy_of(ref_logits)
        ref_logp = log_prob_of(reference, batch.actions)
        log.add("kl_ref_k1", k1(logp.detach(), ref_logp).mean(dim=(1, 2)))
        log.add("kl_ref_k3", k3(logp.detach(), ref_logp).mean(dim=(1, 2)))
        with torch.set_grad_enabled(form == "exact"):
            divergence = exact(distribution, reference).view(*logp.shape[:2], 1)
        log.add("kl_ref", divergence.mean(dim=(1, 2)))
        if FORMS[form].place == "return":
            return torch.zeros_like(divergence)
        if form == "exact":
            return divergence
        mask = torch.ones_like(logp, dtype=torch.bool)
        return sample_term(form, logp, ref_logp, batch.old_logp, mask)

    # -- single seeds -----------------------------------------------------------------------------

    @torch.no_grad()
    def give(self, seed: int) -> None:
        """Put what a seed, by its place, has learned into its own model: parameters, their
        gradients and the optimiser's state, the reference."""
        model = self.models[seed]
        self.network.give(seed, model.policy)
        if self.reference is not None:
            assert model.reference is not None
            self.reference.give(seed, model.reference)
        for mine, its in zip(self.network.parameters, model.policy.parameters(), strict=True):
            if mine.grad is not None:
                its.grad = mine.grad[seed].t().contiguous()
                model.policy.optimizer.state[its] = {
                    name: value[seed].t().contiguous() if value.dim() else value.clone()
                    for name, value in self.optimizer.state[mine].items()
                }
        model._n_updates, model._n_iterations = self.n_updates, self.iteration

    @torch.no_grad()
    def silence(self, seed: int) -> None:
        """Take a seed whose numbers are no longer finite out of the way: its parameters become
        zero, so that its actions can be drawn on; nobody looks at them."""
        for parameter in self.network.parameters:
            parameter[seed] = 0.0
            for value in self.optimizer.state[parameter].values():
                if value.dim():  # the number of steps has none
                    value[seed] = 0.0


def as_tokens(values: Tensor) -> Tensor:
    """Of each action (S, k, G), as (S, n, 1): n episodes of one token."""
    return values.flatten(1)[..., None]


def _policy_loss(
    s: GRPO,
    clip: Clip,
    logp: Tensor,
    old_logp: Tensor,
    advantages: Tensor,
    mask: Tensor,
    weights: Tensor,
) -> PolicyLoss:
    """``policy_loss`` under one seed's settings."""
    return policy_loss(
        logp,
        old_logp,
        advantages,
        mask,
        weights=weights,
        ratio=s.ratio,
        surrogate=s.surrogate,
        clip=clip,
    )


def _baseline(s: GRPO, returns: Tensor) -> Tensor:
    """Advantages of one seed's returns (P, G): ``group_advantages`` without its checks, which look
    at values."""
    valid = torch.ones_like(returns, dtype=torch.bool)
    return find_baseline(s.baseline)(returns, valid, s.ddof, s.eps)
