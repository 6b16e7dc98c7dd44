"""Cards: pictures of one episode for people (``render_mode="rgb_array"``).

All cards of a task have the same size, with or without a verdict, so they can be frames of a video
(``RecordVideo``), an observation (``AddRenderObservation``) or tiles of a picture.

This module only draws; the task chooses the text. Pillow is imported when a card is drawn, so
``import grpo_envs`` needs only numpy and gymnasium. The font is Pillow's own
(``ImageFont.load_default``): no files, the same on every machine. It covers little more than ASCII,
so other characters are replaced or escaped.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw

Mark = Literal["right", "wrong"]
Colour = tuple[int, int, int]

WIDTH, MARGIN = 640, 24  # pixels
BAND_HEIGHT, LINE_HEIGHT, ROW_HEIGHT, VERDICT_HEIGHT = 44, 28, 40, 48  # pixels
PICTURE = 240  # side of the picture on a picture card, pixels
LETTERS_PER_LINE = 64  # nearly always fits this font and width; wider rows are cut by pixels
MAX_LINES = 8  # of a text card; longer text loses its middle, the ends matter more
QUESTION_LINES = 2  # of a picture card

PAPER: Colour = (255, 255, 255)
INK: Colour = (28, 32, 38)
SOFT: Colour = (104, 112, 124)
BAND: Colour = (238, 241, 245)
RULE: Colour = (205, 211, 218)
TINTS: dict[Mark | None, tuple[Colour, Colour]] = {  # background and ink
    None: (BAND, INK),
    "right": ((216, 241, 223), (15, 98, 47)),
    "wrong": ((252, 224, 222), (160, 26, 21)),
}
LOOKALIKES = str.maketrans({"−": "-", "–": "-", "—": "-", "×": "x", "÷": "/", "\t": "    "})


class Choice(NamedTuple):
    """One row of answers on a picture card."""

    text: str
    mark: Mark | None = None  # the tint of the row
    note: str = ""  # at the right end of the row: "chosen", "right answer"


def text_card(title: str, lines: list[str], verdict: str | None) -> NDArray[np.uint8]:
    """Draw a title band, lines of text and the verdict, if any.

    Args:
        title: one line, cut at the card's edge.
        lines: paragraphs of any length, wrapped to the card's width. Beyond ``MAX_LINES`` rows the
            middle is replaced by the number of rows left out.
        verdict: one line; None during the episode. Green if it starts with "right", red if it
            starts with "wrong" (in any case), else grey.

    Returns:
        The picture, (364, 640, 3) uint8.
    """
    rows = _shorten([row for line in lines for row in wrap(line, LETTERS_PER_LINE)], MAX_LINES)
    canvas, draw = _canvas(title, LINE_HEIGHT * MAX_LINES + 2 * MARGIN, verdict)
    _paragraph(draw, rows, MARGIN, BAND_HEIGHT + MARGIN, WIDTH - 2 * MARGIN)
    return np.array(canvas, dtype=np.uint8)


def picture_card(
    title: str,
    picture: NDArray[np.uint8] | None,
    question: str,
    choices: list[Choice],
    verdict: str | None,
) -> NDArray[np.uint8]:
    """Draw a picture, enlarged without smoothing, next to a question and its lettered answers.

    Args:
        picture: (height, width, 3) uint8; without one the text takes the whole width.
        choices: in the order of their letters, A first.
        question: takes at most ``QUESTION_LINES`` rows.
        title, verdict: as in ``text_card``.

    Returns:
        The picture, (height, 640, 3) uint8; the height depends on the number of answers.
    """
    left = MARGIN if picture is None else PICTURE + 2 * MARGIN
    width = WIDTH - left - MARGIN
    letters = LETTERS_PER_LINE * width // (WIDTH - 2 * MARGIN)
    rows = _shorten(wrap(question, letters), QUESTION_LINES)
    text_height = LINE_HEIGHT * QUESTION_LINES + 12 + ROW_HEIGHT * len(choices)
    body = max(text_height, 0 if picture is None else PICTURE) + 2 * MARGIN
    canvas, draw = _canvas(title, body, verdict)
    top = BAND_HEIGHT + MARGIN
    if picture is not None:
        from PIL.Image import Resampling, fromarray

        enlarged = fromarray(picture).resize((PICTURE, PICTURE), Resampling.NEAREST)
        canvas.paste(enlarged, (MARGIN, top))
        draw.rectangle((MARGIN - 1, top - 1, MARGIN + PICTURE, top + PICTURE), outline=RULE)
    _paragraph(draw, rows, left, top, width)
    top += LINE_HEIGHT * len(rows) + 12
    for place, choice in enumerate(choices):
        _choice_row(draw, place, choice, left, top + ROW_HEIGHT * place, width)
    return np.array(canvas, dtype=np.uint8)


def letter(place: int) -> str:
    """The letter of an answer: A to Z, then AA, AB, ... as in spreadsheets."""
    name = ""
    place += 1
    while place:
        place, digit = divmod(place - 1, 26)
        name = chr(ord("A") + digit) + name
    return name


def wrap(text: str, width: int) -> list[str]:
    """Split a text into rows of at most ``width`` printable ASCII characters, at its line breaks
    first."""
    rows = []
    for line in text.translate(LOOKALIKES).split("\n"):
        plain = "".join(c if " " <= c <= "~" else ascii(c)[1:-1] for c in line)
        rows += textwrap.wrap(plain, width) or [""]
    return rows


def _shorten(rows: list[str], limit: int) -> list[str]:
    """Keep at most ``limit`` rows; one of them says how many were left out."""
    if len(rows) <= limit:
        return rows
    head, tail = rows[: limit // 2], rows[len(rows) - (limit - 1) // 2 :]
    return [*head, f"[{len(rows) - len(head) - len(tail)} lines left out]", *tail]


def _canvas(title: str, body: int, verdict: str | None) -> tuple[Image, ImageDraw]:
    """A blank card with title and verdict; ``body`` is the height between their bands, in
    pixels."""
    from PIL import Image, ImageDraw

    height = BAND_HEIGHT + body + VERDICT_HEIGHT
    canvas = Image.new("RGB", (WIDTH, height), PAPER)
    draw = ImageDraw.Draw(canvas)
    _band(draw, title, 0, BAND_HEIGHT, (BAND, SOFT))
    if verdict is not None:
        start = verdict.lower()
        mark: Mark | None = None
        if start.startswith("right"):
            mark = "right"
        elif start.startswith("wrong"):
            mark = "wrong"
        _band(draw, verdict, height - VERDICT_HEIGHT, VERDICT_HEIGHT, TINTS[mark])
    return canvas, draw


def _band(
    draw: ImageDraw, text: str, top: int, height: int, colours: tuple[Colour, Colour]
) -> None:
    paper, ink = colours
    draw.rectangle((0, top, WIDTH, top + height - 1), fill=paper)
    _line(draw, text, MARGIN, top + height // 2, WIDTH - 2 * MARGIN, ink)


def _choice_row(
    draw: ImageDraw, place: int, choice: Choice, left: int, top: int, width: int
) -> None:
    paper, ink = TINTS[choice.mark]
    box = (left, top, left + width, top + ROW_HEIGHT - 7)
    draw.rounded_rectangle(box, radius=6, fill=paper)
    middle = top + (ROW_HEIGHT - 7) // 2
    _line(draw, letter(place), left + 12, middle, 30, ink)
    used = _line(draw, choice.note, left + width - 12, middle, width // 2, ink, anchor="rm")
    _line(draw, choice.text, left + 44, middle, width - 64 - used, ink)


def _paragraph(draw: ImageDraw, rows: list[str], left: int, top: int, width: int) -> None:
    for i, row in enumerate(rows):
        _line(draw, row, left, top + i * LINE_HEIGHT + LINE_HEIGHT // 2, width, INK)


def _line(
    draw: ImageDraw, text: str, x: int, y: int, width: int, ink: Colour, anchor: str = "lm"
) -> int:
    """Draw one line, cut to ``width`` pixels. Returns its width."""
    from PIL.ImageFont import load_default

    font = load_default(18)
    plain = " ".join(wrap(text[:400], 400))
    shown, end = plain, len(plain)
    while end and draw.textlength(shown, font=font) > width:
        end -= 1
        shown = plain[:end].rstrip() + "..."
    draw.text((x, y), shown, font=font, fill=ink, anchor=anchor)
    return int(draw.textlength(shown, font=font))
