"""Checks of the arguments of the statistics."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Values = NDArray[np.float64]


def one_per_seed(x: ArrayLike, name: str) -> Values:
    """x as an array (n,).

    Raises:
        ValueError: x has another shape.
    """
    values = np.asarray(x, dtype=np.float64)
    if values.ndim != 1:
        raise ValueError(f"{name} of shape {values.shape}: expected one value per seed, (n,)")
    return values


def pairs(a: ArrayLike, b: ArrayLike) -> tuple[Values, Values]:
    """a and b as arrays of the same length.

    Raises:
        ValueError: the lengths differ.
    """
    first, second = one_per_seed(a, "a"), one_per_seed(b, "b")
    if len(first) != len(second):
        raise ValueError(f"{len(first)} and {len(second)} values: expected the same number")
    return first, second


def one_per_task(scores: Sequence[ArrayLike], name: str) -> list[Values]:
    """Scores as one array (n_k,) per task k.

    Raises:
        ValueError: there are no tasks, or a task has no runs.
    """
    tasks = [one_per_seed(task, f"{name}[{k}]") for k, task in enumerate(scores)]
    if not tasks:
        raise ValueError(f"{name}: no tasks, expected an array (n,) for each task")
    for k, task in enumerate(tasks):
        if len(task) == 0:
            raise ValueError(f"{name}[{k}] is empty: expected at least one run of each task")
    return tasks


def check_share(value: float, name: str) -> None:
    """Raises:
    ValueError: value is not strictly between 0 and 1.
    """
    if not 0 < value < 1:
        raise ValueError(f"{name}={value}: expected a number between 0 and 1")
