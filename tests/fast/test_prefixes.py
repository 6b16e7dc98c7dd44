"""The tree of prefixes against sets of tuples."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_bench.fast.prefixes import prefix_tree


def tensors(rows, t):
    """Rows of tokens as (n, t) with arbitrary values beyond their length."""
    tokens = torch.tensor([[*row, *[1] * (t - len(row))] for row in rows])
    return tokens, torch.tensor([len(row) for row in rows])


def prefixes(rows):
    return {row[:end] for row in rows for end in range(1, len(row) + 1)}


def read(tree):
    """The tokens of each node, from the root: those on the way to its leaf, up to its column."""
    ways = tree.token[tree.paths][tree.leaf].tolist()
    return [tuple(way[: c + 1]) for way, c in zip(ways, tree.column.tolist(), strict=True)]


@st.composite
def batches(draw):
    """Up to 12 rows over few tokens, so that many share a prefix."""
    n_tokens = draw(st.sampled_from([2, 3, 24, 50_000]))
    token = st.integers(0, min(n_tokens, 3) - 1) | st.just(n_tokens - 1)
    rows = draw(st.lists(st.lists(token, min_size=1, max_size=40), min_size=1, max_size=6))
    for row in draw(st.lists(st.sampled_from(rows), max_size=6)):
        rows.append(row[: draw(st.integers(1, len(row)))] + draw(st.lists(token, max_size=2)))
    return n_tokens, list(map(tuple, rows))


@given(batches())
def test_it_is_the_tree_of_all_prefixes(batch):
    n_tokens, rows = batch
    tokens, length = tensors(rows, max(map(len, rows)))
    tree = prefix_tree(tokens, length, n_tokens)
    nodes = read(tree)
    assert set(nodes) == prefixes(rows) and len(nodes) == len(set(nodes))
    for row, node in zip(rows, tree.node.tolist(), strict=True):
        assert [nodes[i] for i in node[: len(row)]] == [row[: c + 1] for c in range(len(row))]
    inner = {row[:-1] for row in prefixes(rows)}
    assert len(tree.paths) == len(prefixes(rows) - inner)
    assert tree.paths.min() >= 0 and tree.paths.max() < len(nodes)  # beyond the leaf as well


def test_by_hand():
    tokens, length = tensors([(5, 7), (5,), (5, 8, 0), (5, 7)], 3)
    tree = prefix_tree(tokens, length, 9)
    # in descending order 580, 57, 57, 5: the first token is one node, then come 8 and 7, then 0
    assert tree.token.tolist() == [5, 8, 7, 0]
    assert tree.column.tolist() == [0, 1, 1, 2]
    assert tree.leaf.tolist() == [0, 0, 1, 0]
    assert tree.paths[0].tolist() == [0, 1, 3] and tree.paths[1, :2].tolist() == [0, 2]
    assert tree.node[0, :2].tolist() == tree.node[3, :2].tolist() == [0, 2]
    assert tree.node[1, 0] == 0 and tree.node[2].tolist() == [0, 1, 3]


@pytest.mark.parametrize("n_tokens", [2, 23, 24, 2**31 - 2, 2**62])
def test_words_hold_the_largest_tokens(n_tokens):
    """Nothing overflows, whether one or many symbols make a number."""
    top = n_tokens - 1
    rows = [(top,) * 70, (top,) * 69 + (0,), (top,) * 69, (0,) * 70, (top, 0)]
    tokens, length = tensors(rows, 70)
    assert set(read(prefix_tree(tokens, length, n_tokens))) == prefixes(rows)
