"""The vocabulary of the token tasks, and arrays of tokens.

All token tasks share one vocabulary, whose order never changes:

| id | token | | id | token |
|---|---|---|---|---|
| 0 | ``<pad>``: no token | | 16 | ``mod`` |
| 1 | ``<eos>``: end of the completion | | 17, 18 | ``(`` ``)`` |
| 2 to 11 | the digits 0 to 9 | | 19 | ``=`` |
| 12, 13 | ``-`` ``+`` | | 20, 21 | ``<reasoning>`` ``</reasoning>`` |
| 14, 15 | ``*`` ``//`` | | 22, 23 | ``<answer>`` ``</answer>`` |
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from grpo_envs.task import BoolArray, IntArray
from grpo_envs.tokens.scoring import TAGS

VOCABULARY: tuple[str, ...] = (
    *("<pad>", "<eos>"),
    *"0123456789",
    *("-", "+", "*", "//", "mod", "(", ")", "="),
    *TAGS,
)
PAD, EOS, ZERO, MINUS = 0, 1, 2, 12
TOKEN_ID: dict[str, int] = {token: i for i, token in enumerate(VOCABULARY)}
N_TOKENS = len(VOCABULARY)


def encode(text: str) -> list[int]:
    """The token ids of a text, ignoring spaces between tokens. The inverse of ``decode``.

    Raises:
        ValueError: part of the text is not a token; quotes it.
    """
    ids, i = [], 0
    while i < len(text):
        if text[i] == " ":
            i += 1
            continue
        token = next((token for token in VOCABULARY if text.startswith(token, i)), None)
        if token is None:
            raise ValueError(f"{text[i : i + 20]!r}: expected a token of {VOCABULARY}")
        ids.append(TOKEN_ID[token])
        i += len(token)
    return ids


def decode(tokens: Iterable[int]) -> str:
    """Tokens as text, up to the first EOS and without it; ``mod`` has a space on both sides."""
    pieces = []
    for token in tokens:
        if token == EOS:
            break
        pieces.append(VOCABULARY[token].replace("mod", " mod "))
    return "".join(pieces)


# -- slots: rows of tokens with gaps --------------------------------------------------------------
# A row has a slot for every token that it may contain, PAD if it does not, so batches are built
# column by column. Prompts keep their gaps, so each column has one meaning; completions have theirs
# closed.


def number_slots(values: IntArray, n_digits: int) -> IntArray:
    """Whole numbers (n,) as slots (n, 1 + n_digits): a minus if negative, digits aligned right."""
    size = np.abs(values)
    slots = np.zeros((len(values), 1 + n_digits), dtype=np.int64)
    slots[:, 0] = np.where(values < 0, MINUS, PAD)
    for column in range(n_digits, 0, -1):
        slots[:, column] = np.where((size > 0) | (column == n_digits), ZERO + size % 10, PAD)
        size = size // 10
    return slots


def close_gaps(slots: IntArray, width: int) -> tuple[IntArray, IntArray]:
    """Move the tokens of each row of slots (n, k) to the left, in order. No row may have more than
    ``width`` tokens.

    Returns:
        tokens (n, width), padded with PAD, and the number of tokens in each row, (n,).
    """
    there: BoolArray = slots != PAD
    place = there.cumsum(axis=1)
    rows, columns = there.nonzero()
    tokens = np.full((len(slots), width), PAD, dtype=np.int64)
    tokens[rows, place[rows, columns] - 1] = slots[rows, columns]
    return tokens, place[:, -1]
