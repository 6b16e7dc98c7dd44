"""Generation made for groups: a prompt goes through the network once, whatever the group's size,
and a completion that has ended costs nothing more."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from grpo_bench.lm.completions import CausalLM, Completions, additive_mask, pad_prompts
from grpo_bench.lm.sampling import draw


@torch.no_grad()
def generate(
    model: CausalLM,
    prompts: Sequence[Sequence[int]],
    group_size: int,
    max_new_tokens: int,
    temperature: float,
    eos_ids: Sequence[int],
    generator: torch.Generator,
) -> Completions:
    """``group_size`` completions of each prompt.

    Token t of completion i is decided by number (t, i) of a table of uniform numbers that is drawn
    at the beginning. So a completion does not depend on when others end, and with a larger
    ``max_new_tokens`` it begins as before.

    Args:
        prompts: token ids of each prompt; their lengths may differ.
        max_new_tokens: at most so many tokens, with the EOS.
        temperature: of the distribution that is drawn from, and of ``logp``; 0 is greedy.
        eos_ids: tokens that end a completion, and stay in it; none: all go on to the limit.
        generator: the only source of chance; best on the CPU, so that every device draws the same.

    Raises:
        ValueError: an argument out of its range, or logits that are not finite.
    """
    _check_arguments(group_size, max_new_tokens, temperature)
    prompt_ids, prompt_length = pad_prompts(prompts, model.device)
    n = len(prompts) * group_size
    uniform = torch.rand(max_new_tokens, n, generator=generator, device=generator.device)
    uniform = uniform.to(model.device)
    eos = torch.tensor(list(eos_ids), dtype=torch.long, device=model.device)
    made = _blank(n, max_new_tokens, group_size, model.device)

    logits, cache = _prefill(model, prompt_ids, prompt_length, group_size, max_new_tokens - 1)
    tokens, logp = draw(logits, temperature, uniform[0].view(-1, group_size))  # a row, a group
    rows = torch.arange(n, device=model.device)  # the completion that each row of the cache is of
    for t in range(max_new_tokens):
        tokens, logp = tokens.flatten(), logp.flatten()  # (rows,)
        going = ~torch.isin(tokens, eos)
        made.ids[rows, t], made.logp[rows, t] = tokens, logp
        made.length[rows], made.truncated[rows] = t + 1, going
        if t + 1 == max_new_tokens or not going.any():
            break
        kept = cache.keep(going)
        rows, tokens = rows[kept], tokens[kept]
        logits = _decode(model, cache, tokens)
        tokens, logp = draw(logits, temperature, uniform[t + 1, rows, None])
    return _finished(made)


class GroupCache:
    """Keys and values of the rows that go on: their prompt's, then those of their own tokens.

    Buffers are made once, with room for all tokens. Prompts stand in the columns up to ``width``,
    padded on the right; the tokens of all rows follow in the columns after it, so that each step
    writes one column. A row's padding is hidden by the mask, and its positions do not count it.
    Of a cache of transformers it has what a model calls when it is given a mask with four
    dimensions.
    """

    def __init__(self, prefilled: Any, length: Tensor, group_size: int, room: int) -> None:
        """
        Args:
            prefilled: the cache of transformers with the keys and values of the prompts (P, ...).
            length: (P,) tokens of each prompt.
            room: columns for new tokens.
        """
        self.keys = [_spread(layer.keys, group_size, room) for layer in prefilled.layers]
        self.values = [_spread(layer.values, group_size, room) for layer in prefilled.layers]
        self.length = length.repeat_interleave(group_size)  # (rows,) tokens of each row's prompt
        self.width = self.filled = prefilled.layers[0].keys.shape[2]

    def update(
        self, keys: Tensor, values: Tensor, layer: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Take the keys and values (rows, heads, 1, size) of a new token of each row; give those of
        all its tokens (rows, heads, filled + 1, size), as views. Called by the model."""
        rows, end = len(keys), self.filled + 1
        self.keys[layer][:rows, :, self.filled] = keys[:, :, 0]
        self.values[layer][:rows, :, self.filled] = values[:, :, 0]
        return self.keys[layer][:rows, :, :end], self.values[layer][:rows, :, :end]

    def get_seq_length(self, layer: int = 0) -> int:
        """Columns that are filled. Some models ask, though they are told the positions."""
        return self.filled

    @property
    def position(self) -> Tensor:
        """Of each row's next token in its text, (rows,)."""
        return self.length + (self.filled - self.width)

    def mask(self, dtype: torch.dtype) -> Tensor:
        """For the next token of each row, (rows, 1, 1, filled + 1)."""
        column = torch.arange(self.filled + 1, device=self.length.device)
        padding = (column >= self.length[:, None]) & (column < self.width)
        return additive_mask(padding[:, None, None], dtype)

    def keep(self, going: Tensor) -> Tensor:
        """Drop the rows that do not go on, (rows,) bool; which rows the rest were, (rows left,).

        Rows from the end fill the places of those that ended, so no others are moved.
        """
        left = int(going.sum())
        kept = torch.arange(len(going), device=going.device)
        ended = kept[:left][~going[:left]]
        if len(ended):
            movers = kept[left:][going[left:]]
            for buffer in (*self.keys, *self.values):
                buffer[ended, :, : self.filled] = buffer[movers, :, : self.filled]
            kept[ended] = movers
        kept = kept[:left]
        self.length = self.length[kept]
        return kept


def _blank(n: int, longest: int, group_size: int, device: torch.device) -> Completions:
    """n completions without a token, to be filled in."""
    ids = torch.zeros(n, longest, dtype=torch.long, device=device)
    logp = torch.zeros(n, longest, dtype=torch.float32, device=device)
    return Completions(ids, ids.new_zeros(n), logp, ids.new_zeros(n, dtype=torch.bool), group_size)


def _finished(made: Completions) -> Completions:
    """The same, no wider than the longest; an error if the logits were not finite."""
    wrong = made.logp.isnan().any(dim=1)
    if wrong.any():
        prompt = int(wrong.nonzero()[0]) // made.group_size
        raise ValueError(f"prompt {prompt}: the model's logits are not finite")
    longest = int(made.length.max())
    return replace(made, ids=made.ids[:, :longest], logp=made.logp[:, :longest])


def _spread(states: Tensor, group_size: int, room: int) -> Tensor:
    """States (P, heads, width, size) of prompts, for each member of their groups, with room for
    more: (P * group_size, heads, width + room, size)."""
    n, heads, width, size = states.shape
    buffer = states.new_empty(n, group_size, heads, width + room, size)
    buffer[..., :width, :] = states[:, None]
    return buffer.flatten(0, 1)


def _prefill(
    model: CausalLM, ids: Tensor, length: Tensor, group_size: int, room: int
) -> tuple[Tensor, GroupCache]:
    """Logits after each prompt (P, vocabulary), and the cache of the groups. What all prompts begin
    with, such as a system message, goes through the network once."""
    decoder = model.get_decoder()
    common = common_prefix(ids, length)
    cache = decoder(input_ids=ids[:1, :common], use_cache=True).cache if common else None
    if cache is not None:
        cache.batch_repeat_interleave(len(ids))
    output = decoder(input_ids=ids[:, common:], cache=cache, use_cache=True)
    last = torch.arange(len(ids), device=ids.device), length - 1 - common
    logits = model.get_output_embeddings()(output.last_hidden_state[last])
    return logits, GroupCache(output.cache, length, group_size, room)


def common_prefix(ids: Tensor, length: Tensor) -> int:
    """How many tokens all prompts (P, L) of those lengths (P,) begin with; of each at least one is
    left. 0 if there is only one prompt."""
    if len(ids) == 1:
        return 0
    alike = (ids == ids[:1]).all(dim=0).cumprod(dim=0).sum()
    return int(torch.minimum(alike, length.min() - 1))


def _decode(model: CausalLM, cache: GroupCache, tokens: Tensor) -> Tensor:
    """Logits after one more token of each row, (rows,): (rows, vocabulary)."""
    output = model.get_decoder()(
        input_ids=tokens[:, None],
        position_ids=cache.position[:, None],
        attention_mask=cache.mask(model.dtype),
        cache=cache,
        use_cache=True,
    )
    cache.filled += 1
    return model.get_output_embeddings()(output.last_hidden_state[:, 0])


def _check_arguments(group_size: int, max_new_tokens: int, temperature: float) -> None:
    if group_size < 1:
        raise ValueError(f"group_size={group_size}: expected at least 1")
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens={max_new_tokens}: expected at least 1")
    if not 0 <= temperature < math.inf:
        raise ValueError(f"temperature={temperature}: expected 0 (greedy) or a positive number")
