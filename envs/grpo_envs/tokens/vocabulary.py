"""The tokens of the token tasks, and arrays of them.

One vocabulary serves every token task, in this order, which never changes:

| id | token | | id | token |
|---|---|---|---|---|
| 0 | ``<pad>``: nothing; after the end | | 16 | ``mod`` |
| 1 | ``<eos>``: the completion is over | | 17, 18 | ``(`` ``)`` |
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
    """The token ids of a text; spaces between tokens are left out. The inverse of ``decode``.

    Raises:
        ValueError: names the first place where no token begins.
    """
    ids, i = [], 0
    while i < len(text):
        if text[i] == " ":
            i += 1
            continue
        token = next((token for token in VOCABULARY if text.startswith(token, i)), None)
        if token is None:
            raise ValueError(f"{text[i : i + 20]!r}: no token begins so, of {VOCABULARY}")
        ids.append(TOKEN_ID[token])
        i += len(token)
    return ids


def decode(tokens: Iterable[int]) -> str:
    """Tokens as text, up to the first EOS (left out); ``mod`` has a space on both sides."""
    pieces = []
    for token in tokens:
        if token == EOS:
            break
        pieces.append(VOCABULARY[token].replace("mod", " mod "))
    return "".join(pieces)


# -- slots: rows of tokens with gaps --------------------------------------------------------------
# A row that is being put together has a slot for every token that may be there, PAD where nothing
# is: whole batches are then built column by column. A prompt keeps its gaps, so that each of its
# columns has one meaning; those of a completion are closed.


def number_slots(values: IntArray, n_digits: int) -> IntArray:
    """Whole numbers (n,) as slots (n, 1 + n_digits): a minus if below 0, digits to the right."""
    size = np.abs(values)
    slots = np.zeros((len(values), 1 + n_digits), dtype=np.int64)
    slots[:, 0] = np.where(values < 0, MINUS, PAD)
    for column in range(n_digits, 0, -1):
        slots[:, column] = np.where((size > 0) | (column == n_digits), ZERO + size % 10, PAD)
        size = size // 10
    return slots


def close_gaps(slots: IntArray, width: int) -> tuple[IntArray, IntArray]:
    """Move the tokens of each row of slots (n, k) to the left, in order.

    Returns:
        tokens (n, width), PAD after the end, and the number of tokens in each row, (n,). No row of
        slots holds more than ``width`` tokens.
    """
    there: BoolArray = slots != PAD
    place = there.cumsum(axis=1)
    rows, columns = there.nonzero()
    tokens = np.full((len(slots), width), PAD, dtype=np.int64)
    tokens[rows, place[rows, columns] - 1] = slots[rows, columns]
    return tokens, place[:, -1]
