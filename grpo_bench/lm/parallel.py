"""The processes that train one model together; here, one."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor


class World:
    """One process: everything is its own."""

    rank = 0
    size = 1

    def own(self, n: int) -> slice:
        """This rank's part of n things in order."""
        return slice(0, n)

    def gather(self, rows: Tensor) -> Tensor:
        """The rows (k, ...) of all ranks, in order."""
        return rows

    def sum_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Replace each gradient by the sum of all ranks'."""
