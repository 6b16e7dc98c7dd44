"""Critics of language models: what PPO has and GRPO lacks.

    separate   a network of its own, a copy of the policy's without its output head, trained whole
    shared     the policy's network, which learns from the value loss as well
    lora       adapters of its own on a frozen base

Each has a value head, one linear layer in float32. It is 0 at first: a critic that knows nothing
says 0, instead of noise that would go into the advantages. Where the base is in memory already, as
under a policy with LoRA or as the frozen reference, the adapters stand on those very weights;
policy and reference know nothing of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init
from transformers import PreTrainedModel

from grpo_bench.lm.completions import Completions
from grpo_bench.lm.logprobs import predicting_states, state_values
from grpo_bench.lm.lora import Lora, Reference, adapters, add_lora, base_of

KINDS = ("separate", "shared", "lora")


class Critic:
    """A network and its value head.

    Attributes:
        trunk: token ids to hidden states.
        head: hidden states (..., width) to values (..., 1), in float32.
        lender: the model whose weights are in the trunk and are not the critic's, or None.
    """

    def __init__(self, trunk: PreTrainedModel, head: nn.Linear, lender: nn.Module | None) -> None:
        self.trunk, self.head, self.lender = trunk, head, lender

    def values(self, prompts: Sequence[Sequence[int]], completions: Completions) -> Tensor:
        """V of the state in which each token was drawn, before it: (n, T) float32, with gradient, 0
        beyond the length."""
        hidden = predicting_states(self.trunk, prompts, completions)
        return state_values(self.head, hidden, completions.mask)

    def own_parameters(self) -> list[nn.Parameter]:
        """What is in memory for the critic alone, frozen or not."""
        lent = set() if self.lender is None else {id(p) for p in self.lender.parameters()}
        modules = (self.trunk, self.head)
        return [p for module in modules for p in module.parameters() if id(p) not in lent]

    def parameters(self) -> list[nn.Parameter]:
        """Those of its own that are trained; never the policy's."""
        return [p for p in self.own_parameters() if p.requires_grad]


def make_critic(
    kind: str, policy: PreTrainedModel, reference: Reference | None, lora: Lora, seed: int
) -> Critic:
    """The critic of a policy that has not been trained yet, whose gradient checkpointing it shares.

    Args:
        kind: a name in ``KINDS``.
        reference: where there is one, its weights are the base of a LoRA critic.
        lora: the critic's adapters, if it is ``lora``.
        seed: of its adapters.

    Raises:
        ValueError: unknown kind, or adapters that make no sense; see ``add_lora``.
    """
    if kind not in KINDS:
        raise ValueError(f"critic={kind!r}: expected one of {', '.join(KINDS)}")
    head = value_head(policy)
    if kind == "shared":
        return Critic(policy.get_decoder(), head, policy)
    if kind == "separate":
        return Critic(base_of(policy.get_decoder(), share=False).requires_grad_(True), head, None)
    lender = policy if adapters(policy) else reference.frozen if reference is not None else None
    if lender is None:
        trunk = base_of(policy.get_decoder(), share=False)
    else:
        trunk = base_of(lender.get_decoder(), share=True)
    add_lora(trunk, lora, seed)
    return Critic(trunk, head, lender)


def value_head(policy: PreTrainedModel) -> nn.Linear:
    """Linear(width, 1) of zeros in float32, for hidden states that the policy's own head takes."""
    width = policy.get_output_embeddings().weight.shape[1]
    head = skip_init(nn.Linear, width, 1, device=policy.device, dtype=torch.float32)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head
