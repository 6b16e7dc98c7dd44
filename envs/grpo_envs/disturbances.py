"""What the world may change between two episodes of one problem: global random generators and the
clock. An environment that keeps the group contract does not notice."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import numpy as np

CLOCKS = ("time", "perf_counter", "monotonic")  # of the module time, each also in nanoseconds
SHIFT = 100_003.7  # seconds, more than a day: another day, hour, minute and second


@contextmanager
def disturbed(n: int) -> Iterator[None]:
    """The n-th disturbance: the generators of Python, numpy and torch have other states, and the
    clock is later. torch only takes part where somebody has imported it."""
    torch = sys.modules.get("torch")
    with ExitStack() as stack:
        stack.callback(random.setstate, random.getstate())
        stack.callback(np.random.set_state, np.random.get_state())  # noqa: NPY002
        random.seed(n)
        np.random.seed(n)  # noqa: NPY002
        if torch is not None:
            stack.callback(torch.set_rng_state, torch.get_rng_state())
            torch.manual_seed(n)
        for name in CLOCKS:
            stack.enter_context(mock.patch.object(time, name, _later(name, n * SHIFT)))
            nanoseconds = _later(f"{name}_ns", int(n * SHIFT * 1e9))
            stack.enter_context(mock.patch.object(time, f"{name}_ns", nanoseconds))
        yield


def _later(name: str, shift: float) -> Any:
    clock = getattr(time, name)
    return lambda: clock() + shift
