"""The arithmetic task: its arguments, its problems and their splits, episodes worked by hand."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from grpo_envs.task import SPLITS
from grpo_envs.tokens.arithmetic import ArithmeticEnv, ArithmeticTask, ArithmeticVectorEnv
from grpo_envs.tokens.expressions import Expressions, parse_operators
from grpo_envs.tokens.vocabulary import EOS, N_TOKENS, PAD, decode, encode

PRESETS = ("easy", "medium", "hard")
EACH_TASK = pytest.mark.parametrize("task", [ArithmeticTask(p) for p in PRESETS], ids=PRESETS)


def value_of(text: str) -> int:
    """The value by Python's own arithmetic."""
    return eval(text.replace("mod", "%"))


def id_of(task: ArithmeticTask, text: str) -> int:
    """The canonical id of a problem of chain 1, such as "17+25"."""
    problems = task.problems
    operator = next(op for op in ("//", "mod", "+", "-", "*") if op in text)
    operands = [int(part) for part in text.split(operator)]
    place = problems.operators.index(operator)
    return int(problems.ids(np.array([[place]]), np.array([operands]))[0])


# -- arguments -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"preset": "huge"}, "preset='huge': expected one of easy, medium, hard or None"),
        ({"preset": None, "digits": 2}, "expected values for operators, chain"),
        ({"operators": "+/"}, "operators='\\+/', at '/': expected"),
        ({"operators": "++"}, "at most once"),
        ({"operators": ""}, "operators='': expected some of"),
        ({"digits": 5}, "digits=5: expected a whole number from 1 to 4"),
        ({"digits": 2.0}, "digits=2.0: expected a whole number"),
        ({"chain": 0}, "chain=0: expected a whole number from 1 to 3"),
        ({"digits": 4, "chain": 3}, "digits=4 and chain=3: expected .* at most 15"),
        ({"max_tokens": 3}, "max_tokens=3: expected at least 4"),
        ({"split": "dev"}, "split='dev': expected one of train, validation, test"),
    ],
)
def test_bad_arguments(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ArithmeticEnv(**options)


def test_explicit_arguments_override_the_preset() -> None:
    problems = ArithmeticTask("hard", operators=["mod", "-"], digits=1).problems
    assert (problems.operators, problems.digits, problems.chain) == (("-", "mod"), 1, 3)
    assert parse_operators("mod//*-+") == ("+", "-", "*", "//", "mod")


# -- problems -------------------------------------------------------------------------------------


@EACH_TASK
def test_results_are_exact(task: ArithmeticTask) -> None:
    rng = np.random.default_rng(3)
    for split in SPLITS:
        ids = task.sample(rng, 300, split)
        assert set(task.split_of(ids)) == {split}
        assert (task.check_ids(ids.astype(float)) == ids).all()
        answers = [value_of(text) for text in task.expressions(ids)]
        assert task.problems.answers(ids).tolist() == answers
        low, high = task.problems.answer_bounds
        assert low <= min(answers)
        assert max(answers) <= high


@pytest.mark.parametrize("operator", ["+", "-", "*", "//", "mod"])
def test_a_small_space_enumerated(operator: str) -> None:
    """Every problem is in exactly one split; both orders of commuting operands share one id."""
    problems = Expressions(None, operator, digits=1, chain=1)
    listed = {split: problems.problem_ids(split) for split in SPLITS}
    everything = np.concatenate(list(listed.values()))
    assert all((np.diff(ids) > 0).all() for ids in listed.values())
    assert all(len(listed[split]) for split in ("train", "validation", "test"))
    assert len(set(everything)) == len(everything) == problems.n_problems
    expected = {"+": 55, "*": 55, "-": 100, "//": 90, "mod": 90}
    assert problems.n_problems == expected[operator]
    seen = {}
    for a, b in product(range(10), range(10)):
        if operator in ("//", "mod") and b == 0:
            continue
        (canonical,) = problems.ids(np.array([[0]]), np.array([[a, b]]))
        seen[a, b] = canonical
        if (b, a) in seen:
            assert (seen[b, a] == canonical) == (operator in ("+", "*") or a == b)
    assert set(seen.values()) == set(everything)


def test_a_split_without_problems_cannot_be_drawn_from() -> None:
    """5 % of the 55 products of two digits should be in tuning, but none happens to be."""
    problems = Expressions(None, "*", digits=1, chain=1)
    assert len(problems.problem_ids("tuning")) == 0
    with pytest.raises(ValueError, match="split='tuning': none of these 55 problems is in it"):
        problems.sample(np.random.default_rng(0), 1, "tuning")


@pytest.mark.parametrize("operators", ["+", "-", "//", "mod", "+-*//mod"])
def test_longer_chains_enumerated(operators: str) -> None:
    """Texts that differ by swapped operands share one id; the count matches the formula."""
    problems = Expressions(None, operators, digits=1, chain=2)
    ids = np.concatenate([problems.problem_ids(split) for split in SPLITS])
    assert len(ids) == problems.n_problems
    k = len(problems.operators)
    for a, b, c in [(1, 2, 3), (3, 2, 1), (9, 4, 2), (2, 9, 4)]:
        for first, second in product(range(k), range(k)):

            def id_of(*operands: int, ops: tuple[int, int] = (first, second)) -> int:
                return int(problems.ids(np.array([ops]), np.array([operands]))[0])

            one, two = problems.operators[first], problems.operators[second]
            assert (id_of(a, b, c) == id_of(b, a, c)) == (one in "+*")
            later = one == two and one != "mod"
            assert (id_of(a, b, c) == id_of(a, c, b)) == later


def test_swapping_operands_never_changes_the_result() -> None:
    """``ids`` sorts only commuting operands: raw and canonical problems have the same answer."""
    rng = np.random.default_rng(0)
    problems = Expressions("hard", None, digits=1, chain=None)
    operators = rng.integers(5, size=(5000, 3))
    operands = rng.integers(1, 10, size=(5000, 4))
    raw = operators @ problems._operator_radix + operands @ problems._operand_radix
    assert (problems.answers(raw) == problems.answers(problems.ids(operators, operands))).all()


def test_presets_are_as_documented() -> None:
    """``easy``: 100 * 101 / 2 pairs. ``medium``: 2 * (102 choose 3) of ++ and **,
    100 * 5,050 of --, 4 * 5,050 * 100 of + or * before another, 2 * 100**3 of - before another."""
    tasks = [ArithmeticTask(preset) for preset in PRESETS]
    sizes = [task.problems.n_problems for task in tasks]
    assert sizes == [5_050, 4_868_400, 84_170_358_580_500]
    assert sizes[1] == 2 * 171_700 + 505_000 + 2_020_000 + 2_000_000
    # 198; 99**3 = 970,299 and a sign; 999**4 = 996,005,996,001 and a sign; and <eos>
    assert [task.max_tokens for task in tasks] == [3 + 1, 1 + 6 + 1, 1 + 12 + 1]
    # dd+dd=; (dd+dd)*dd=; ((ddd+ddd)*ddd)-ddd=
    assert [task.prompt_length for task in tasks] == [6, 11, 20]
    assert [task.length for task in tasks] == [10, 19, 34]


def test_splits_are_frozen() -> None:
    """Train and test have not changed since v0: otherwise old test problems would be trained on.
    Tuning used to be half of validation."""
    for operators, sizes in (("+", [3_990, 277, 520, 263]), ("+-", [11_989, 774, 1_506, 781])):
        task = ArithmeticTask("easy", operators)
        assert [len(task.problem_ids(split)) for split in SPLITS] == sizes
        assert task.problem_ids("test")[:4].tolist() == [0, 10, 16, 22]


@EACH_TASK
def test_listed_problems(task: ArithmeticTask) -> None:
    for split in SPLITS:
        ids = task.problem_ids(split)
        assert (np.diff(ids) > 0).all()
        assert set(task.split_of(ids)) == {split}
        assert (task.check_ids(ids) == ids).all()
        assert (task.problem_ids(split) == ids).all()
        if task.problems.n_problems > 200_000:
            assert len(ids) == 2000


def test_split_shares_and_independence_of_the_arguments() -> None:
    """80, 5, 10 and 5 % within four standard errors; a split depends on the problem alone."""
    narrow, wide = (ArithmeticTask("easy", ops, digits) for ops, digits in (("+-", 2), ("+-*", 4)))
    counts = np.array([len(narrow.problem_ids(split)) for split in SPLITS])
    n = counts.sum()
    for count, share in zip(counts, (0.8, 0.05, 0.1, 0.05), strict=True):
        assert abs(count - share * n) < 4 * np.sqrt(n * share * (1 - share))
    texts = [f"{a}{op}{b}" for a, b, op in product((0, 7, 17, 25, 99), (3, 42, 99), "+-")]
    splits = [
        task.split_of(np.array([id_of(task, text) for text in texts])) for task in (narrow, wide)
    ]
    assert (splits[0] == splits[1]).all()


def test_sampling_is_uniform_over_the_split() -> None:
    """With one digit and "-", all problems of a split are equally likely."""
    task = ArithmeticTask(None, "-", 1, 1)
    ids, counts = np.unique(
        task.sample(np.random.default_rng(0), 40_000, "train"), return_counts=True
    )
    assert (ids == task.problem_ids("train")).all()
    expected = 40_000 / len(ids)
    assert abs(counts - expected).max() < 5 * np.sqrt(expected)


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([3, -1], "problem id -1: expected whole numbers from 0 to 9999"),
        ([10_000], "problem id 10000"),
        ([1.5], "problem id 1.5"),
        ([float("nan")], "problem id nan"),
        (["7"], "problem id '7' of type"),
        ([7, True, None], "problem id True of type object"),
        ([7, 10**20], "problem id 1000"),
        ([[7]], r"problem ids of shape \(1, 1\): expected \(n,\)"),
    ],
)
def test_bad_ids(ids: list[Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ArithmeticTask("easy").check_ids(ids)


def test_an_id_that_divides_by_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="problem id 30: divides by zero"):
        ArithmeticTask(None, "//", 1, 1).check_ids([31, 30])


def test_shown_orders() -> None:
    """The smaller operand of a sum comes first in about half of the problems."""
    task = ArithmeticTask(None, "+", 2, 1)
    pairs = [text.split("+") for text in task.expressions(task.problem_ids("train"))]
    differing = [int(a) < int(b) for a, b in pairs if a != b]
    assert abs(np.mean(differing) - 0.5) < 0.05


# -- episodes -------------------------------------------------------------------------------------


def completion_of(task: ArithmeticTask, text: str, ids: Any = None) -> Any:
    """The outcome of writing ``text`` as tokens, for one problem."""
    state = task.start(task.problem_ids("train")[:1] if ids is None else np.array(ids))
    for token in encode(text):
        outcome = task.step(state, np.array([token]))
        if outcome.terminated[0]:
            break
    return outcome, state


def test_an_episode_by_hand() -> None:
    env = ArithmeticEnv(render_mode="ansi")
    k = id_of(env.task, "17+25")
    observation, info = env.reset(options={"problem_id": k})
    text = env.task.expressions(np.array([k]))[0]
    assert text in ("17+25", "25+17")
    assert observation["tokens"].tolist() == encode(text + "=") + [PAD] * 4
    assert observation["position"].tolist() == [6]
    assert observation["mask"].tolist() == [1] * 6 + [0] * 4
    assert info == {"problem_id": float(k), "is_success": 0.0, "accuracy": 0.0}
    rewards = []
    for token in encode("42<eos>"):
        assert "right" not in env.render()
        observation, reward, terminated, truncated, info = env.step(token)
        rewards.append((reward, terminated, truncated))
    assert rewards == [(0, False, False), (0, False, False), (1, True, False)]
    assert info == {"problem_id": float(k), "is_success": 1.0, "accuracy": 1.0}
    assert decode(observation["tokens"]) == text + "=42"
    assert observation["mask"].sum() == 9
    assert env.render().splitlines()[1:] == [
        f"Problem: {text}",
        "Tokens: 4 2 <eos>",
        "right: the answer is 42",
    ]
    with pytest.raises(RuntimeError, match="has ended"):
        env.step(0)


@pytest.mark.parametrize(
    ("text", "accuracy"),
    [
        *[("42<eos>", 1), ("+42<eos>", 1), ("0042<eos>", 1), ("42", None), ("<eos>", 0)],
        *[("00042", 1), ("-42<eos>", 0), ("41<eos>", 0), ("4<pad>2<eos>", 0), ("17+25", 0)],
        *[("42=<eos>", 0), ("<answer>42<eos>", 0), ("--42<eos>", 0), ("420<eos>", 0)],
    ],
)
def test_completions_of_17_plus_25(text: str, accuracy: int | None) -> None:
    task = ArithmeticTask("easy", max_tokens=5)
    outcome, _ = completion_of(task, text, [id_of(task, "17+25")])
    assert outcome.terminated[0] == (accuracy is not None)
    assert outcome.reward[0] == (accuracy or 0)


def test_numbers_that_would_wrap_around_64_bits() -> None:
    task = ArithmeticTask("easy", max_tokens=70)
    for text, accuracy in [(str(2**64 + 42), 0), ("9" * 60, 0), ("0" * 60 + "42", 1)]:
        outcome, _ = completion_of(task, text + "<eos>", [id_of(task, "17+25")])
        assert outcome.reward[0] == accuracy


def test_masks_by_hand() -> None:
    task = ArithmeticTask("easy", max_tokens=5)
    allowed = []
    state = task.start(task.problem_ids("train")[:1])
    for token in encode("-1=2"):
        allowed.append(set(task.action_masks(state)[0].nonzero()[0]))
        task.step(state, np.array([token]))
    allowed.append(set(task.action_masks(state)[0].nonzero()[0]))
    digits = set(encode("0123456789"))
    assert allowed == [digits | set(encode("+-")), digits, digits | {EOS}, {EOS}, {EOS}]
    _, state = completion_of(task, "1111")  # one token is left: a digit or the end
    assert set(task.action_masks(state)[0].nonzero()[0]) == digits | {EOS}
    env = ArithmeticVectorEnv(2)
    env.reset(seed=0)
    assert env.action_masks().shape == (2, N_TOKENS)
