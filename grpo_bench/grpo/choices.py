"""Names that a user can choose from, or the formula itself in place of its name."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


def choice(option: str, value: Any, table: Mapping[str, T]) -> T:
    """The entry of a table by its name, or the value itself if it is a function.

    Raises:
        ValueError: an unknown name, with all names.
    """
    if callable(value):
        return value
    check_choice(option, value, table)
    return table[value]


def check_choice(option: str, value: Any, names: Collection[Any]) -> None:
    """Raises ValueError with all names if the value is not one of them."""
    if value not in tuple(names):
        raise ValueError(f"{option}={value!r}: expected one of {', '.join(map(str, names))}")


def label(value: Any) -> str:
    """A chosen name, in quotes, or the name of a function, for messages."""
    return getattr(value, "__name__", repr(value))
