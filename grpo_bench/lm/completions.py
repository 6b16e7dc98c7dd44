"""Prompts and their groups of completions: what generation makes and the update takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor


class CausalLM(Protocol):
    """What is used of a causal language model of transformers, or of peft around one."""

    config: Any

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""

    @property
    def device(self) -> torch.device:
        """Of the weights."""

    def __call__(self, *, input_ids: Tensor, use_cache: bool) -> Any:
        """The whole model: token ids to an output that has ``logits``."""

    def get_decoder(self) -> Any:
        """The model without its head: token ids to hidden states."""

    def get_output_embeddings(self) -> Any:
        """The head: hidden states to logits."""


@dataclass(frozen=True)
class Completions:
    """n = prompts * group_size completions in group order, padded to T tokens: row i belongs to
    prompt i // group_size. What counts is told by ``length`` alone, never by the value of an id."""

    ids: Tensor  # (n, T) long; 0 beyond the length
    length: Tensor  # (n,) long, at least 1; an EOS is the last token
    logp: Tensor  # (n, T) float32, of each token in the distribution it was drawn from; 0 beyond
    truncated: Tensor  # (n,) bool, no EOS came
    group_size: int

    @property
    def mask(self) -> Tensor:
        """The tokens that were drawn, (n, T) bool."""
        return torch.arange(self.ids.shape[1], device=self.ids.device) < self.length[:, None]

    def of_groups(self, groups: Sequence[int]) -> Completions:
        """The completions of some prompts, in that order, still padded to T."""
        rows = rows_of(groups, self.group_size).to(self.ids.device)
        parts = (self.ids[rows], self.length[rows], self.logp[rows], self.truncated[rows])
        return Completions(*parts, self.group_size)


def rows_of(groups: Sequence[int], group_size: int) -> Tensor:
    """The rows of some groups, in that order, (groups * group_size,)."""
    first = torch.as_tensor(groups, dtype=torch.long)[:, None] * group_size
    return (first + torch.arange(group_size)).flatten()


def joined(first: Completions, second: Completions) -> Completions:
    """Both, one after the other, padded to the longer; of one group size."""
    width = max(first.ids.shape[1], second.ids.shape[1])

    def both(name: str) -> Tensor:
        rows = [getattr(part, name) for part in (first, second)]
        if rows[0].dim() == 2:
            rows = [torch.nn.functional.pad(row, (0, width - row.shape[1])) for row in rows]
        return torch.cat(rows)

    group_size = first.group_size
    return Completions(both("ids"), both("length"), both("logp"), both("truncated"), group_size)


def pad_prompts(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Prompts as ids (P, L), padded on the right with 0, and their lengths (P,).

    On the right, since a causal network gives every real token the same hidden state with or
    without what stands after it: no mask is needed.

    Raises:
        ValueError: no prompts, or one without a token.
    """
    if not prompts:
        raise ValueError("prompts is empty: expected at least one list of token ids")
    lengths = [len(prompt) for prompt in prompts]
    if 0 in lengths:
        raise ValueError(f"prompt {lengths.index(0)} has no tokens: expected at least one")
    width = max(lengths)
    rows = [[*prompt, *[0] * (width - len(prompt))] for prompt in prompts]
    return torch.tensor(rows, device=device), torch.tensor(lengths, device=device)


def additive_mask(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """What attention adds to its scores: 0, or the lowest number where ``hidden``. Of the model's
    own dtype, which eager attention and every kernel of sdpa take as it is."""
    zeros = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
    return zeros.masked_fill_(hidden, torch.finfo(dtype).min)


def group_tokens(prompts: Sequence[Sequence[int]], completions: Completions) -> list[int]:
    """Tokens that each group sends through the network when it shares its prompt: the prompt once,
    and each completion without its last token, after which nothing is predicted."""
    fed = (completions.length - 1).view(-1, completions.group_size).sum(dim=1).tolist()
    return [len(prompt) + tokens for prompt, tokens in zip(prompts, fed, strict=True)]


def micro_batches(tokens: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Groups packed into micro-batches of at most ``max_tokens``, padding included: k groups cost k
    times the longest of them.

    Groups of like length stand together, the longest come first: little is padding, and what does
    not fit into memory shows in the first micro-batch.

    Args:
        tokens: of each group; see ``group_tokens``.

    Returns:
        The numbers of the groups in each micro-batch; every group is in one.

    Raises:
        ValueError: a group alone has more than ``max_tokens``.
    """
    batches: list[list[int]] = []
    for group in sorted(range(len(tokens)), key=lambda g: -tokens[g]):
        if tokens[group] > max_tokens:
            raise ValueError(
                f"group {group} has {tokens[group]} tokens, max_tokens={max_tokens}: expected at "
                f"least {tokens[group]}, or a smaller group_size or length limit"
            )
        if batches and (len(batches[-1]) + 1) * tokens[batches[-1][0]] <= max_tokens:
            batches[-1].append(group)
        else:
            batches.append([group])
    return batches
