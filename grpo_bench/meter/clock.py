"""Wall time by phase."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class Phases:
    """Named timers that add up: ``with phases("rollout"): ...``.

    The time of an inner phase is subtracted from the outer one, so no second counts twice and the
    sum is the time spent in any phase. On a CUDA device each phase begins and ends with a
    synchronise: kernels belong to the phase that launched them.

    Attributes:
        seconds: wall seconds by phase, in the order in which the phases first ended.
    """

    def __init__(self, device: str | torch.device = "cpu") -> None:
        self.seconds: dict[str, float] = {}
        self._device = device
        self._inner: list[float] = []  # for each open phase, the seconds of the phases inside it

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = self._now()
        self._inner.append(0.0)
        try:
            yield
        finally:
            elapsed = self._now() - start
            own = elapsed - self._inner.pop()
            self.seconds[name] = self.seconds.get(name, 0.0) + own
            if self._inner:
                self._inner[-1] += elapsed

    def _now(self) -> float:
        if str(self._device).startswith("cuda"):
            import torch

            torch.cuda.synchronize(self._device)
        return time.perf_counter()
