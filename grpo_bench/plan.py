"""``python -m grpo_bench.plan model=1b memory=16GB``: the memory of a run before it runs.

    python -m grpo_bench.plan model=1b memory=16GB
    python -m grpo_bench.plan model=1b memory=16GB model.lora.rank=16

It takes the settings of ``python -m grpo_bench.run``, and prints the peak of a step by component
and moment (see ``grpo_bench.lm.memory``). If that does not fit, it also prints the peak with each
possible change.
"""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, open_dict
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from grpo_bench.config import LanguageConfig, resolved
from grpo_bench.lm.planning import alternatives, predicted
from grpo_bench.runs.door import program
from grpo_bench.runs.stopping import stopping

if TYPE_CHECKING:
    from grpo_bench.lm.memory import Prediction

GIB = 2**30
PIPED_WIDTH = 100  # characters, without a terminal and without COLUMNS
UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", start=1):
    UNITS |= {f"{_letter}B": 1000**_power, f"{_letter}IB": 1024**_power}


def memory_of(text: Any) -> int:
    """Bytes, from ``16GB`` (1000^3), ``16GiB`` (1024^3) or a plain number of bytes.

    Raises:
        ValueError: none of those, or 0.
    """
    found = re.fullmatch(r"([0-9.]+(?:E[0-9]+)?) ?([KMGT]?I?B|)", str(text).strip().upper())
    try:
        size = int(float(found[1]) * UNITS[found[2]]) if found else 0
    except (KeyError, OverflowError, ValueError):
        size = 0
    if size < 1:
        raise ValueError(f"memory={text}: expected 16GB, 16GiB or a number of bytes, such as 16e9")
    return size


def moments_table(prediction: Prediction) -> Table:
    """GiB by component and moment; the moment of the peak is marked."""
    from grpo_bench.lm.memory import COMPONENTS

    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, show_footer=True)
    table.add_column("GiB", footer="sum")
    for name, parts in prediction.moments.items():
        mark = " ◄" if name == prediction.moment else ""
        table.add_column(name + mark, f"{sum(parts.values()) / GIB:.2f}", justify="right")
    for component in COMPONENTS:
        sizes = [parts.get(component, 0) for parts in prediction.moments.values()]
        if any(sizes):
            table.add_row(component, *(f"{size / GIB:.2f}" if size else "" for size in sizes))
    return table


def device_of(name: str) -> str:
    """``cpu`` or ``cuda``: the device of the plan, which this machine need not have.

    Raises:
        ValueError: neither of them, nor ``auto``.
    """
    import torch

    kind = name.split(":")[0]
    if kind == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"device={name}: expected auto, cpu or cuda")
    return kind


def alternatives_table(rows: Iterable[tuple[str, str, int]], memory: int) -> Table:
    """The changes, the peak with each, and whether it fits."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("change")
    table.add_column("peak GiB", justify="right")
    table.add_column("fits")
    table.add_column("what it costs")
    for change, cost, peak in rows:
        table.add_row(change, f"{peak / GIB:.2f}", "yes" if peak <= memory else "no", cost)
    return table


def report(config: LanguageConfig, device: str, memory: int | None, console: Console) -> None:
    """Print the memory of a run; if it is more than ``memory`` bytes, also changes."""
    prediction = predicted(config, device)
    model, rank = config.model, config.model.lora.rank
    console.print(
        f"{model.name}, {f'LoRA of rank {rank}' if rank else 'all weights trained'}, "
        f"{config.algo.name} on {config.env.name}, {device}: peak "
        f"{prediction.peak / GIB:.2f} GiB, in the moment of {prediction.moment}."
    )
    console.print(moments_table(prediction))
    if device == "cuda":
        console.print("Without the CUDA context, which takes more.")
    if memory is None:
        return
    fits = prediction.peak <= memory
    said = f"{memory / GIB:.2f} GiB ({memory / 1e9:.1f} GB)"
    console.print(f"{'Fits into' if fits else 'Does not fit into'} {said}.")
    if not fits:
        rows = alternatives(config, device, prediction, memory)
        console.print(alternatives_table(rows, memory))


@program("plan")
def main(config: DictConfig) -> None:
    """Predict, and print."""
    gc.disable()  # as in grpo_bench.run: imports leave no garbage
    from grpo_bench.runs.job import check

    gc.enable()
    try:
        memory = None if config.memory is None else memory_of(config.memory)
        with open_dict(config):
            del config["memory"]
        if "model" not in config or "generation" not in config.env:
            raise ValueError(
                f"env={config.env.name} and {'a' if 'model' in config else 'no'} model: expected a "
                "language model, such as model=1b, and one of env=arithmetic_text,format_text"
            )
        settings = resolved(config)
        assert isinstance(settings, LanguageConfig)
        device = device_of(settings.device)
        if (backend := settings.env.generation.backend) != "native":
            raise ValueError(
                f"env.generation.backend={backend}: expected native, no other can be planned"
            )
        check(settings.changed({"device": "cpu"}))
        console = Console(highlight=False)
        if not console.is_terminal and "COLUMNS" not in os.environ:
            console.width = PIPED_WIDTH
        report(settings, device, memory, console)
    except ValueError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    stopping(main)
