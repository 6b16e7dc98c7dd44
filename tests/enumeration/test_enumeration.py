"""Every rollout, every group, and the true gradient, by hand and by brute force."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_bench.enumeration.groups import enumerate_batches, multinomial, multisets
from grpo_bench.enumeration.tasks import (
    completions,
    log_probs,
    objective,
    one_step,
    reverse_gradient,
    sequences,
    true_gradient,
)


def double(values):
    return torch.tensor(values, dtype=torch.float64)


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


# -- rollouts -------------------------------------------------------------------------------------


def test_completions_end_or_are_cut():
    assert completions(".a", 1) == [".", "a"]
    assert completions(".a", 3) == [".", "a.", "aa.", "aaa"]
    # 1 of one token, 2 of two, 2 * 2 prefixes * 3 last tokens of three
    found = completions(".ab", 3)
    assert len(found) == len(set(found)) == 1 + 2 + 12
    assert {"b.", "ab.", "bab"} <= set(found)


def test_the_rollouts_of_a_sequence_task():
    task = sequences(".a", 2, [{"a": 0.5, "aa": 2}, {".": 1}])
    # ".", "a.", "aa" of problem 0, with the states "" = 0 and "a" = 1; of problem 1 with 2 and 3
    assert task.problems.tolist() == [0, 0, 0, 1, 1, 1]
    assert task.states.tolist() == [[0, 0], [0, 1], [0, 1], [2, 0], [2, 3], [2, 3]]
    assert task.actions.tolist() == [[0, 0], [1, 0], [1, 1]] * 2
    assert task.mask.tolist() == [[True, False], [True, True], [True, True]] * 2
    assert task.rewards.tolist() == [[0, 0], [0.5, 0], [0.5, 2], [1, 0], [0, 0], [0, 0]]
    assert task.returns.tolist() == [0, 0.5, 2.5, 1, 0, 0]
    assert (task.shape, task.n_problems, task.max_len) == ((4, 2), 2, 2)


def test_probabilities_of_whole_rollouts_by_hand():
    task = sequences(".a", 2, [{}])
    logits = double([[0.2, 0.8], [0.3, 0.7]]).log()
    expected = double([[0.2, 1.0], [0.8, 0.3], [0.8, 0.7]]).log()  # 1: there is no second token
    close(log_probs(task, logits), expected)
    close(log_probs(task, logits).sum(1).exp(), double([0.2, 0.24, 0.56]))


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match=r"rewards of \[2, 3\] actions: expected as many"):
        one_step([[1, 0], [1, 0, 0]])
    with pytest.raises(ValueError, match=r"alphabet='ab': expected '\."):
        sequences("ab", 2, [{}])
    with pytest.raises(ValueError, match="reward of 'aaa': expected the beginning of one of"):
        sequences(".a", 2, [{"aaa": 1}])


# -- the true gradient ----------------------------------------------------------------------------


def test_the_true_gradient_by_hand():
    # p = 0.25, J = p: dJ/dlogits = p (1 - p) (1, -1) = (0.1875, -0.1875)
    task, logits = one_step([[1, 0]]), double([[0.25, 0.75]]).log()
    close(true_gradient(task, logits, logits), double([0.1875, -0.1875]))
    # To the uniform reference x = log 2 pi = -log 2, log 1.5; dKL/dlogit = p (1 - p) (x_1 - x_2)
    uniform = torch.zeros_like(logits)
    by_first = 0.1875 * (1 - 2 * (-math.log(2) - math.log(1.5)))
    close(true_gradient(task, logits, uniform, 2.0), double([by_first, -by_first]))


def test_each_problem_counts_the_same():
    logits = double([[0.25, 0.75], [0.5, 0.5]]).log()
    found = true_gradient(one_step([[1, 0], [0, 1]]), logits, logits)
    close(found, double([0.1875, -0.1875, -0.25, 0.25]) / 2)
    # that of -KL(ref || pi) is ref - pi
    found = reverse_gradient(one_step([[0, 0], [0, 0]]), logits, torch.zeros_like(logits))
    close(found, double([0.5 - 0.25, 0.5 - 0.75, 0.0, 0.0]) / 2)


def test_the_kl_of_sequences_is_that_of_whole_completions():
    """KL(first token) + p(a) KL(second token after a), in both directions by finite differences."""
    task = sequences(".a", 2, [{}])
    pi, ref = double([[0.2, 0.8], [0.3, 0.7]]), double([[0.6, 0.4], [0.5, 0.5]])
    each = (pi * (pi / ref).log()).sum(1)
    kl = (each[0] + 0.8 * each[1]).item()
    assert objective(task, pi.log(), ref.log(), 1.0).item() == pytest.approx(-kl, rel=1e-12)

    def reverse(logits):
        q = logits.softmax(1)
        each = (ref * (ref / q).log()).sum(1)
        return (each[0] + 0.4 * each[1]).item()

    found = reverse_gradient(task, pi.log(), ref.log())
    for i in range(4):
        h = torch.zeros(4, dtype=torch.float64)
        h[i] = 1e-5
        slope = (reverse(pi.log() + h.view(2, 2)) - reverse(pi.log() - h.view(2, 2))) / 2e-5
        assert found[i].item() == pytest.approx(-slope, abs=1e-9)


# -- groups ---------------------------------------------------------------------------------------


def test_multisets_by_hand():
    assert multisets(3, 2).tolist() == [[0, 0], [0, 1], [0, 2], [1, 1], [1, 2], [2, 2]]
    found = multinomial(multisets(2, 3), double([0.25, 0.75]))
    close(found, double([1 / 64, 3 * 3 / 64, 3 * 9 / 64, 27 / 64]))


@given(st.lists(st.floats(0.01, 1), min_size=2, max_size=4), st.integers(2, 5))
def test_the_weights_are_those_of_all_ordered_groups(shares, size):
    probabilities = double(shares) / sum(shares)
    groups = multisets(len(shares), size)
    weights = multinomial(groups, probabilities)
    assert weights.sum().item() == pytest.approx(1, rel=1e-12)
    ordered = dict.fromkeys(map(tuple, groups.tolist()), 0.0)
    for members in itertools.product(range(len(shares)), repeat=size):
        ordered[tuple(sorted(members))] += math.prod(probabilities[list(members)].tolist())
    close(weights, double(list(ordered.values())))


def test_an_action_that_is_never_taken_has_no_weight():
    close(multinomial(multisets(2, 2), double([0.0, 1.0])), double([0.0, 0.0, 1.0]))


@pytest.mark.parametrize(("n_problems", "draws"), [(1, 3), (2, 3), (3, 1)])
def test_batches_of_different_problems(n_problems, draws):
    task = one_step([[1, 0]] * 3)
    logits = double([[0.1, 0.9], [0.5, 0.5], [0.8, 0.2]]).log()
    batches = enumerate_batches(task, logits, 2, n_problems)
    assert batches.members.shape == (draws * 3**n_problems, n_problems, 2)
    totals = torch.zeros(draws, dtype=torch.float64).index_add(0, batches.draws, batches.weights)
    close(totals, torch.ones(draws, dtype=torch.float64))
    problems = task.problems[batches.members]  # (B, P, G)
    assert (problems == problems[..., :1]).all(), "a group is of one problem"
    for draw in range(draws):
        assert len(problems[batches.draws == draw][..., 0].unique(dim=0)) == 1
    assert len(problems[..., 0].unique(dim=0)) == draws
    assert (problems[..., 0].diff(dim=1) > 0).all()


def test_batches_that_cannot_be_listed_are_refused():
    task = one_step([[1, 0, 0, 0, 0, 0]] * 2)
    logits = torch.zeros(2, 6)
    with pytest.raises(ValueError, match="n_problems=3: expected from 1 to 2"):
        enumerate_batches(task, logits, 2, 3)
    with pytest.raises(ValueError, match=r"group_size=64 with n_problems=1: [\d,]+ rollouts"):
        enumerate_batches(task, logits, 64)
