"""Numbers as people read them: three significant figures, an en dash for what does not exist."""

from __future__ import annotations

import math
from collections.abc import Callable

ABSENT = "–"
NEVER = "∞"


def significant(x: float, digits: int = 3) -> str:
    """x rounded to significant figures, never in exponents: ``1,230,000``, ``12.3``, ``0.0123``."""
    if math.isnan(x):
        return ABSENT
    if x == 0 or math.isinf(x):
        return f"{x:.0f}"
    decimals = _decimals(x, digits)
    rounded = round(x, decimals)  # 9.999 becomes 10.0, which has one decimal less
    return f"{rounded:,.{max(0, _decimals(rounded, digits))}f}"


def in_units(unit: float) -> Callable[[float], str]:
    """The form that prints x / unit in significant figures."""
    return lambda x: significant(x / unit)


def ratio(x: float) -> str:
    """x with two decimals from 0.1 to 10, where three significant figures would make the width of
    a column jump at 1; elsewhere ``significant``."""
    return f"{x:.2f}" if 0.1 <= x < 9.995 else significant(x)


def whole(x: float) -> str:
    """x to the nearest whole number, all digits."""
    return ABSENT if math.isnan(x) else f"{x:,.0f}"


def share(x: float) -> str:
    """x with three decimals."""
    return ABSENT if math.isnan(x) else f"{round(x, 3) + 0.0:.3f}"  # + 0.0: no minus zero


def hundredths(x: float) -> str:
    """x with two decimals."""
    return ABSENT if math.isnan(x) else f"{round(x, 2) + 0.0:.2f}"


def difference(x: float) -> str:
    """x with its sign and three decimals."""
    return ABSENT if math.isnan(x) else f"{round(x, 3) + 0.0:+.3f}"


def need(form: Callable[[float], str]) -> Callable[[float], str]:
    """The form for what may be more than anybody has tried, which is infinite."""
    return lambda x: NEVER if math.isinf(x) else form(x)


def p_value(x: float) -> str:
    """x with three decimals, or that it is below all that these can say."""
    return "<0.001" if x < 0.001 else share(x)


def _decimals(x: float, digits: int) -> int:
    return digits - 1 - math.floor(math.log10(abs(x)))
