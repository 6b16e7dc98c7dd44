"""When to evaluate during training."""

from __future__ import annotations


def is_due(share: float, evaluated: int, evaluations: int) -> bool:
    """Whether the next evaluation is due once a share of the budget is spent.

    Evaluation k of n is due at (k / n)^2 of the budget. That is denser at the start, where curves
    are steep and most scores are reached. Number 0 is the evaluation before training.
    """
    return share >= (evaluated / evaluations) ** 2
