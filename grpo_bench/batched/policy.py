"""The networks of S seeds as one: every parameter has the seeds in front, (S, ...)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from grpo_bench.grpo.policies import ActorPolicy
from grpo_bench.networks import MLPBody


class StackedMLP:
    """The actors of S seeds, of which each sees its own observations: one batched matrix product a
    layer instead of S small ones.

    Args:
        modules: the layers of any one of the actors, in the order in which it applies them.
        parameters: of its ``nn.Linear`` layers, weight (S, in, out) and bias (S, out) by turns: the
            transposed weights of torch, so that gradients come out as the parameters lie.
    """

    def __init__(self, modules: Sequence[nn.Module], parameters: list[Tensor]) -> None:
        self.modules, self.parameters = modules, parameters

    def __call__(self, observations: Tensor) -> Tensor:
        """Logits of each seed's observations: (S, n, d) -> (S, n, n_actions)."""
        x, parameters = observations, iter(self.parameters)
        for module in self.modules:
            if isinstance(module, nn.Linear):
                weight, bias = next(parameters), next(parameters)
                x = torch.baddbmm(bias[:, None], x, weight)
            else:
                x = module(x)
        return x

    def frozen_copy(self) -> StackedMLP:
        """The networks as they are now, without gradients."""
        return StackedMLP(self.modules, [p.detach().clone() for p in self.parameters])

    @torch.no_grad()
    def give(self, seed: int, policy: nn.Module) -> None:
        """Copy the parameters of one seed, by its place, into its own policy."""
        for mine, its in zip(self.parameters, policy.parameters(), strict=True):
            its.copy_(mine[seed].t())


def stacked(policies: Sequence[ActorPolicy]) -> StackedMLP:
    """The policies, which must be alike but for their parameters, as one.

    Raises:
        ValueError: a body other than ``MLPBody``, whose layers would not all have a batched form.
    """
    first = policies[0]
    body = first.features_extractor
    if not isinstance(body, MLPBody):
        raise ValueError(f"a body of {type(body).__name__}: expected MLPBody")
    # observations are flat already: (S, n, d) must not be flattened by nn.Flatten
    modules = [m for m in body.layers if not isinstance(m, nn.Flatten)]
    modules += [*first.mlp, first.action_net]
    together = zip(*(policy.parameters() for policy in policies), strict=True)
    parameters = [torch.stack([p.detach().t() for p in each]).requires_grad_() for each in together]
    return StackedMLP(modules, parameters)


def clip_norm_of_each(parameters: Sequence[Tensor], max_norm: float) -> Tensor:
    """``torch.nn.utils.clip_grad_norm_`` of each seed by itself; the norms before, (S,)."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    parts = [torch.linalg.vector_norm(gradient.flatten(1), dim=1) for gradient in gradients]
    norms = torch.linalg.vector_norm(torch.stack(parts), dim=0)
    scale = (max_norm / (norms + 1e-6)).clamp(max=1.0)  # torch's
    for gradient in gradients:
        gradient.mul_(scale.view(-1, *[1] * (gradient.dim() - 1)))
    return norms
