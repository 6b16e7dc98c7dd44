"""Log-probabilities of completions, and values of a critic on the same trunk, with their gradient.

Three things keep them cheap. Of a prompt and its group, only what differs is computed more than
once: a group is one row, ``[prompt, completion 1, ..., completion G]``, in which each completion
sees the prompt and itself. Only hidden states that predict a token of a completion meet the head.
And they meet it in chunks that the backward pass computes again, so that logits in float32 exist
for one chunk at a time. (A checkpoint of torch, not a function of its own with the weight as an
argument: so the head may be any module, with a bias or an adapter, and the entropy has its gradient
for free.)

The attention of a shared row of S tokens takes S^2 time, S being prompt and completions together,
where G rows of their own take G (prompt + completion)^2. So sharing pays unless completions are
long beside their prompts and beside the width of the network.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from inspect import signature
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from grpo_bench.lm.completions import CausalLM, Completions, additive_mask, pad_prompts
from grpo_bench.lm.sampling import tempered


class TokenLogp(NamedTuple):
    """Of each token of the completions, 0 beyond their length."""

    logp: Tensor  # (n, T) float32
    entropy: Tensor | None  # (n, T) float32, of the distribution it was drawn from, in nats
    value: Tensor | None  # (n, T) float32, of the state in which it was drawn


def completion_logprobs(
    model: CausalLM,
    prompts: Sequence[Sequence[int]],
    completions: Completions,
    temperature: float,
    *,
    share_prefix: bool = True,
    entropy: bool = False,
    value_head: nn.Module | None = None,
    chunk: int = 128,
) -> TokenLogp:
    """log softmax(logits / temperature) of the tokens of completions, in float32.

    Args:
        prompts: the token ids of each prompt.
        completions: ``completions.group_size`` of each prompt.
        temperature: the one that they were drawn with; after greedy ones, 1.
        share_prefix: a prompt goes through the network once for its group, instead of once for
            each completion. The same values and gradients up to rounding.
        entropy: whether to give it as well.
        value_head: hidden states (m, width) float32 to values (m, 1); with one, values are given as
            well, from the same pass of the network.
        chunk: positions that meet the head at a time: so many x vocabulary numbers in float32,
            about four times.

    Raises:
        ValueError: an argument out of its range, or numbers of prompts and completions that do not
            go together.
    """
    if not temperature > 0:
        raise ValueError(f"temperature={temperature}: expected a positive number")
    hidden = predicting_states(model.get_decoder(), prompts, completions, share_prefix)
    mask = completions.mask
    targets = completions.ids[mask]  # (m,)
    head = model.get_output_embeddings()
    once = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
    parts = [
        once(_chunk, head, states, ids, temperature, entropy)
        for states, ids in zip(hidden.split(chunk), targets.split(chunk), strict=True)
    ]
    columns = [torch.cat(column) for column in zip(*parts, strict=True)]  # (m,) each
    return TokenLogp(
        padded(columns[0], mask),
        padded(columns[1], mask) if entropy else None,
        None if value_head is None else state_values(value_head, hidden, mask),
    )


def state_values(head: nn.Module, hidden: Tensor, mask: Tensor) -> Tensor:
    """Values (n, T) in float32, 0 outside the mask, of hidden states (m, width) of any type."""
    return padded(head(hidden.float()).squeeze(-1), mask)


def padded(column: Tensor, mask: Tensor) -> Tensor:
    """Numbers of the m tokens in the mask (n, T), in order, at their places; 0 elsewhere."""
    return column.new_zeros(mask.shape).masked_scatter(mask, column)


def predicting_states(
    decoder: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    completions: Completions,
    share_prefix: bool = True,
) -> Tensor:
    """Hidden states (m, width) that predict the m tokens of the completions, in order: a token's is
    that of the token before it, of a first token that of the prompt's last.

    Args:
        decoder: a model without its head.
        prompts, completions, share_prefix: see ``completion_logprobs``.

    Raises:
        ValueError: numbers of prompts and completions that do not go together.
    """
    group_size = completions.group_size
    if len(prompts) * group_size != len(completions.ids):
        raise ValueError(
            f"{len(prompts)} prompts and {len(completions.ids)} completions in groups of "
            f"{group_size}: expected {len(prompts) * group_size} completions"
        )
    if not share_prefix:
        prompts = [prompt for prompt in prompts for _ in range(group_size)]
        group_size = 1
    rows = pack(prompts, completions, group_size)
    causal = group_size == 1  # one completion a row, which attention needs no mask for
    hidden = decoder(
        input_ids=rows.ids,
        position_ids=None if causal else rows.position,
        attention_mask=None if causal else group_mask(rows.segment, decoder.dtype),
        use_cache=False,
    ).last_hidden_state
    return hidden.flatten(0, 1).index_select(0, rows.source)


class Packed(NamedTuple):
    """P groups in rows of S tokens: ``[prompt, completion 1, ..., completion G, padding]``, each
    completion without its last token, after which nothing is predicted."""

    ids: Tensor  # (P, S)
    position: Tensor  # (P, S) in the text: every completion goes on where its prompt ends
    segment: Tensor  # (P, S) 0: prompt, 1 to G: that completion, G + 1: padding
    source: Tensor  # (m,) among the P * S places, the one that predicts each token of a completion


def pack(prompts: Sequence[Sequence[int]], completions: Completions, group_size: int) -> Packed:
    """Each prompt with the next ``group_size`` completions in a row; see ``Packed``."""
    ids, mask = completions.ids, completions.mask
    n, longest = ids.shape
    prompt_ids, prompt_length = pad_prompts(prompts, ids.device)  # (P, L), (P,)
    fed = (completions.length - 1).view(-1, group_size)  # (P, G)
    end = torch.cat([prompt_length[:, None], fed], dim=1).cumsum(dim=1)  # (P, 1 + G)
    size = int(end[:, -1].max())
    column = torch.arange(size, device=ids.device)
    segment = (column[:, None] >= end[:, None]).sum(dim=-1)  # (P, S) how many have ended

    # the place among P * S of each completion's token t, were all of them fed: (n, T)
    row = torch.arange(len(end), device=ids.device)
    first = (row[:, None] * size + end[:, :-1]).view(n, 1)
    place = first + torch.arange(longest, device=ids.device)
    source = place - 1
    source[:, 0] = (row * size + prompt_length - 1).repeat_interleave(group_size)

    packed = ids.new_zeros(len(end), size)
    width = prompt_ids.shape[1]
    packed[:, :width] = prompt_ids
    inputs = mask.clone()
    inputs[:, :-1] &= mask[:, 1:]
    inputs[:, -1] = False
    packed.view(-1)[place[inputs]] = ids[inputs]

    start = torch.cat([end.new_zeros(len(end), 1), end], dim=1).gather(1, segment)  # (P, S)
    position = column - start + torch.where(segment > 0, prompt_length[:, None], 0)
    position = torch.where(segment > group_size, 0, position)
    return Packed(packed, position, segment, source[mask])


def group_mask(segment: Tensor, dtype: torch.dtype) -> Tensor:
    """For attention, of segments (P, S) as in ``Packed``: a token sees those before it and itself
    in its own segment and in the prompt. (P, 1, S, S), first the one that looks."""
    seen = (segment[:, :, None] == segment[:, None, :]) | (segment[:, None, :] == 0)
    return additive_mask(~seen.tril()[:, None], dtype)


def _chunk(
    head: nn.Module, hidden: Tensor, ids: Tensor, temperature: float, entropy: bool
) -> tuple[Tensor, ...]:
    """log p of tokens (c,) after hidden states (c, width), and if asked the entropy of p: (c,)."""
    logp = torch.log_softmax(tempered(head(hidden), temperature), dim=-1)
    taken = logp.gather(-1, ids[:, None]).squeeze(-1)
    return (taken, -(logp.exp() * logp).sum(dim=-1)) if entropy else (taken,)


def check_model(model: CausalLM) -> None:
    """That a model is one for which this module and ``generation`` are right.

    Raises:
        ValueError: attention that takes no mask with four dimensions, or does not look at the whole
            text; positions that are a token's place in its row, where several completions stand one
            after the other (ALiBi); or logits that are not what the head says of the hidden states
            (some models scale or cap them).
    """
    attention = model.config._attn_implementation
    if attention not in ("sdpa", "eager"):
        raise ValueError(f"attn_implementation={attention!r}: expected 'sdpa' or 'eager'")
    named = getattr(model.config, "layer_types", None) or ()
    kinds = {*named, *getattr(model.config, "attention_layers", ())}  # the latter GPT-Neo's
    kinds -= {"full_attention", "global"}
    window = getattr(model.config, "sliding_window", None)
    if kinds or window is not None:
        raise ValueError(
            f"layer_types with {sorted(kinds)}, sliding_window={window}: expected full attention "
            "in all layers"
        )
    takes = signature(model.get_decoder().forward).parameters
    if "position_ids" not in takes or getattr(model.config, "alibi", False):
        raise ValueError(
            f"{type(model).__name__}: takes no position_ids, or counts places in a row (ALiBi); "
            "expected a model that is told positions"
        )
    with torch.no_grad():
        ids = torch.zeros(1, 1, dtype=torch.long, device=model.device)
        states = model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
        logits = model(input_ids=ids, use_cache=False).logits
        if not torch.allclose(model.get_output_embeddings()(states), logits):
            raise ValueError(
                f"{type(model).__name__}: its logits are not its head's, but scaled or capped; "
                "expected a model without that"
            )
