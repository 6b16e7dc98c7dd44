"""``python -m grpo_bench.plan model=1b memory=16GB``: the memory of a run, before it runs.

    python -m grpo_bench.plan model=1b memory=16GB
    python -m grpo_bench.plan model=1b memory=16GB model.lora.rank=16

Takes the settings of ``python -m grpo_bench.run``. Gives the peak of a step by component and moment
(see ``grpo_bench.lm.memory``), and where it does not fit, what each change would make of it.
"""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from typing import TYPE_CHECKING, Any, NamedTuple

import hydra
from omegaconf import DictConfig, open_dict
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from grpo_bench.config import CONF, Config, resolved
from grpo_bench.runs.stopping import stopping

if TYPE_CHECKING:
    from grpo_bench.lm.memory import Prediction

GIB = 2**30
PIPED_WIDTH = 100  # characters, where neither a terminal nor COLUMNS says how wide it is
UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", start=1):
    UNITS |= {f"{_letter}B": 1000**_power, f"{_letter}IB": 1024**_power}
NO_MEMORY = ("MemoryError", "can't allocate memory", "OutOfMemoryError", "bad_alloc")
# What a run imports, and then its steps.
CHILD = """
import grpo_bench.run, grpo_bench.runs.job, grpo_bench.lm.run, grpo_bench.lm.measure
grpo_bench.lm.measure.report()
"""


class Change(NamedTuple):
    """What could be changed, as it is written on the command line, and what that costs."""

    values: dict[str, Any]  # by dotted name
    cost: str

    def __str__(self) -> str:
        return " ".join(f"{name}={str(value).lower()}" for name, value in self.values.items())

    def of(self, config: Config) -> Config:
        """The configuration with the change."""
        changed = deepcopy(config)
        for name, value in self.values.items():
            *groups, key = name.split(".")
            group = changed
            for part in groups:
                group = group[part]
            group[key] = value
        return changed


def memory_of(text: Any) -> int:
    """Bytes, from ``16GB`` (1000^3), ``16GiB`` (1024^3) or a plain number of bytes.

    Raises:
        ValueError: it is none of those, or nothing.
    """
    found = re.fullmatch(r"([0-9.]+(?:E[0-9]+)?) ?([KMGT]?I?B|)", str(text).strip().upper())
    try:
        size = int(float(found[1]) * UNITS[found[2]]) if found else 0
    except (KeyError, OverflowError, ValueError):
        size = 0
    if size < 1:
        raise ValueError(f"memory={text}: expected 16GB, 16GiB or a number of bytes, such as 16e9")
    return size


def changes(config: Config, device: str, group_tokens: int) -> Iterator[Change]:
    """What makes a step smaller, what changes least first: the same numbers in smaller parts or
    with more time, then fewer or shorter completions, then another critic and other weights.

    Args:
        group_tokens: of the longest group, which a micro-batch has to hold.
    """
    model, env = config["model"], config["env"]
    train, algo = env["train"], config["algo"]
    if group_tokens < train["max_tokens"]:
        yield Change(
            {"env.train.max_tokens": group_tokens}, "smaller micro-batches: a little slower"
        )
    if not model["gradient_checkpointing"]:
        yield Change({"model.gradient_checkpointing": True}, "about a third more time")
    if model["dtype"] == "float32":
        yield Change({"model.dtype": "bfloat16"}, "weights are rounded; AdamW keeps float32 ones")
    group_size = algo.get("group_size") or train["group_size"]
    fewest = group_size * algo["minibatches"]
    if fewest < train["episodes"]:
        yield Change({"env.train.episodes": fewest}, "fewer problems in an iteration")
    tokens = env["generation"]["max_new_tokens"]
    if tokens > 1:
        yield Change({"env.generation.max_new_tokens": tokens // 2}, "shorter completions")
    if algo.get("critic") == "separate":
        yield Change({"algo.critic": "lora"}, "the critic learns adapters only")
        yield Change({"algo.critic": "shared"}, "the critic is a layer on the policy")
    if model["optimizer"] == "adamw" and model["dtype"] == "bfloat16" and not model["lora"]["rank"]:
        smaller = "adamw_8bit" if device == "cuda" else "adamw_plain"
        yield Change({"model.optimizer": smaller}, "no float32 masters: small updates are lost")
    if not model["lora"]["rank"]:
        yield Change({"model.lora.rank": 16}, "the policy learns adapters only")


def measured(config: Config, device: str, limit: int | None = None) -> dict[str, Any]:
    """Real steps of a configuration in a fresh process: ``lm.measure.Measured`` as a dict.

    Args:
        limit: bytes beyond which the process fails.

    Raises:
        MemoryError: it would have taken more than the limit, or than there is.
        RuntimeError: it failed otherwise; with what it had to say.
    """
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        input=json.dumps({"config": config, "device": device, "limit": limit}),
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": str(config["threads"])},
    )
    if done.returncode:
        said = done.stderr.strip() or f"exit status {done.returncode}"
        raise (MemoryError if any(sign in said for sign in NO_MEMORY) else RuntimeError)(said)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def small(config: Config) -> Config:
    """The same run of a tiny model, one group at a time."""
    tiny = {
        "model.name": "tiny",
        "model.source": "tiny",
        "model.optimizer": "adamw",
        "model.lora.target_modules": "all-linear",  # names may be of layers that tiny lacks
        "env.generation.max_new_tokens": 8,
        "env.train.max_tokens": 10**6,
    }
    return Change(tiny, "").of(config)


def process_bytes(config: Config) -> int:
    """What a process takes beside its tensors, and what malloc keeps of them: the interpreter, and
    the code and data of libraries. Measured in one that takes steps of a tiny model."""
    from grpo_bench.lm.memory import predict

    peak: int = measured(small(config), "cpu")["peak"]
    return peak - predict(small(config)).peak


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
    """``cpu`` or ``cuda``: what is planned for, which need not be here.

    Raises:
        ValueError: it is neither, nor ``auto``.
    """
    import torch

    kind = name.split(":")[0]
    if kind == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"device={name}: expected auto, cpu or cuda")
    return kind


def predicted(config: Config, device: str) -> Prediction:
    """What a run takes, with its process."""
    from grpo_bench.lm.memory import predict

    with ThreadPoolExecutor(1) as beside:  # a process of its own, while this one reckons
        process = beside.submit(process_bytes, config) if device == "cpu" else None
        prediction = predict(config, device)
        return prediction if process is None else prediction.beside(process.result())


def alternatives(
    config: Config, device: str, prediction: Prediction, memory: int
) -> Iterator[tuple[str, str, int]]:
    """What would take less: the change, its cost, and the peak in bytes. First each alone; if none
    fits, the first of them together, as many as it takes."""
    from grpo_bench.lm.memory import MALLOC_VARIABLE, predict

    aside = prediction.components.get("process", 0)
    if "malloc" in prediction.components:
        variable = f"{MALLOC_VARIABLE}=131072 in the environment"
        yield variable, "slower: pages are made anew", prediction.without("malloc").peak
    possible = list(changes(config, device, prediction.group_tokens))
    fits = False
    for change in possible:
        peak = predict(change.of(config), device).beside(aside).peak
        fits = fits or peak <= memory
        yield str(change), change.cost, peak
    if fits or not possible:
        return
    together = possible[0]
    for change in possible[1:]:
        together = Change(together.values | change.values, "")
        peak = predict(together.of(config), device).beside(aside).peak
        if peak <= memory or change is possible[-1]:
            yield str(together), "all of these", peak
            return


def alternatives_table(rows: Iterable[tuple[str, str, int]], memory: int) -> Table:
    """What to change, the peak with it, and whether that fits."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("change")
    table.add_column("peak GiB", justify="right")
    table.add_column("fits")
    table.add_column("what it costs")
    for change, cost, peak in rows:
        table.add_row(change, f"{peak / GIB:.2f}", "yes" if peak <= memory else "no", cost)
    return table


def report(config: Config, device: str, memory: int | None, console: Console) -> None:
    """Print what a run takes; where that is more than ``memory`` bytes, what would take less."""
    prediction = predicted(config, device)
    model, rank = config["model"], config["model"]["lora"]["rank"]
    console.print(
        f"{model['name']}, {f'LoRA of rank {rank}' if rank else 'all weights trained'}, "
        f"{config['algo']['name']} on {config['env']['name']}, {device}: peak "
        f"{prediction.peak / GIB:.2f} GiB, in the moment of {prediction.moment}."
    )
    console.print(moments_table(prediction))
    if device == "cuda":
        console.print("What torch's allocator is asked for; the CUDA context comes on top.")
    if memory is None:
        return
    fits = prediction.peak <= memory
    said = f"{memory / GIB:.2f} GiB ({memory / 1e9:.1f} GB)"
    console.print(f"{'Fits into' if fits else 'Does not fit into'} {said}.")
    if not fits:
        rows = alternatives(config, device, prediction, memory)
        console.print(alternatives_table(rows, memory))


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="plan")
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
        device = device_of(settings["device"])
        if (backend := settings["env"]["generation"]["backend"]) != "native":
            raise ValueError(
                f"env.generation.backend={backend}: expected native, which is what is planned"
            )
        check({**settings, "device": "cpu"})
        console = Console(highlight=False)
        if not console.is_terminal and "COLUMNS" not in os.environ:
            console.width = PIPED_WIDTH
        report(settings, device, memory, console)
    except ValueError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    stopping(main)
