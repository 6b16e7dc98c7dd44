"""Bars of memory: the table of ``benchmarks/memory.py``, one line for each component."""

from __future__ import annotations

import pandas as pd

PARTS = {  # columns of the table, in the order in which they are stacked: titles
    "interpreter": "interpreter",
    "code": "code",
    "first_use": "first use",
    "environment": "environment",
    "policy": "policy",
    "critic": "critic",
    "reference": "reference",
    "gradients": "gradients",
    "optimizer": "optimiser",
    "rollout": "rollout",
    "activations": "activations",
    "objects": "arrays and objects",
    "malloc": "kept by malloc",
}


def memory_parts(table: pd.DataFrame) -> pd.DataFrame:
    """What the peak of each run is made of.

    Args:
        table: ``memory.csv`` as read; bytes, NaN where an algorithm lacks a component.

    Returns:
        columns ``env``, ``algo``, ``component`` (a key of ``PARTS``) and ``bytes``, in the order of
        the table and of ``PARTS``, without components that an algorithm lacks.

    Raises:
        ValueError: the table lacks a column.
    """
    missing = [name for name in ("env", "algo", *PARTS) if name not in table]
    if missing:
        raise ValueError(
            f"memory.csv without {', '.join(missing)}: expected benchmarks/memory.py's"
        )
    parts = table.melt(["env", "algo"], [*PARTS], "component", "bytes", ignore_index=False)
    return parts.dropna().sort_index(kind="stable").reset_index(drop=True)
