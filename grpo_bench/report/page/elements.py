"""Markup that cannot be broken by what it holds: every text is escaped unless it is markup."""

from __future__ import annotations

import re
from html import escape

VOID = ("meta", "link", "input", "wbr")  # have no end tag
SHAPES = ("path", "rect", "circle")  # of SVG, which need none where they are empty
# Characters for which HTML has no place.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


class Markup(str):
    """A text that is HTML already."""


Child = str | None  # markup, a text to be escaped, or nothing


def element(tag: str, /, *children: Child, **attributes: str | float | bool | None) -> Markup:
    """``<tag attributes>children</tag>``. In an attribute's name ``_`` stands for ``-``, and a
    last one for nothing (``class_``); True is an attribute without a value, False and None leave it
    out; numbers have one decimal at most."""
    told = "".join(_attribute(key, value) for key, value in attributes.items())
    if tag in VOID:
        return Markup(f"<{tag}{told}>")
    if tag in SHAPES and not children:
        return Markup(f"<{tag}{told}/>")
    return Markup(f"<{tag}{told}>{join(*children)}</{tag}>")


def join(*children: Child) -> Markup:
    """Children one after the other."""
    return Markup("".join(map(_text, children)))


def prose(text: str) -> Markup:
    """A text with code between backticks."""
    parts = text.split("`")
    return join(*(element("code", p) if i % 2 else p for i, p in enumerate(parts)))


def short(x: float) -> str:
    """A coordinate with one decimal at most."""
    return f"{x:.1f}".removesuffix(".0")


def _text(child: Child) -> str:
    if child is None:
        return ""
    return child if isinstance(child, Markup) else escape(_whole(child), quote=False)


def _attribute(key: str, value: str | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    key = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {key}"
    text = value if isinstance(value, str) else short(value)
    return f' {key}="{escape(_whole(text))}"'


def _whole(text: str) -> str:
    return _CONTROL.sub("\ufffd", text)
