"""Memory of this process in bytes: now, at its peak, and by component.

The peak is ``VmHWM`` in ``/proc/self/status``. ``ru_maxrss`` is unsuitable: the kernel carries it
over ``exec``, so a small child of a large parent reports its parent's peak. It is used only without
``/proc`` (macOS); Windows has ``peak_wset``.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    import torch

_STATUS = Path("/proc/self/status")
_MAPS = Path("/proc/self/maps")
_CLEAR_REFS = Path("/proc/self/clear_refs")


def resident_bytes() -> int:
    """Resident memory of this process now."""
    return int(psutil.Process().memory_info().rss)


def peak_resident_bytes() -> int:
    """Peak resident memory since the process began, or since ``reset_peak``."""
    if _STATUS.exists():
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    import resource  # absent on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # bytes on macOS, else KiB


def peak_bytes(device: str | torch.device = "cpu") -> int:
    """The peak that a record reports for ``device``: the CUDA allocator's, or the resident peak."""
    if not _on_cuda(device):
        return peak_resident_bytes()
    import torch

    return int(torch.cuda.max_memory_allocated(device))


def reset_peak(device: str | torch.device = "cpu") -> bool:
    """Reset the peaks to the memory held now; on CUDA the allocator's as well.

    Returns:
        False if the resident peak cannot be reset (not Linux, or not permitted). Then
        ``peak_resident_bytes`` still counts from the start of the process.
    """
    if _on_cuda(device):
        import torch

        torch.cuda.reset_peak_memory_stats(device)
    try:
        _CLEAR_REFS.write_text("5")  # man 5 proc: resets VmHWM
    except OSError:
        return False
    return True


def map_pages_of(parent: int) -> None:
    """Map the file pages (mostly library code) that the parent has mapped.

    Linux leaves such pages out of a forked process until it touches them. So a forked run would
    report some 100 MB less than a process that did its own imports. Does nothing off Linux, or
    without permission to read the parent's pages.
    """
    page = os.sysconf("SC_PAGE_SIZE") if _MAPS.exists() else 0
    try:
        with open(f"/proc/{parent}/pagemap", "rb", buffering=0) as pagemap:
            for line in _MAPS.read_text().splitlines():
                span, access, *_, path = line.split(maxsplit=5)
                if not access.startswith("r") or not path.startswith("/"):
                    continue
                start, end = (int(address, 16) for address in span.split("-"))
                pagemap.seek(8 * (start // page))  # man 5 proc_pid_pagemap: 64 bits for each page
                entries = memoryview(pagemap.read(8 * ((end - start) // page))).cast("Q")
                for i, entry in enumerate(entries):
                    if entry >> 63:  # present
                        _ = ctypes.c_char.from_address(start + i * page).value  # reading maps it
    except OSError:
        return


def module_bytes(module: torch.nn.Module) -> int:
    """Parameters and buffers of a module; a shared tensor counts once."""
    return _bytes([*module.parameters(), *module.buffers()])


def gradient_bytes(module: torch.nn.Module) -> int:
    """Gradients of the module's parameters: 0 before the first backward pass."""
    return _bytes(p.grad for p in module.parameters() if p.grad is not None)


def optimizer_bytes(optimizer: torch.optim.Optimizer) -> int:
    """State of an optimiser (Adam: two moments per parameter): 0 before the first step."""
    import torch

    values = (value for state in optimizer.state.values() for value in state.values())
    return _bytes(value for value in values if isinstance(value, torch.Tensor))


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    distinct = {id(tensor): _here(tensor) for tensor in tensors}
    return sum(tensor.numel() * tensor.element_size() for tensor in distinct.values())


def _here(tensor: torch.Tensor) -> torch.Tensor:
    """This process's shard of a DTensor; any other tensor as it is."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _on_cuda(device: str | torch.device) -> bool:
    return str(device).startswith("cuda")
