"""Critics of language models, for PPO.

    separate   its own network, a copy of the policy's without the output head, fully trained
    shared     the policy's network, which then also learns from the value loss
    lora       its own adapters on a frozen base

Each has a value head, one linear layer in float32. The head starts at 0, so an untrained critic
adds no noise to the advantages. If the base is already in memory, under a policy with LoRA or as
the frozen reference, the adapters share those weights; policy and reference do not use the
adapters.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init
from transformers import PreTrainedModel

from grpo_bench.grpo.choices import check_choice
from grpo_bench.lm.completions import Completions
from grpo_bench.lm.logprobs import predicting_states, state_values
from grpo_bench.lm.lora import Lora, Reference, adapters, add_lora, base_of

KINDS = ("separate", "shared", "lora")


class Critic:
    """A network and its value head.

    Attributes:
        trunk: token ids to hidden states.
        head: hidden states (..., width) to values (..., 1), in float32.
        lender: the model that owns the shared weights of the trunk, or None.
    """

    def __init__(self, trunk: PreTrainedModel, head: nn.Linear, lender: nn.Module | None) -> None:
        self.trunk, self.head, self.lender = trunk, head, lender

    def values(self, prompts: Sequence[Sequence[int]], completions: Completions) -> Tensor:
        """V of the state before each token: (n, T) float32, with gradient, 0 beyond the length."""
        hidden = predicting_states(self.trunk, prompts, completions)
        return state_values(self.head, hidden, completions.mask)

    def own_parameters(self) -> list[nn.Parameter]:
        """The parameters that only the critic needs, frozen or not."""
        lent = set() if self.lender is None else {id(p) for p in self.lender.parameters()}
        modules = (self.trunk, self.head)
        return [p for module in modules for p in module.parameters() if id(p) not in lent]

    def parameters(self) -> list[nn.Parameter]:
        """Its own parameters that are trained; never the policy's."""
        return [p for p in self.own_parameters() if p.requires_grad]


def make_critic(
    kind: str, policy: PreTrainedModel, reference: Reference | None, lora: Lora, seed: int
) -> Critic:
    """The critic of an untrained policy. It has the same gradient checkpointing.

    Args:
        kind: a name in ``KINDS``.
        reference: if there is one, its weights may be the base of a LoRA critic.
        lora: the adapters of a ``lora`` critic.
        seed: of its adapters.

    Raises:
        ValueError: unknown kind, or invalid adapters; see ``add_lora``.
    """
    check_choice("critic", kind, KINDS)
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
    """Linear(width, 1) of zeros in float32, for the hidden states of the policy."""
    width = policy.get_output_embeddings().weight.shape[1]
    head = skip_init(nn.Linear, width, 1, device=policy.device, dtype=torch.float32)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head
