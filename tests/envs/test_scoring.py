"""Judging: the shared cases, values against exact fractions, tokens against text."""

from __future__ import annotations

import json
from fractions import Fraction
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from grpo_envs.tokens.judge import SATURATED, TokenJudge, structure_judge, value_judge
from grpo_envs.tokens.scoring import TAGS, Verdict, judge, parse_value, right_values, value_equals
from grpo_envs.tokens.vocabulary import EOS, N_TOKENS, PAD, TOKEN_ID, VOCABULARY, decode, encode

CASES = json.loads((Path(__file__).parents[1] / "cases" / "completions.json").read_text())


@cache
def judges() -> tuple[TokenJudge, TokenJudge]:
    """Of structure and of values. Not at import, where a change of their tables would not count
    (mutation tests)."""
    return structure_judge(), value_judge()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_shared_cases(case: dict) -> None:
    assert judge(case["completion"], case["answer"]) == (case["accuracy"], case["format"])


R, A, B = "<reasoning>x</reasoning>", "<answer>42</answer>", "<answer>41</answer>"


@pytest.mark.parametrize(
    ("completion", "accuracy", "form"),
    [
        (R + A, 1, 1),
        (A + "<reasoning>" + B + "</reasoning>", 1, 0),  # the other answer is inside reasoning
        ("<reasoning>" + A, 0, 0),  # never closed: hides what follows
        ("<reasoning>x" + R + A, 1, 0),  # closed by the first </reasoning>
        ("<reasoning>" + R + "</reasoning>" + A, 1, 0),  # nested
        (R + "<answer>" + A, 0, 0),  # a tag inside the block: no value
        (R + "<answer>42<reasoning></answer>", 0, 0),
        (R + A + "<answer>41", 1, 0),  # the second one is not a block
        (R + A + "</answer>", 1, 0),
        (R + A + "<reasoning>", 1, 0),
        ("</answer>" + R + A, 1, 0),
        (R + "so" + A, 1, 0),
        ("x" + R + A, 1, 0),
        (R.upper() + A, 1, 0),
        (R + A.upper(), 0, 0),
        (R + "<answer>\u00a042\u2003</answer>", 1, 1),  # any white space
        (R + "<answer> </answer>", 0, 0),
        (R + "<answer >42</answer>", 0, 0),
        ("42", 0, 0),
    ],
)
def test_structure(completion: str, accuracy: int, form: int) -> None:
    assert judge(completion, "42") == (accuracy, form)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        *[("0", "0"), ("-0", "0"), ("+0", "0"), ("−0.00", "0"), ("007", "7"), ("0", "-0")],
        *[("1,234,567", "1234567"), ("1,234.50", "1234.5"), ("-1,000", "-1000"), ("\t7\n", "7")],
        *[("0.5", "1/2"), ("1/2", "0.5"), ("1/2", "2/4"), ("-7/3", "-7/3"), ("−7/3", "-7/3")],
        *[("0.125", "1/8"), ("42", "84/2"), ("0.050", "0.05"), ("0.05", "1/20"), ("2.5", "5/2")],
        *[("12.0625", "193/16"), ("9" * 5000, "9" * 5000), ("123,456", "123456")],
    ],
)
def test_equal_values(text: str, answer: str) -> None:
    assert value_equals(text, answer)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        *[("", "0"), ("+", "0"), ("-", "0"), (".", "0"), (",", "0"), ("/", "0"), ("- 8", "-8")],
        *[("--8", "8"), ("+-8", "-8"), ("8-", "8"), ("4 2", "42"), (".5", "0.5"), ("42.", "42")],
        *[("0,123", "123"), ("12,34", "1234"), ("1234,567", "1234567"), ("1,,234", "1234")],
        *[("1,234,", "1234"), (",123", "123"), ("1,23", "123"), ("1.234,5", "1.2345")],
        *[("4/2", "2"), ("2/1", "2"), ("2/4", "0.5"), ("7/0", "7"), ("7//3", "7/3"), ("0/3", "0")],
        *[("7/-3", "-7/3"), ("1,000/3", "1000/3"), ("0.33", "1/3"), ("0.5/1", "0.5")],
        *[
            ("4e1", "40"),
            ("0x2A", "42"),
            ("４２", "42"),
            ("²", "2"),
            ("42a", "42"),
            ("1_000", "1000"),
        ],
        *[("nan", "0"), ("inf", "0"), ("42\x00", "42"), ("9" * 5000, "9" * 5001)],
    ],
)
def test_unequal_values(text: str, answer: str) -> None:
    assert not value_equals(text, answer)


@given(p=st.integers(-(10**9), 10**9), q=st.integers(1, 1000), places=st.integers(0, 12))
@example(p=0, q=7, places=3)
def test_values_agree_with_exact_fractions(p: int, q: int, places: int) -> None:
    exact = Fraction(p, q)
    answer = f"{p}/{q}"
    lowest = f"{exact.numerator}/{exact.denominator}"
    assert value_equals(lowest, answer) == (exact.denominator > 1)
    scaled = abs(p) * 10**places // q  # decimals, cut off
    digits = str(scaled).zfill(places + 1)
    text = ("-" if p < 0 else "") + (
        f"{digits[: len(digits) - places]}.{digits[-places:]}" if places else digits
    )
    assert value_equals(text, answer) == (abs(exact) == Fraction(scaled, 10**places))


@pytest.mark.parametrize("answer", ["", "x", "1+1", "7/0", "1,23", "0." + "1" * 600])
def test_an_answer_without_a_value_is_an_error(answer: str) -> None:
    with pytest.raises(ValueError, match="answer"):
        right_values(answer)


@given(st.lists(st.sampled_from([*"0123456789+-−.,/ <>x\n٤", *TAGS]), max_size=30).map("".join))
def test_no_text_raises(text: str) -> None:
    assert set(judge(text, "42")) <= {0.0, 1.0}
    parse_value(text)


@pytest.mark.parametrize(
    "text",
    [
        *["9" * 300_000, "-" * 300_000, "1,234" * 100_000, "<" * 300_000, "<answer>" * 50_000],
        *["<reasoning>" * 50_000, "<answer>1</answer>" * 30_000, " " * 300_000, "1/" * 100_000],
        *["<answer>" + "9" * 300_000 + "</answer>", "\ud800", "</answer" * 50_000],
    ],
    ids=lambda text: text[:12] if text.isascii() else "surrogate",
)
def test_long_and_odd_texts(text: str) -> None:
    assert judge(text, "42") == (0, 0)
    assert not value_equals(text, "42")


# -- tokens ---------------------------------------------------------------------------------------


def judge_tokens(judge: TokenJudge, rows: np.ndarray, answer: int) -> list[Verdict]:
    """Rows (n, k) of tokens through the tables, one column at a time, up to each EOS."""
    state, size = np.full(len(rows), judge.start), np.zeros(len(rows), dtype=np.int64)
    going = np.ones(len(rows), dtype=bool)
    for token in rows.T:
        going &= token != EOS
        move = state * N_TOKENS + token
        grown = np.minimum(size, SATURATED) * judge.scale[move] + judge.digit[move]
        size = np.where(going, grown, size)
        state = np.where(going, judge.next_state[move], state)
    right = judge.has_value[state] & (judge.sign[state] * size == answer)
    return [Verdict(*map(float, pair)) for pair in zip(right, judge.well_formed[state])]  # noqa: B905


@given(
    st.lists(st.sampled_from([*range(N_TOKENS), *[20, 21, 22, 23] * 4, 2, 3, 3]), max_size=24),
    st.sampled_from([0, 1, -1, 11]),
)
def test_tokens_and_text_agree(tokens: list[int], answer: int) -> None:
    rows = np.array([tokens], dtype=np.int64)
    text = decode(tokens)
    assert judge_tokens(judges()[0], rows, answer) == [judge(text, str(answer))]
    (plain,) = judge_tokens(judges()[1], rows, answer)
    assert plain.accuracy == value_equals(text, str(answer))


def test_tokens_and_text_agree_on_every_short_sequence() -> None:
    """All of length 5, also after an opening tag; "1" represents all digits."""
    few = [PAD, EOS, *(TOKEN_ID[token] for token in ("1", "-", *TAGS))]
    rows = np.array(list(product(few, repeat=5)))
    opening = np.full((len(rows), 1), TOKEN_ID["<answer>"])
    for these in (rows, np.hstack((opening, rows))):
        verdicts = judge_tokens(judges()[0], these, 1)
        texts = [decode(row) for row in these]
        assert verdicts == [judge(text, "1") for text in texts]
        plain = [verdict.accuracy for verdict in judge_tokens(judges()[1], these, 1)]
        assert plain == [value_equals(text, "1") for text in texts]
    assert any(verdict.accuracy for verdict in verdicts)


def test_a_long_number_saturates_and_never_wraps_around() -> None:
    answer = 7
    wrapping = [*encode(str(2**64 + answer))]  # would be 7 in 64 bits
    for tokens in (wrapping, encode("9" * 60), encode("0" * 60 + "7")):
        rows = np.array([tokens])
        (verdict,) = judge_tokens(judges()[1], rows, answer)
        assert verdict.accuracy == value_equals(decode(tokens), "7")


def test_to_go_is_the_shortest_way() -> None:
    """From the start of the format task: ``<reasoning>`` x ``</reasoning><answer>`` 1 ``</answer>``
    is six tokens, so five after the first; from a value, EOS at once."""
    judge = judges()[0]
    assert judge.to_go[judge.start, TOKEN_ID["<reasoning>"]] == 5
    assert (np.delete(judge.to_go[judge.start], TOKEN_ID["<reasoning>"]) > 1000).all()
    judge = judges()[1]
    assert judge.to_go[judge.start, TOKEN_ID["-"]] == 1
    assert judge.to_go[judge.start, TOKEN_ID["7"]] == 0
    assert judge.to_go[judge.start, EOS] > 1000


def test_vocabulary() -> None:
    assert len(set(VOCABULARY)) == N_TOKENS == 24
    everything = [i for i in range(N_TOKENS) if i != EOS]
    assert encode(decode(everything)) == everything
    assert decode(encode("17+25=<eos>99")) == "17+25="
    with pytest.raises(ValueError, match="x3"):
        encode("17 x3")
