"""Observations that are not finite: looked for when no action can be drawn from them, so a check at
each step costs nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


@contextmanager
def naming_observations(obs: Any, slots: np.ndarray, starts: np.ndarray) -> Iterator[None]:
    """While actions are drawn, in place of torch's error about probabilities, ValueError with the
    first observation that is not finite, if there is one.

    Args:
        obs: of all sub-environments, (E, ...) or a dict of these.
        slots: (n,) the sub-environments that play.
        starts: (n,) the start of each of them.
    """
    try:
        yield
    except (RuntimeError, ValueError) as error:
        for name, values in (obs if isinstance(obs, dict) else {"": obs}).items():
            rows = torch.as_tensor(values).cpu().numpy()[slots]  # (n, ...)
            finite = np.isfinite(rows.reshape(len(rows), -1))  # (n, d)
            if not finite.all():
                row, place = np.argwhere(~finite)[0].tolist()
                raise ValueError(
                    f"the observation{f' {name!r}' if name else ''} of sub-environment "
                    f"{slots[row]} (start {starts[row]}) has {rows[row].flatten()[place]} at place "
                    f"{place}: expected finite numbers"
                ) from error
        raise
