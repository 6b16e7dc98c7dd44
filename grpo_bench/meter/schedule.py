"""When a run is evaluated while it learns."""

from __future__ import annotations


def is_due(share: float, evaluated: int, evaluations: int) -> bool:
    """Whether the next evaluation is due once a share of the budget is spent.

    The k-th of n is due at (k / n)^2 of the budget: closer together at first, where curves are
    steep and most scores are reached. The one before training is the 0th.
    """
    return share >= (evaluated / evaluations) ** 2
