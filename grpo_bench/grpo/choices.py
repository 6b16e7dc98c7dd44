"""Names that a user can choose from."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


def choice(option: str, name: Any, table: Mapping[str, T]) -> T:
    """The entry of a table; ValueError with all its names if there is none."""
    check_choice(option, name, table)
    return table[name]


def check_choice(option: str, value: Any, names: Collection[Any]) -> None:
    """Raises ValueError with all names if the value is not one of them."""
    if value not in tuple(names):
        raise ValueError(f"{option}={value!r}: expected one of {', '.join(map(str, names))}")
