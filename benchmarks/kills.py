"""Kill runs at random moments, start them again, and compare their records with undisturbed ones.

    python benchmarks/kills.py --kills 100

Six kinds of run take turns. Each is killed (SIGKILL) again and again until it ends by itself; then
its metrics (times and memory apart), evaluations and completions must be those of a run that was
left alone, and the next one begins. Writes ``kills.md``.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from itertools import cycle
from pathlib import Path

import numpy as np
import pandas as pd

from grpo_bench.records.files import write_atomically

FREQUENT = ("tuned=none", "seed=1", "checkpoint_minutes=0.005", "device=cpu", "threads=1")
GYM = ("budget=smoke", "budget.evaluations=4", *FREQUENT)
LANGUAGE = ("model=tiny", "env=arithmetic_text", "budget.transitions=8000", *FREQUENT)
KINDS = {
    "GRPO, one step": ("env=vlm_synthetic", "algo=grpo", "budget.transitions=100_000", *GYM),
    "GRPO, tokens, warm-up": ("env=arithmetic", "algo=grpo_paper", *GYM),
    "GRPO, control": ("env=cartpole", "algo=grpo_rtg", "budget.transitions=20_000", *GYM),
    "PPO (starts over)": ("env=vlm_synthetic", "algo=ppo", "budget.transitions=20_000", *GYM),
    "language model, GRPO": ("algo=grpo", *LANGUAGE, "budget.evaluations=2"),
    "language model, PPO": ("algo=ppo", *LANGUAGE, "budget.evaluations=2"),
}


def start(words: tuple[str, ...], results: Path) -> subprocess.Popen[bytes]:
    """The run as a process of its own."""
    command = [sys.executable, "-m", "grpo_bench.run", *words, f"results='{results}'"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, **quiet)


def content(results: Path) -> tuple[pd.DataFrame, pd.DataFrame, str]:
    """What two runs must have in common."""
    (manifest,) = results.glob("*/*/*/manifest.json")
    folder = manifest.parent
    metrics = pd.read_parquet(folder / "metrics.parquet").drop(columns=["seconds", "peak_bytes"])
    kept = metrics[~metrics["metric"].str.startswith(("time/", "memory/"))].reset_index(drop=True)
    completions = folder / "completions.jsonl"
    text = completions.read_text("utf-8") if completions.exists() else ""
    return kept, pd.read_parquet(folder / "eval.parquet"), text


def main() -> None:
    """Kill, compare, and write the table; exit status 1 if a record differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks"))
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    counts = {kind: [0, 0, 0] for kind in KINDS}  # kills, runs that ended, those that are equal
    with tempfile.TemporaryDirectory() as place:
        alone, seconds = {}, {}
        for kind, words in KINDS.items():
            began = time.monotonic()
            if start(words, Path(place, "alone", kind)).wait():
                raise SystemExit(f"{kind}: the undisturbed run failed")
            seconds[kind] = time.monotonic() - began
            alone[kind] = content(Path(place, "alone", kind))
        for number, kind in enumerate(cycle(KINDS)):
            results = Path(place, str(number))
            while True:  # until it ends by itself
                process = start(KINDS[kind], results)
                limit = rng.uniform(0.3, 1.2) * seconds[kind]
                if counts[kind][0] * len(KINDS) >= options.kills:
                    limit = None
                try:
                    code = process.wait(limit)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                    counts[kind][0] += 1
                    continue
                break
            metrics, evaluations, text = content(results)
            same = code == 0 and text == alone[kind][2]
            same &= metrics.equals(alone[kind][0]) and evaluations.equals(alone[kind][1])
            counts[kind][1] += 1
            counts[kind][2] += same
            kills = sum(n for n, _, _ in counts.values())
            print(f"{kills} kills; {kind}: {'equal' if same else 'DIFFERENT'}", flush=True)
            if kills >= options.kills:
                break
    lines = ["| run | kills | runs that ended | equal records |", "|---|--:|--:|--:|"]
    lines += [f"| {kind} | {a} | {b} | {c} |" for kind, (a, b, c) in counts.items()]
    total = [sum(column) for column in zip(*counts.values(), strict=True)]
    lines.append(f"| all | {total[0]} | {total[1]} | {total[2]} |")
    options.out.mkdir(parents=True, exist_ok=True)
    write_atomically(options.out / "kills.md", ("\n".join(lines) + "\n").encode())
    print(*lines, sep="\n")
    if total[1] != total[2]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
