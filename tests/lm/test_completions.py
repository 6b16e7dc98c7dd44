"""Micro-batches of groups, by a budget of tokens."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_bench.lm.completions import Completions, group_tokens, micro_batches


def test_tokens_of_a_group():
    """Prompts of 3 and 1 tokens; completions of 2, 4 and of 1, 1: 3 + 1 + 3 and 1 + 0 + 0."""
    length = torch.tensor([2, 4, 1, 1])
    ids = torch.zeros(4, 4, dtype=torch.long)
    completions = Completions(ids, length, ids.float(), length > 9, group_size=2)
    assert group_tokens([[5, 5, 5], [5]], completions) == [7, 1]


def test_micro_batches_by_hand():
    """At most 12: 7, since 7 and 6 would make 14; 6 and 5 make 12; 3 and 2 make 6."""
    assert micro_batches([2, 7, 5, 3, 6], 12) == [[1], [4, 2], [3, 0]]
    assert micro_batches([2, 7, 5, 3, 6], 14) == [[1, 4], [2, 3], [0]]
    assert micro_batches([4, 4, 4], 8) == [[0, 1], [2]]
    assert micro_batches([], 8) == []


@given(st.lists(st.integers(1, 50), max_size=30), st.integers(50, 200))
def test_every_group_is_in_one_and_none_is_too_large(tokens, budget):
    batches = micro_batches(tokens, budget)
    assert sorted(group for batch in batches for group in batch) == list(range(len(tokens)))
    costs = [len(batch) * max(tokens[group] for group in batch) for batch in batches]
    assert all(cost <= budget for cost in costs)
    longest = [tokens[batch[0]] for batch in batches]
    assert longest == sorted(longest, reverse=True)


def test_a_group_that_fits_into_none():
    with pytest.raises(ValueError, match="group 1 has 9 tokens, max_tokens=8: expected at least"):
        micro_batches([3, 9], 8)
