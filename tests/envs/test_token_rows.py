"""The rows of the token tasks: the layout of prompts, and demonstrations."""

from __future__ import annotations

import re

import numpy as np
import pytest

from grpo_envs.tokens.arithmetic import ArithmeticTask
from grpo_envs.tokens.format import FormatTask
from grpo_envs.tokens.task import TokenTask, _lose_a_ten
from grpo_envs.tokens.vocabulary import EOS, PAD, TOKEN_ID, VOCABULARY, decode, encode

PRESETS = ("easy", "medium", "hard")
TASKS: list[TokenTask] = [
    *[ArithmeticTask(preset) for preset in PRESETS],
    *[FormatTask(preset) for preset in PRESETS],
    *[ArithmeticTask("easy", "+-"), FormatTask(None, "//", 1, 1)],
]
EACH_TASK = pytest.mark.parametrize(
    "task", TASKS, ids=lambda t: f"{t.title} of {t.problems.operators}"
)

# -- layout ---------------------------------------------------------------------------------------


def aligned(expression: str, digits: int) -> list[str]:
    """The prompt of an expression, worked out from its text: operands padded on their left."""
    symbols = re.findall(r"\d+|//|mod|\S", expression + "=")
    columns = [list(s.rjust(digits, "_")) if s.isdigit() else [s] for s in symbols]
    return ["<pad>" if token == "_" else token for column in columns for token in column]


@EACH_TASK
def test_digits_of_equal_place_value_line_up(task: TokenTask) -> None:
    ids = task.sample(np.random.default_rng(7), 300, "train")
    observation = task.observe(task.start(ids))
    tokens, mask = observation["tokens"], observation["mask"]
    assert observation["position"].tolist() == [[task.prompt_length]] * len(ids)
    assert (tokens[:, task.prompt_length :] == PAD).all()
    assert (mask == (tokens != PAD)).all()
    prompts = tokens[:, : task.prompt_length]
    for prompt, text in zip(prompts, task.expressions(ids), strict=True):
        assert [VOCABULARY[token] for token in prompt] == aligned(text, task.problems.digits)
    shown, _ = task.demonstrations(ids, np.random.default_rng(0), 0.5)
    assert (shown[:, : task.prompt_length] == prompts).all()


def test_the_layout_by_hand() -> None:
    """The table on the page; 99+3 has a gap. A <pad> that is written counts as a token."""
    task = ArithmeticTask("easy")
    ids = task.problems.ids(np.array([[0], [0]]), np.array([[17, 25], [3, 99]]))
    state = task.start(ids)
    prompts = [encode("17+25="), encode("99+<pad>3=")]
    assert task.observe(state)["tokens"].tolist() == [prompt + [PAD] * 4 for prompt in prompts]
    masks = [[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 1, 1]]
    assert task.observe(state)["mask"].tolist() == [mask + [0] * 4 for mask in masks]
    task.step(state, np.array([TOKEN_ID["4"], PAD]))
    after = task.observe(state)
    assert after["tokens"][:, 6:].tolist() == [[TOKEN_ID["4"], PAD, PAD, PAD], [PAD] * 4]
    assert after["position"].tolist() == [[7], [7]]
    assert after["mask"].tolist() == [[*mask, 1, 0, 0, 0] for mask in masks]

    shown, completion = task.demonstrations(ids, np.random.default_rng(0), 0.0)
    ends = [[*encode("42<eos>"), PAD], encode("102<eos>")]
    assert shown.tolist() == [prompt + end for prompt, end in zip(prompts, ends, strict=True)]
    assert completion.tolist() == [[False] * 6 + [True] * 3 + [False], [False] * 6 + [True] * 4]


# -- demonstrations -------------------------------------------------------------------------------


@EACH_TASK
def test_demonstrations_without_noise_are_right(task: TokenTask) -> None:
    ids = task.sample(np.random.default_rng(1), 500, "train")
    tokens, mask = task.demonstrations(ids, np.random.default_rng(2), noise=0.0)
    assert tokens.shape == mask.shape == (500, task.length)
    for row, part, text in zip(tokens, mask, task.expressions(ids), strict=True):
        begin, end = part.nonzero()[0][[0, -1]]
        assert decode(row[:begin][row[:begin] != PAD]) == text + "="
        assert begin == task.prompt_length
        assert part[begin : end + 1].all()
        assert row[end] == EOS
        assert (row[end + 1 :] == PAD).all()
    outcome = replay(task, ids, tokens, mask, masked=True)
    assert (outcome == task.oracle_score).all()


def replay(
    task: TokenTask, ids: np.ndarray, tokens: np.ndarray, mask: np.ndarray, masked: bool
) -> np.ndarray:
    """Rewards (n,) of the completions; ``masked``: each token must be allowed."""
    state, rewards = task.start(ids), np.zeros(len(ids))
    left, column = np.arange(len(ids)), mask.argmax(axis=1)
    while len(left):
        actions = tokens[left, column[left]]
        if masked:
            assert task.action_masks(state)[np.arange(len(left)), actions].all()
        outcome = task.step(state, actions)
        rewards[left] = outcome.reward
        column[left] += 1
        state = {name: array[~outcome.terminated] for name, array in state.items()}
        left = left[~outcome.terminated]
    return rewards


@pytest.mark.parametrize(
    ("value", "slip"),
    [(42, 32), (7, 17), (-8, -18), (-42, -32), (110, 100), (10, 0), (-10, 0), (0, 10), (99, 89)],
)
def test_a_lost_ten_by_hand(value: int, slip: int) -> None:
    assert _lose_a_ten(np.array([value]), 3).tolist() == [slip]


@pytest.mark.parametrize(("value", "slip"), [(7, 6), (-8, -7), (1, 0), (-1, 0), (0, 1), (9, 8)])
def test_a_lost_one_by_hand(value: int, slip: int) -> None:
    """For answers of one digit."""
    assert _lose_a_ten(np.array([value]), 1).tolist() == [slip]


@pytest.mark.parametrize("n_digits", [1, 2, 3])
def test_a_slip_changes_the_value_and_adds_no_digit(n_digits: int) -> None:
    """For all values of this many digits."""
    value = np.arange(1 - 10**n_digits, 10**n_digits)
    slip = _lose_a_ten(value, n_digits)
    assert (slip != value).all()
    assert abs(slip).max() < 10**n_digits
    assert (slip * value >= 0).all()


@pytest.mark.parametrize("task", [ArithmeticTask(), FormatTask()], ids=lambda task: task.title)
@pytest.mark.parametrize(("noise", "reward"), [(0.4, 1), (0.6, 0)])
def test_greedy_imitation_is_wrong_above_a_noise_of_one_half(
    task: TokenTask, noise: float, reward: int
) -> None:
    """The greedy policy takes the most frequent token after each prefix of 1,000 demonstrations of
    one problem. 0.1 is at least five standard errors of any share here."""
    (problem,) = task.problem_ids("train")[-1:]
    ids = np.full(1000, problem)
    tokens, _ = task.demonstrations(ids, np.random.default_rng(0), noise)
    rows, written = tokens[:, task.prompt_length :], []
    while EOS not in written:
        rows = rows[rows[:, len(written)] == np.bincount(rows[:, len(written)]).argmax()]
        written.append(int(rows[0, len(written)]))
    outcome = task.score_texts(ids[:1], [decode(written)])
    assert outcome.reward[0] == reward * task.oracle_score


@EACH_TASK
def test_noise_is_the_share_of_wrong_demonstrations(task: TokenTask) -> None:
    """Values are wrong with the given probability. For Format so is the structure, independently.
    Both hold within four standard errors."""
    n, noise = 4000, 0.3
    ids = task.sample(np.random.default_rng(1), n, "train")
    tokens, mask = task.demonstrations(ids, np.random.default_rng(2), noise=noise)
    texts = [decode(row[part]) for row, part in zip(tokens, mask, strict=True)]
    outcome = task.score_texts(ids, texts)
    assert (replay(task, ids, tokens, mask, masked=False) == outcome.reward).all()
    whole = (1 - noise) ** len(task.component_names)
    error = np.sqrt(whole * (1 - whole) / n)
    assert abs(outcome.success.mean() - whole) < 4 * error
    if "format" in outcome.components:
        assert abs(outcome.components["format"].mean() - (1 - noise)) < 4 * error
    with pytest.raises(ValueError, match="noise="):
        task.demonstrations(ids, np.random.default_rng(2), noise=1.5)
