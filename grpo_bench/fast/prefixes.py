"""Rows of tokens as a prefix tree, so that a causal network computes each prefix once.

In a batch of a token task many rows are prefixes of each other: each transition of an episode
extends the previous one, and the members of a group share their prompt. The hidden state of a
causal network at a token depends on that token and the ones before it. So it is the same in all
rows that share the prefix, and one node of the tree serves them all.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

WORD = 2**63  # an int64 is below this


@dataclass(frozen=True)
class PrefixTree:
    """n rows of at most t tokens with m distinct prefixes; s of the prefixes are leaves."""

    token: Tensor  # (m,) the last token of each prefix
    column: Tensor  # (m,) its column: the prefix has column + 1 tokens
    leaf: Tensor  # (m,) one leaf below the prefix
    paths: Tensor  # (s, t) the prefixes on the way to each leaf; arbitrary beyond the leaf
    node: Tensor  # (n, t) the prefix of each row up to each column; arbitrary beyond its length


def prefix_tree(tokens: Tensor, length: Tensor, n_tokens: int) -> PrefixTree:
    """The distinct prefixes of the rows.

    Rows are sorted lexicographically, longer rows before their own prefixes. Then rows that share a
    prefix are neighbours: each adds the tokens that its predecessor lacks, and a row that adds
    nothing is a prefix of its predecessor.

    Args:
        tokens: (n, t) int64, each from 0 to n_tokens - 1.
        length: (n,) int64, number of tokens of each row.
    """
    n, t = tokens.shape
    inside = torch.arange(t, device=tokens.device) < length[:, None]
    symbols = (tokens + 1) * inside  # 0: the row has ended
    order = _descending(symbols, n_tokens + 1)
    symbols, fresh = symbols[order], inside[order]
    fresh[1:] &= (symbols[1:] == symbols[:-1]).cumprod(1) == 0
    # Nodes are numbered column by column, in the order of the rows. A place that is not fresh has
    # the node of the place above it.
    number = (fresh.T.flatten().cumsum(0) - 1).view(t, n).T
    node = torch.empty_like(number)
    node[order] = number
    column, row = fresh.T.nonzero(as_tuple=True)
    is_leaf = fresh.any(1)
    return PrefixTree(
        token=symbols[row, column] - 1,
        column=column,
        leaf=(is_leaf.cumsum(0) - 1)[row],
        paths=number[is_leaf],
        node=node,
    )


def _descending(symbols: Tensor, base: int) -> Tensor:
    """The order (n,) that sorts rows (n, t) of symbols below ``base``: a radix sort over int64
    words that hold as many symbols as fit."""
    n, t = symbols.shape
    digits = 1
    while base ** (digits + 1) <= WORD:
        digits += 1
    powers = base ** torch.arange(digits - 1, -1, -1, device=symbols.device)
    words = (F.pad(symbols, (0, -t % digits)).view(n, -1, digits) * powers).sum(2)
    order = torch.arange(n, device=symbols.device)
    for word in reversed(words.unbind(1)):
        order = order[word[order].argsort(stable=True, descending=True)]
    return order
