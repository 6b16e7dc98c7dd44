"""Rows of tokens as one tree: what a causal network says after a prefix, it says once.

A batch of a token task is full of prefixes of each other: every transition of an episode begins
with the transitions before it, and the members of a group share their prompt. The hidden state of
a causal network at a token depends on that token and those before it, so it is the same in all rows
that begin alike: one node of the tree of prefixes stands for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

WORD = 2**63  # what an int64 holds is below this


@dataclass(frozen=True)
class PrefixTree:
    """n rows of at most t tokens, of which m prefixes differ; s of them go no further (leaves)."""

    token: Tensor  # (m,) the last token of each prefix
    column: Tensor  # (m,) where it stands: the prefix has column + 1 tokens
    leaf: Tensor  # (m,) a leaf that the prefix leads to
    paths: Tensor  # (s, t) the prefixes on the way to each leaf; beyond the leaf any
    node: Tensor  # (n, t) the prefix that each row is up to each column; beyond its length any


def prefix_tree(tokens: Tensor, length: Tensor, n_tokens: int) -> PrefixTree:
    """The distinct prefixes of the rows.

    In lexicographic order, the longer one first where one begins with the other, rows that share a
    prefix stand together: each adds to the tree what goes beyond its predecessor, and the rows that
    add nothing are prefixes of it.

    Args:
        tokens: (n, t) int64, each from 0 to n_tokens - 1.
        length: (n,) int64, how many of its tokens belong to a row.
    """
    n, t = tokens.shape
    inside = torch.arange(t, device=tokens.device) < length[:, None]
    symbols = (tokens + 1) * inside  # 0: the row has ended
    order = _descending(symbols, n_tokens + 1)
    symbols, fresh = symbols[order], inside[order]
    fresh[1:] &= (symbols[1:] == symbols[:-1]).cumprod(1) == 0
    # Nodes are numbered column by column, within it in the order of the rows: the node of a place
    # that is not fresh is the one above it.
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
    """The order that sorts rows (n, t) of symbols below ``base``, (n,): as many as fit are read as
    one number, and the last numbers sorted by first."""
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
