"""Texts of records on one line, and on a terminal."""

from __future__ import annotations

import re

LONGEST_REASON = 300  # characters of a reason; all of it is in error.txt
_HEADER = re.compile(r"^Traceback\b.*\n", re.MULTILINE)
_GROUP = re.compile(r"^ +\| (?=\S)")  # before the lines of an exception group
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, the cursor
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"  # titles, and other strings up to their end
    r"|\x1b[ -/]*[0-~]?"
)
# All but tab and line feed; those that turn the direction of a text can disguise a name.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def reason_of(trace: str) -> str:
    """The type and the first line of the exception that a traceback ends with, or the first line of
    another text; at most ``LONGEST_REASON`` characters, "" for an empty text."""
    *_, last = _HEADER.split(trace)
    lines = [_GROUP.sub("", line) for line in last.split("\n") if line.strip()]
    # Frames are indented. A message may begin on a line of its own.
    found = [line for line in lines if not line[0].isspace()] or lines
    if not found:
        return ""
    begins = lines.index(found[0])
    first, *more = lines[begins:]
    if first.rstrip().endswith(":") and more:
        first = f"{first.rstrip()} {more[0].strip()}"
    return printable(first)[:LONGEST_REASON]


def printable(text: str) -> str:
    """A text without escape sequences and control characters, which could repaint a terminal."""
    return _CONTROL.sub("", _ESCAPES.sub("", text))
