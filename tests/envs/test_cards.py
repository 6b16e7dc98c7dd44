"""Cards: shapes, tints, and that no text can break them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_envs import cards
from grpo_envs.cards import Choice, letter, picture_card, text_card, wrap

PICTURE = np.full((64, 64, 3), (10, 200, 30), dtype=np.uint8)


def test_every_text_card_has_one_size():
    one = text_card("title", ["a"], None)
    assert one.dtype == np.uint8
    assert one.shape == (44 + (24 + 8 * 28 + 24) + 48, 640, 3)
    for lines, verdict in ((["a"], "Right: 7"), (["a", "b", "c"], None), (["a " * 9999], "wrong")):
        assert text_card("title", lines, verdict).shape == one.shape
    assert (one[-48:] == cards.PAPER).all()  # where the verdict will be
    assert not np.array_equal(one, text_card("title", ["b"], None))
    one[:] = 0  # the card is the caller's own


@pytest.mark.parametrize(
    ("verdict", "mark"), [("Right: 7", "right"), ("wrong, it is 8", "wrong"), ("too long", None)]
)
def test_the_verdict_band_has_the_tint_of_the_verdict(verdict, mark):
    card = text_card("title", ["a"], verdict)
    assert tuple(card[-1, 0]) == cards.TINTS[mark][0]


def test_long_text_loses_its_middle_and_says_how_much():
    rows = [f"row {i}" for i in range(40)]
    shown = cards._shorten(rows, 6)
    assert shown == ["row 0", "row 1", "row 2", "[35 lines left out]", "row 38", "row 39"]
    assert cards._shorten(rows, 2) == ["row 0", "[39 lines left out]"]
    assert cards._shorten(rows, 40) == rows


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("", [""]),
        ("a\n\nb", ["a", "", "b"]),
        ("7 − 3 × 2 ÷ 1", ["7 - 3 x 2 / 1"]),
        ("é\x00", [r"\xe9\x00"]),
        ("aaaa " * 5, ["aaaa aaaa aaaa aaaa", "aaaa"]),
        ("b" * 45, ["b" * 20, "b" * 20, "b" * 5]),
    ],
)
def test_wrap(text, rows):
    assert wrap(text, 20) == rows


@settings(max_examples=25, deadline=None)
@given(st.text(st.characters(exclude_categories=()), max_size=300))
def test_any_text_can_be_drawn(text):
    card = text_card(text, [text, text * 3], text)
    assert card.shape == (364, 640, 3)
    odd = picture_card(text, None, text, [Choice(text, "wrong", text)], text)
    assert odd.shape == picture_card("", None, "", [Choice("")], None).shape


def test_letters_count_as_spreadsheets_do():
    places = [0, 1, 25, 26, 27, 51, 52, 701, 702]
    assert [letter(p) for p in places] == ["A", "B", "Z", "AA", "AB", "AZ", "BA", "ZZ", "AAA"]


def test_a_picture_card_shows_the_picture_and_marks_the_answers():
    choices = [Choice("yes", "wrong", "chosen"), Choice("no", "right", "right"), Choice("blue")]
    card = picture_card("title", PICTURE, "is there a shape?", choices, "Wrong: B is right")
    assert card.dtype == np.uint8
    assert (card == PICTURE[0, 0]).all(axis=2).sum() == cards.PICTURE**2
    for mark in (None, "right", "wrong"):
        assert (card == cards.TINTS[mark][0]).all(axis=2).sum() > 2000


def test_without_a_picture_the_text_has_the_whole_width():
    choices = [Choice("yes"), Choice("no")]
    narrow = picture_card("title", PICTURE, "is there a shape?", choices, None)
    wide = picture_card("title", None, "is there a shape?", choices, None)
    assert wide.shape[0] < narrow.shape[0]
    tint = np.array(cards.TINTS[None][0])
    rows = [(card[60:] == tint).all(axis=2).any(axis=0).argmax() for card in (narrow, wide)]
    assert rows == [cards.PICTURE + 2 * cards.MARGIN, cards.MARGIN]
