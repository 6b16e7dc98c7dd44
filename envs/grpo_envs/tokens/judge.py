"""Judging tokens as they come, a whole batch at once, by table.

A ``TokenJudge`` is the automaton of ``scoring.py`` times a small one that reads the value, with a
column for each token. An episode carries two numbers, its state and the size of the value so far:

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

SATURATED = 10**17  # far above any answer; times 10 plus 9 still fits in an int64
NEVER = 10**6  # more tokens than any episode has

# What the value looks like so far. ``NO_VALUE`` is for good.
EMPTY, PLUS, MINUS, DIGITS, MINUS_DIGITS, NO_VALUE = range(6)
N_VALUE = 6


@dataclass(frozen=True)
class TokenJudge:
    """Tables over S states and V = ``N_TOKENS`` tokens; those of (S, V) are flat, as indexed."""

    start: int
    next_state: IntArray  # (S * V,)
    scale: IntArray  # (S * V,) what the size so far is multiplied by: 10 if the token is a digit
    digit: IntArray  # (S * V,) and what is then added
    sign: IntArray  # (S,) of the value
    has_value: BoolArray  # (S,) there is one value to be compared
    well_formed: BoolArray  # (S,)
    to_go: IntArray  # (S, V) fewest tokens, EOS aside, to a right completion after this one


def value_judge() -> TokenJudge:
    """For tasks in which the whole completion is the value."""
    alone = np.zeros((1, N_TOKENS), dtype=np.int64)
    yes = np.ones(1, dtype=bool)
    return _product(0, alone, reads=np.ones((1, N_TOKENS), dtype=bool), one=yes, formed=yes)


def structure_judge() -> TokenJudge:
    """For tasks whose value stands in ``<answer>``, after a ``<reasoning>``."""
    symbols = np.full(N_TOKENS, Symbol.OTHER)
    for tag, symbol in zip(TAGS, Symbol, strict=False):
        symbols[TOKEN_ID[tag]] = symbol
    reads = READS_ANSWER[:, None] & (symbols != Symbol.CLOSE_ANSWER)
    return _product(START, STRUCTURE[:, symbols], reads=reads, one=ONE_ANSWER, formed=WELL_FORMED)


def _value_table() -> IntArray:
    """(value state, token) -> value state: an optional sign, then digits, and nothing else."""
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
    """The automaton of the structure (K, V) times that of the value; EOS changes nothing.

    Args:
        reads: (K, V) the token belongs to the value.
        one: (K,) exactly one answer has been given.
        formed: (K,) the structure is right as it stands.
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
    """(S, V): how many more tokens a complete state takes after this one, EOS aside; ``NEVER``
    where none can be reached, for EOS in a state that is not complete, and for PAD."""
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
