"""Bytes of tensors that are alive, by component, and their peak in each moment of a step.

Works on real tensors, and on fake ones (shapes that hold no numbers), so that a step of a model can
be counted which this machine could not hold.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Composition = dict[str, int]  # bytes by component


class LiveBytes(TorchDispatchMode):
    """While it is entered, sees every storage that an operation of torch makes, and when it goes.

        with LiveBytes(component) as live, live.moment("update"):
            loss.backward()
        live.peaks["update"]

    Fake tensors have no numbers, where a step asks for some. Each that Python is given is 1, two
    tensors are close, and a mask takes everything: so nothing that
    decides a shape may depend on other numbers.

    Args:
        component: of a tensor that has just been made; None: its storage does not count.
        others: bytes by component of what is no tensor, which count in the peaks too; asked before
            and after each operation.

    Attributes:
        live: bytes by component now.
        peaks: of each moment, bytes by component when most were alive.
    """

    def __init__(
        self,
        component: Callable[[Tensor], str | None],
        others: Callable[[], Composition] = dict,
    ) -> None:
        super().__init__()
        self.component, self.others = component, others
        self.live: Counter[str] = Counter()
        self.peaks: dict[str, Composition] = {}
        self._moment = ""
        self._total = self._highest = 0
        self._seen: dict[int, tuple[str, int]] = {}  # of each storage: component, bytes that count

    @contextmanager
    def moment(self, name: str) -> Iterator[None]:
        """Peaks belong to this moment until the block ends."""
        before = self.begin(name)
        try:
            yield
        finally:
            self.begin(before)

    def begin(self, name: str) -> str:
        """Peaks belong to this moment from now on; the name of the one that it ends. A moment that
        comes again keeps the higher of its peaks; one without a name has none."""
        before, self._moment = self._moment, name
        self._highest = sum(self.peaks.get(name, {}).values())
        self._note()
        return before

    def label(self, tensors: Iterable[Tensor], component: str) -> None:
        """Count the storages of tensors, also of those made before, to a component."""
        for tensor in tensors:
            key = self._see(tensor)
            before, size = self._seen[key]
            self.live[before] -= size
            self.live[component] += size
            self._seen[key] = component, size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Carry an operation out and look at what it made."""
        if isinstance(args[0] if args else None, FakeTensor):
            if func is torch.ops.aten._local_scalar_dense.default:
                return torch.ones((), dtype=args[0].dtype).tolist()
            if func is torch.ops.aten.allclose.default:
                return True
            if func is torch.ops.aten.index.Tensor:
                args = _everything(*args)
        self._note()
        made = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(made):
            if isinstance(leaf, Tensor):
                self._see(leaf)
        return made

    def _see(self, tensor: Tensor) -> int:
        """Count a storage that is new; its key."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._seen:
            named = self.component(tensor)
            component, size = ("", 0) if named is None else (named, storage.nbytes())
            self._seen[key] = component, size
            self.live[component] += size
            self._total += size
            weakref.finalize(storage, self._gone, key)
            self._note()
        return key

    def _gone(self, key: int) -> None:
        component, size = self._seen.pop(key)
        self.live[component] -= size
        self._total -= size

    def _note(self) -> None:
        if not self._moment:
            return
        others = self.others()
        total = self._total + sum(others.values())
        if total > self._highest:
            self._highest = total
            parts = self.live + Counter(others)
            self.peaks[self._moment] = {name: size for name, size in parts.items() if size}


def _everything(tensor: Tensor, places: list[Tensor | None]) -> tuple[Tensor, list[Tensor | None]]:
    """``tensor[mask]`` as what it is if all of the mask is true."""
    if len(places) != 1 or places[0] is None or places[0].dtype != torch.bool:
        return tensor, places
    rows = tensor.flatten(0, places[0].dim() - 1)
    return rows, [torch.arange(len(rows))]


def make_fake(modules: Iterable[nn.Module]) -> FakeTensorMode:
    """Let parameters and buffers of modules that were made on ``meta`` be fake tensors of the CPU.
    What is tied, or shared between modules, stays so.

    Returns:
        the mode that they belong to; it need not be active for them to be used, beside real ones.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    made: dict[int, Tensor] = {}

    def fake(tensor: Tensor) -> Tensor:
        if id(tensor) not in made:
            with mode:
                blank = torch.empty_like(tensor, device="cpu")
            is_parameter = isinstance(tensor, nn.Parameter)
            made[id(tensor)] = nn.Parameter(blank, tensor.requires_grad) if is_parameter else blank
        return made[id(tensor)]

    for module in modules:
        for part in module.modules():
            for tensors in (part._parameters, part._buffers):
                for name, tensor in tensors.items():
                    if tensor is not None and not isinstance(tensor, FakeTensor):
                        tensors[name] = fake(tensor)  # type: ignore[assignment]
    return mode
