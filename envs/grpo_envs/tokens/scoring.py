"""Judge answers: an automaton for the structure, exact comparison for the value.

The rules:

- *Format* is right if the completion is one ``<reasoning>`` block and then one ``<answer>`` block,
  both with something in them, in lower case, no tag nested or repeated. White space around and
  between the blocks is ignored.
- *Accuracy* looks at the only answer block outside the reasoning, from ``<answer>`` to the next
  ``</answer>``. It is wrong with no such block, or more than one. The content of a reasoning block
  is ignored. An unclosed ``<reasoning>`` hides everything after it; an unclosed ``<answer>`` is no
  block.
- A *reply* in free words is judged by its last number. Its sign may be apart from its digits
  ("- 8"), a typographic dash, or a word; an exponent is part of the number ("1e5").
- A *value* is an optional sign (``+``, ``-`` or the typographic minus), ASCII digits, thousands
  separators only where they belong, an optional decimal part; or a fraction in lowest terms with a
  denominator above 1. White space around it is ignored. Values are compared exactly.

No completion raises an error or takes more than linear time: values are compared as strings in
canonical form (Python's ``int`` takes quadratic time, and rejects 4,301 digits).

``STRUCTURE`` is the automaton: ``next_state = STRUCTURE[state, symbol]``. ``judge`` feeds it a text
piece by piece, split at the tags; ``judge.py`` indexes it with the tokens of a whole batch.
"""

from __future__ import annotations

import math
import re
from collections import deque
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from grpo_envs.task import BoolArray, IntArray

TAGS = ("<reasoning>", "</reasoning>", "<answer>", "</answer>")
_TAG = re.compile("(" + "|".join(TAGS) + ")")


class Symbol(IntEnum):
    """The automaton's input, one for each piece of a completion; tags in the order of ``TAGS``."""

    OPEN_REASONING = 0
    CLOSE_REASONING = 1
    OPEN_ANSWER = 2
    CLOSE_ANSWER = 3
    SPACE = 4
    OTHER = 5


class Verdict(NamedTuple):
    """Each 0.0 or 1.0."""

    accuracy: float
    format: float


# -- structure: format (8) x region (3) x number of answer blocks (0, 1, 2 or more) ---------------

# Progress of a well-formed completion. Transitions not listed lead to BROKEN, which is final.
BEFORE, BLANK_REASONING, REASONING, BETWEEN, BLANK_ANSWER, ANSWER, DONE, BROKEN = range(8)
_FORMAT: dict[int, dict[Symbol, int]] = {
    BEFORE: {Symbol.SPACE: BEFORE, Symbol.OPEN_REASONING: BLANK_REASONING},
    BLANK_REASONING: {Symbol.SPACE: BLANK_REASONING, Symbol.OTHER: REASONING},
    REASONING: {
        Symbol.SPACE: REASONING,
        Symbol.OTHER: REASONING,
        Symbol.CLOSE_REASONING: BETWEEN,
    },
    BETWEEN: {Symbol.SPACE: BETWEEN, Symbol.OPEN_ANSWER: BLANK_ANSWER},
    BLANK_ANSWER: {Symbol.SPACE: BLANK_ANSWER, Symbol.OTHER: ANSWER},
    ANSWER: {Symbol.SPACE: ANSWER, Symbol.OTHER: ANSWER, Symbol.CLOSE_ANSWER: DONE},
    DONE: {Symbol.SPACE: DONE},
    BROKEN: {},
}

# The current block, even in a broken format. Symbols not listed change nothing.
OUTSIDE, IN_REASONING, IN_ANSWER = range(3)
_REGION: dict[int, dict[Symbol, int]] = {
    OUTSIDE: {Symbol.OPEN_REASONING: IN_REASONING, Symbol.OPEN_ANSWER: IN_ANSWER},
    IN_REASONING: {Symbol.CLOSE_REASONING: OUTSIDE},
    IN_ANSWER: {Symbol.CLOSE_ANSWER: OUTSIDE},
}

N_STATES = 8 * 3 * 3
START = 0  # BEFORE, OUTSIDE, no block


def _transition(state: int, symbol: Symbol) -> int:
    shape, region, blocks = state // 9, state // 3 % 3, state % 3
    closes = region == IN_ANSWER and symbol is Symbol.CLOSE_ANSWER
    shape = _FORMAT[shape].get(symbol, BROKEN)
    region = _REGION[region].get(symbol, region)
    return shape * 9 + region * 3 + min(blocks + closes, 2)


STRUCTURE: IntArray = np.array(
    [[_transition(state, symbol) for symbol in Symbol] for state in range(N_STATES)]
)  # (state, symbol)
_states = np.arange(N_STATES)
WELL_FORMED: BoolArray = _states // 9 == DONE  # (state,)
ONE_ANSWER: BoolArray = _states % 3 == 1
READS_ANSWER: BoolArray = (_states // 3 % 3 == IN_ANSWER) & (_states % 3 == 0)


# -- values ---------------------------------------------------------------------------------------


class Value(NamedTuple):
    """A number in canonical form: values are equal if and only if their forms are.

    ``sign`` is "-" or "" (zero has none). ``whole`` has no leading zeros ("" below 1) and ``rest``,
    the decimal part, no trailing zeros. ``over`` is the denominator of a fraction, else "".
    """

    sign: str
    whole: str
    rest: str = ""
    over: str = ""


def parse_value(text: str) -> Value | None:
    """The value of ``text`` as a whole, or None. Fractions are not reduced."""
    text = text.strip()
    sign = "-" if text[:1] in ("-", "−") else ""
    if text[:1] in ("+", "-", "−"):
        text = text[1:]
    whole, slash, over = text.partition("/")
    if slash:
        if not (_is_digits(whole) and _is_digits(over)):
            return None
        whole, over = whole.lstrip("0"), over.lstrip("0")
        return Value(sign if whole else "", whole, over=over) if over else None
    whole, point, rest = text.partition(".")
    if "," in whole:
        first, *others = whole.split(",")
        if not 1 <= len(first) <= 3 or first[0] == "0" or any(len(part) != 3 for part in others):
            return None
        whole = "".join((first, *others))
    if not _is_digits(whole) or (point and not _is_digits(rest)):
        return None
    whole, rest = whole.lstrip("0"), rest.rstrip("0")
    return Value(sign if whole or rest else "", whole, rest)


def _is_digits(text: str) -> bool:
    return text.isascii() and text.isdigit()


MAX_RATIONAL = 500  # characters of a decimal or fraction: reducing it needs long integers


@lru_cache(maxsize=4096)
def right_values(answer: str) -> tuple[Value, ...]:
    """Every canonical form of the exact ``answer``: the decimal form if it is finite, and the
    fraction in lowest terms if its denominator is above 1.

    Raises:
        ValueError: the answer is not a value, or is a decimal or fraction too long to reduce.
    """
    value = parse_value(answer)
    if value is None:
        raise ValueError(f"answer={answer[:60]!r}: expected a number such as '-8', '0.5' or '7/3'")
    if not (value.rest or value.over):
        return (value,)
    if len(answer) > MAX_RATIONAL:
        raise ValueError(
            f"an answer of {len(answer)} characters that is no whole number: "
            f"expected at most {MAX_RATIONAL}"
        )
    p = int((value.whole + value.rest) or "0")
    q = int(value.over or "1") * 10 ** len(value.rest)
    p, q = p // math.gcd(p, q), q // math.gcd(p, q)
    forms = [] if q == 1 else [Value(value.sign, str(p), over=str(q))]
    places = _decimal_places(q)
    if places is not None:
        whole, rest = divmod(p * 10**places // q, 10**places)
        decimals = str(rest).zfill(places) if places else ""
        forms.append(Value(value.sign, str(whole).lstrip("0"), decimals))
    return tuple(forms)


def _decimal_places(q: int) -> int | None:
    """The number of decimals of p / q (p and q coprime); None if it is infinite."""
    powers = []
    for prime in (2, 5):
        power = 0
        while q % prime == 0:
            q, power = q // prime, power + 1
        powers.append(power)
    return max(powers) if q == 1 else None


def value_equals(text: str, answer: str) -> bool:
    """Whether ``text`` as a whole is a value equal to the exact ``answer``."""
    return parse_value(text) in right_values(answer)


# -- replies --------------------------------------------------------------------------------------

_POWER = r"(?:\^|\*\*)\{?"
_NUMBER = re.compile(
    r"(?P<number>[0-9][0-9,_]*(?:[./][0-9]+)?|(?<![0-9A-Za-z.])\.[0-9]+)"
    rf"(?:(?:[eE]| ?(?:[x×·*]|\\times|\\cdot) ?10{_POWER})(?P<exponent>[-+−]?[0-9]+)"
    rf"|{_POWER}(?P<power>[-+−]?[0-9]+))?"
)
_RAISED = re.compile("(?<=[0-9])[⁺⁻⁰¹²³⁴-⁹]+")
_LOWERED = str.maketrans("⁺⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "+-0123456789")
_MINUS = "-−"
_DASHES = "‐‑‒–—﹣－"
_MINUS_WORD = re.compile("(?:^|[^a-z])(?P<word>minus|negative)$", re.IGNORECASE)
MAX_EXPONENT = 4  # digits: a number in canonical form has as many digits as its exponent says


def last_number(reply: str) -> str:
    """The last number in a text with its sign, without a comma after it; "" if there is none."""
    reply = _RAISED.sub(lambda found: "^" + found[0].translate(_LOWERED), reply)
    for last in deque(_NUMBER.finditer(reply), maxlen=1):
        return _sign(reply[: last.start()]) + last[0].rstrip(",_")
    return ""


def _sign(before: str) -> str:
    """The minus, or "", of a number from the text before it.

    A minus after an operand is a subtraction: "12-5" and "12 - 5" end in 5. A dash between spaces
    after a word is punctuation: "the answer – 5".
    """
    text = before.rstrip(" \t$€£*")
    word = _MINUS_WORD.search(text[-9:])
    mark = word["word"] if word else text[-1:]
    left = text[: len(text) - len(mark)]
    if not (word or (mark and mark in _MINUS + _DASHES)) or _ends_operand(left):
        return ""
    apart = word or any(space in before[len(text) :] for space in " \t")
    left = left.rstrip(" \t")
    if apart and _ends_operand(left, letters=mark in _DASHES):
        return ""
    return "−" if mark == "−" else "-"


def _ends_operand(text: str, letters: bool = True) -> bool:
    """Whether a text ends with a digit, a closing bracket, "%" or, if so asked, a letter."""
    last = text[-1:]
    return last in tuple(")]}%") or (last.isalnum() if letters else last.isdigit())


def parse_reply(text: str) -> Value | None:
    """The value of a number as ``last_number`` gives it, also one with an exponent: 4.2e1 or
    4.2 × 10^1. None for other powers, such as 42^2."""
    sign = "-" if text[:1] in tuple(_MINUS) else ""
    found = _NUMBER.fullmatch(text.removeprefix(text[:1]) if sign else text)
    if found is None:
        return None
    number, exponent = found["number"].replace("_", ","), found["exponent"]
    if found["power"] is not None:
        if number != "10":
            return None
        number, exponent = "1", found["power"]
    value = parse_value(sign + ("0" if number[0] == "." else "") + number)
    return value if value is None or exponent is None else _scaled(value, exponent)


def _scaled(value: Value, exponent: str) -> Value | None:
    """A decimal value times a power of ten; None if that is too long to write."""
    if value.over or len(exponent.lstrip("+-−0")) > MAX_EXPONENT:
        return None
    shift = int(exponent.replace("−", "-"))
    point = len(value.whole) + shift
    digits = "0" * -point + value.whole + value.rest
    point = max(point, 0)
    whole, rest = digits[:point].ljust(point, "0").lstrip("0"), digits[point:].rstrip("0")
    return Value(value.sign if whole or rest else "", whole, rest)


def reply_equals(reply: str, answer: str) -> bool:
    """Whether the last number of a reply, such as "17+25 is 42.", equals the exact ``answer``."""
    return parse_reply(last_number(reply)) in right_values(answer)


# -- completions ----------------------------------------------------------------------------------


def judge(completion: str, answer: str) -> Verdict:
    """Judge a completion of the form ``<reasoning>..</reasoning><answer>..</answer>``.

    Args:
        completion: any text.
        answer: the exact value, such as "42", "-8", "0.5" or "7/3".
    """
    state, content = START, []
    for i, piece in enumerate(_TAG.split(completion)):
        if i % 2 == 1:
            symbol = Symbol(TAGS.index(piece))
        elif piece:
            symbol = Symbol.SPACE if piece.isspace() else Symbol.OTHER
        else:
            continue
        if READS_ANSWER[state] and symbol is not Symbol.CLOSE_ANSWER:
            content.append(piece)
        state = int(STRUCTURE[state, symbol])
    right = bool(ONE_ANSWER[state]) and value_equals("".join(content), answer)
    return Verdict(float(right), float(WELL_FORMED[state]))
