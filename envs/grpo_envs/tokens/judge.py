"""Judge completions token by token, a whole batch at once, with tables.

A ``TokenJudge`` is the product of the automaton of ``scoring.py`` and a small one that reads the
value, with a column for each token. An episode keeps two numbers, its state and the magnitude of
the value so far:

    i = state * N_TOKENS + token
    size = min(size, SATURATED) * scale[i] + digit[i]
    state = next_state[i]
    right = has_value[state] and sign[state] * size == answer
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grpo_envs.task import BoolArray, IntArray
from grpo_envs.tokens.scoring import (
    ONE_ANSWER,
    READS_ANSWER,
    START,
    STRUCTURE,
    TAGS,
    WELL_FORMED,
    Symbol,
)
from grpo_envs.tokens.vocabulary import EOS, N_TOKENS, PAD, TOKEN_ID, ZERO

SATURATED = 10**17  # far above any answer; times 10 plus 9 still fits an int64
NEVER = 10**6  # more tokens than any episode has

# The value so far. ``NO_VALUE`` is final.
EMPTY, PLUS, MINUS, DIGITS, MINUS_DIGITS, NO_VALUE = range(6)
N_VALUE = 6


@dataclass(frozen=True)
class TokenJudge:
    """Tables over S states and V = ``N_TOKENS`` tokens; those that ``i`` indexes are flat."""

    start: int
    next_state: IntArray  # (S * V,)
    scale: IntArray  # (S * V,) factor of the size so far: 10 if the token is a digit, else 1
    digit: IntArray  # (S * V,) added to it
    sign: IntArray  # (S,) of the value
    has_value: BoolArray  # (S,) the completion has exactly one value
    well_formed: BoolArray  # (S,)
    to_go: IntArray  # (S, V) fewest tokens, without EOS, after this one to a right completion


def value_judge() -> TokenJudge:
    """For tasks where the whole completion is the value."""
    alone = np.zeros((1, N_TOKENS), dtype=np.int64)
    yes = np.ones(1, dtype=bool)
    return _product(0, alone, reads=np.ones((1, N_TOKENS), dtype=bool), one=yes, formed=yes)


def structure_judge() -> TokenJudge:
    """For tasks where the value is in ``<answer>``, after ``<reasoning>``."""
    symbols = np.full(N_TOKENS, Symbol.OTHER)
    for tag, symbol in zip(TAGS, Symbol, strict=False):
        symbols[TOKEN_ID[tag]] = symbol
    reads = READS_ANSWER[:, None] & (symbols != Symbol.CLOSE_ANSWER)
    return _product(START, STRUCTURE[:, symbols], reads=reads, one=ONE_ANSWER, formed=WELL_FORMED)


def _value_table() -> IntArray:
    """(value state, token) -> value state: an optional sign, then only digits."""
    table = np.full((N_VALUE, N_TOKENS), NO_VALUE)
    digits = slice(ZERO, ZERO + 10)
    table[[EMPTY, PLUS, DIGITS], digits] = DIGITS
    table[[MINUS, MINUS_DIGITS], digits] = MINUS_DIGITS
    table[EMPTY, TOKEN_ID["+"]] = PLUS
    table[EMPTY, TOKEN_ID["-"]] = MINUS
    return table


def _product(
    start: int, structure: IntArray, *, reads: BoolArray, one: BoolArray, formed: BoolArray
) -> TokenJudge:
    """The product of the automata of the structure (K, V) and of the value. EOS keeps the state.

    Args:
        reads: (K, V) the token belongs to the value.
        one: (K,) there is exactly one answer.
        formed: (K,) the structure is complete and right.
    """
    k = len(structure)
    state = np.arange(k * N_VALUE)
    place, value = state // N_VALUE, state % N_VALUE
    reading = reads[place]
    next_value = np.where(reading, _value_table()[value], value[:, None])
    next_state = structure[place] * N_VALUE + next_value
    next_state[:, EOS] = state
    token = np.arange(N_TOKENS)
    is_digit = reading & (token >= ZERO) & (token < ZERO + 10)
    has_value = one[place] & np.isin(value, (DIGITS, MINUS_DIGITS))
    return TokenJudge(
        start=start * N_VALUE + EMPTY,
        next_state=next_state.ravel(),
        scale=np.where(is_digit, 10, 1).ravel(),
        digit=np.where(is_digit, token - ZERO, 0).ravel(),
        sign=np.where(np.isin(value, (MINUS, MINUS_DIGITS)), -1, 1),
        has_value=has_value,
        well_formed=formed[place],
        to_go=_tokens_to_go(next_state, complete=has_value & formed[place]),
    )


def _tokens_to_go(next_state: IntArray, complete: BoolArray) -> IntArray:
    """Fewest tokens, without EOS, after each state and token to a complete state, (S, V).
    ``NEVER`` if none can be reached, for EOS in a state that is not complete, and for PAD."""
    cost = np.where(complete, 0, NEVER)
    usable = np.ones(N_TOKENS, dtype=bool)
    usable[[PAD, EOS]] = False
    while True:
        shorter = np.minimum(cost, cost[next_state[:, usable]].min(axis=1) + 1)
        if (shorter == cost).all():
            break
        cost = shorter
    to_go = np.where(usable, cost[next_state], NEVER)
    to_go[:, EOS] = np.where(complete, 0, NEVER)
    return to_go
