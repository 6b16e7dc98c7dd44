"""HTML elements. Every text is escaped unless it is ``Markup`` already."""

from __future__ import annotations

import re
from html import escape

VOID = ("meta", "link", "input", "wbr")  # no end tag
SHAPES = ("path", "rect", "use")  # of SVG; no end tag when empty
# Characters that HTML does not allow.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


class Markup(str):
    """A text that is HTML already."""


Child = str | None  # markup, a text to be escaped, or nothing


def element(tag: str, /, *children: Child, **attributes: str | float | bool | None) -> Markup:
    """``<tag attributes>children</tag>``. In an attribute's name ``_`` becomes ``-``, and a
    trailing one goes (``class_``). True gives an attribute without a value, False and None none."""
    attached = "".join(_attribute(key, value) for key, value in attributes.items())
    if tag in VOID:
        return Markup(f"<{tag}{attached}>")
    if tag in SHAPES and not children:
        return Markup(f"<{tag}{attached}/>")
    return Markup(f"<{tag}{attached}>{join(*children)}</{tag}>")


def join(*children: Child) -> Markup:
    """The children in their order."""
    return Markup("".join(map(_text, children)))


def prose(text: str) -> Markup:
    """A text, with the parts between backticks as code."""
    parts = text.split("`")
    return join(*(element("code", p) if i % 2 else p for i, p in enumerate(parts)))


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
    text = value if isinstance(value, str) else f"{value:g}"
    return f' {key}="{escape(_whole(text))}"'


def _whole(text: str) -> str:
    return _CONTROL.sub("\ufffd", text)
