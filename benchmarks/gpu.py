"""Everything that needs a CUDA card, in less than 8 minutes: the tests marked ``gpu``, and the GPU
rows of the tables of memory, of speed and of the 16 GB claim.

    make gpu                          # makes its own Python environment before the clock starts
    python benchmarks/gpu.py --dry-run

Each part has a time limit. If a part fails or runs out of time, the others still run, its files
stay, and the summary at the end names it.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd
import torch

from grpo_bench.meter import provenance
from grpo_bench.records.files import write_atomically
from grpo_bench.report import csv

ROOT = Path(__file__).resolve().parents[1]
WHOLE = 480  # seconds of all parts together
CRITICS = "grpo,ppo,ppo_shared,lm/ppo_lora"


@dataclass(frozen=True)
class Part:
    """One command.

    Attributes:
        command: the arguments of ``python``; ``{out}`` is the folder of the results.
        limit: seconds until it is stopped.
    """

    name: str
    what: str
    command: tuple[str, ...]
    limit: int


@dataclass(frozen=True)
class Ended:
    """How a part ended: ok, failed or out of time."""

    part: str
    status: str
    seconds: float


def sweep(results: str, *settings: str) -> tuple[str, ...]:
    """A sweep on the card, one run at a time, with records and tables in a folder."""
    place = ("device=cuda", "hydra.launcher.n_jobs=1", f"results={{out}}/{results}")
    return ("-m", "grpo_bench.run", "-m", "seed=1", *settings, *place)


def memory(model: str) -> tuple[str, ...]:
    """The rows of a model in the table of memory; rows finished before the limit are kept."""
    place = ("--device", "cuda", "--memory", "16GiB", "--out", "{out}")
    return ("benchmarks/lm_memory.py", "--models", model, *place)


PARTS = (
    Part("tests", "tests marked gpu", ("-m", "pytest", "-m", "gpu"), 80),
    Part(
        "sixteen",
        "1B within 16 GB, the limit of the allocator: bytes by component, predicted",
        memory("1b"),
        120,
    ),
    Part("memory", "the same for 135M", memory("135m"), 120),
    Part(
        "speed",
        "seconds of a step by phase, GRPO and PPO with each critic, 135M",
        sweep("lm", "model=135m", "env=arithmetic_text", f"algo={CRITICS}", "budget=smoke"),
        100,
    ),
    Part(
        "gym",
        "GRPO and PPO on the Gymnasium tasks",
        sweep("gym", "env=vlm,arithmetic", "algo=grpo,ppo", "budget=smoke"),
        50,
    ),
)


def run_part(part: Part, out: Path) -> Ended:
    """Run a part until it ends or reaches its limit; its output goes to ``out/NAME.log``."""
    command = [sys.executable, *(word.format(out=out) for word in part.command)]
    print(f"== {part.name}: {part.what} (at most {part.limit} s)", flush=True)
    began = time.perf_counter()
    with (out / f"{part.name}.log").open("w", encoding="utf-8") as log:
        # in its own session, so that ``stop`` also ends the processes that it starts
        running = subprocess.Popen(
            command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status = "failed" if running.wait(timeout=part.limit) else "ok"
        except subprocess.TimeoutExpired:
            status = "out of time"
        finally:
            stop(running)
    ended = Ended(part.name, status, round(time.perf_counter() - began, 1))
    print(f"   {ended.status} after {ended.seconds} s", flush=True)
    return ended


def stop(running: subprocess.Popen[bytes]) -> None:
    """Kill a process and the processes that it started."""
    try:
        os.killpg(running.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    running.wait()


def plan(parts: Sequence[Part]) -> str:
    """The commands, one line per part."""
    lines = [f"{part.limit:4} s  {part.name}: python {' '.join(part.command)}" for part in parts]
    return "\n".join([*lines, f"{sum(part.limit for part in parts):4} s  at most"])


def main(arguments: list[str] | None = None, parts: Sequence[Part] = PARTS) -> None:
    command = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    command.add_argument("--dry-run", action="store_true", help="only print the commands")
    command.add_argument("--out", type=Path, default=ROOT / "results/gpu", help="folder")
    options = command.parse_args(arguments)
    if options.dry_run:
        print(plan(parts))
        return
    if not torch.cuda.is_available():
        command.error("there is no CUDA device here; --dry-run prints the commands")
    options.out.mkdir(parents=True, exist_ok=True)
    ended = [run_part(part, options.out) for part in parts]
    table = pd.DataFrame([asdict(one) for one in ended])
    machine = provenance("cuda")
    table["card"], table["torch"] = machine.accelerator, machine.versions["torch"]
    table["commit"] = machine.commit
    write_atomically(options.out / "gpu.csv", csv(table).encode())
    print(table.to_string(index=False))
    if wrong := [one.part for one in ended if one.status != "ok"]:
        sys.exit(f"Not ok: {', '.join(wrong)}. See {options.out}/NAME.log")


if __name__ == "__main__":
    main()
