"""Memory of real training steps of language models, in fresh processes with a hard limit, against
the prediction of ``python -m grpo_bench.plan``.

    python benchmarks/lm_memory.py --out results/reference
    python benchmarks/lm_memory.py --quick

A row is one configuration: the peak of the process, or of the card's allocator, over two iterations
(the optimiser has its state from the second on). Rows that are already in the table in ``--out``
are kept, unless ``--again``.

"Fits" means that the process got no memory beyond the limit (see ``grpo_bench.lm.measure``). The
benchmark first checks that the limit works, with a process that asks for too much.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from _compare import Table, Target, progress

from grpo_bench.config import LanguageConfig, composed
from grpo_bench.lm.memory import COMPONENTS, predict
from grpo_bench.lm.planning import measured, process_bytes
from grpo_bench.lm.shapes import SHAPES
from grpo_bench.plan import memory_of
from grpo_bench.report.text.numbers import significant
from grpo_bench.report.text.writers import Column

GIB = 2**30
WITHIN = 10.0  # per cent, of the prediction
LABELS = ("model", "trained", "algo", "lengths", "limit", "device")
READING = (
    "Lengths: problems × completions of each × most new tokens. Predicted and its parts: the worst "
    "moment of a step as planned, in GiB. Measured: the peak of a fresh process (VmHWM; on a card "
    "its allocator's) over two iterations. Does not fit: the process needed more than the limit. "
    "Seconds: of the second iteration, one thread."
)
GROUPS = {"ppo_lora": "lm/ppo_lora"}  # names in conf/algo that differ from ours
ALGOS = ("grpo", "ppo", "ppo_shared", "ppo_lora")
WHOLE, LORA = "all weights", "LoRA 16"
TRAINED = {
    WHOLE: (),
    LORA: ("model.lora.rank=16",),
    f"{WHOLE}, checkpointed": ("model.gradient_checkpointing=true",),
    f"{LORA}, checkpointed": ("model.lora.rank=16", "model.gradient_checkpointing=true"),
    f"{WHOLE}, 16-bit AdamW": ("model.optimizer=adamw_plain", "model.gradient_checkpointing=true"),
}
KL = ("algo.kl=k3", "+algo.kl_coef=0.04")
MAX_TOKENS = 1024  # of a micro-batch, or of one group if that is longer


class Row(NamedTuple):
    """A configuration to measure."""

    model: str
    trained: str  # a key of TRAINED
    algo: str  # one of ALGOS; with " + KL" it has a reference
    prompts: int = 2
    group_size: int = 8
    tokens: int = 16

    def config(self) -> LanguageConfig:
        """The configuration of ``python -m grpo_bench.run``."""
        algo, _, reference = self.algo.partition(" + ")
        overrides = [
            *(
                f"model={self.model}",
                f"algo={GROUPS.get(algo, algo)}",
                "env=arithmetic_text",
                "budget=smoke",
            ),
            f"env.train.episodes={self.prompts * self.group_size}",
            f"env.train.group_size={self.group_size}",
            f"env.generation.max_new_tokens={self.tokens}",
            f"env.train.max_tokens={max(MAX_TOKENS, self.group_size * self.tokens + 256)}",
            *TRAINED[self.trained],
            *(KL if reference else ()),
        ]
        if algo == "grpo":
            overrides.append(f"algo.group_size={self.group_size}")
        return composed(*overrides)

    def labels(self, limit: int, device: str) -> dict[str, str]:
        """The labels of its row."""
        lengths = f"{self.prompts} × {self.group_size} × {self.tokens}"
        values = (self.model, self.trained, self.algo, lengths, f"{limit / GIB:g} GiB", device)
        return dict(zip(LABELS, values, strict=True))


def rows(models: Sequence[str]) -> Iterator[Row]:
    """All rows of some models, the cheapest first."""
    for model in models:
        if model == "1b":
            yield from one_billion()
            continue
        for trained in (LORA, WHOLE):
            for algo in (*ALGOS, "grpo + KL"):
                yield Row(model, trained, algo)
        yield Row(model, f"{WHOLE}, checkpointed", "grpo")
        yield Row(model, WHOLE, "grpo", group_size=16, tokens=64)


def one_billion() -> Iterator[Row]:
    """Rows that show with which lengths and group sizes a 1B model fits into 16 GB."""
    for algo in ("grpo", "ppo_shared", "ppo_lora"):
        yield Row("1b", LORA, algo)
    yield Row("1b", LORA, "grpo", group_size=16, tokens=32)
    yield Row("1b", f"{LORA}, checkpointed", "grpo", group_size=16, tokens=64)
    yield Row("1b", f"{WHOLE}, 16-bit AdamW", "grpo")
    yield Row("1b", f"{WHOLE}, checkpointed", "grpo")
    yield Row("1b", LORA, "ppo")


def check_limit(limit: int) -> None:
    """Check that a process gets less memory than the limit, and does not get more.

    Raises:
        RuntimeError: the limit has no effect.
    """
    code = (
        "import sys, torch\nfrom grpo_bench.lm.measure import limit_memory\n"
        "limit, asked = map(int, sys.argv[1:])\nlimit_memory(limit, 'cpu')\n"
        "torch.empty(asked, dtype=torch.uint8)"
    )
    for asked, granted in ((limit // 8, True), (limit + 2**20, False)):
        command = [sys.executable, "-c", code, str(limit), str(asked)]
        done = subprocess.run(command, capture_output=True, text=True)
        if (done.returncode == 0) != granted:
            raise RuntimeError(f"limit {limit}, asked for {asked}: {done.stderr or 'granted'}")


@cache
def process_of(algo: str) -> int:
    """Bytes of a process without its tensors; they do not depend on the size of the model."""
    return process_bytes(Row("tiny", LORA, algo).config())


def measure(row: Row, limit: int, device: str) -> dict[str, Any]:
    """The numbers of a row, in GiB, and whether it fits."""
    config = row.config()
    prediction = predict(config, device)
    if device == "cpu":
        prediction = prediction.beside(process_of(row.algo))
    found: dict[str, Any] = {"predicted": prediction.peak / GIB, "moment": prediction.moment}
    found |= {name: size / GIB for name, size in prediction.components.items()}
    try:
        real = measured(config, device, limit)
    except MemoryError:
        return found | {"verdict": "does not fit"}
    peak = real["peak"] / GIB
    off = 100 * (found["predicted"] / peak - 1)
    verdict = "fits" if real["peak"] <= limit else "does not fit"
    known = {"measured": peak, "error": off, "seconds": real["seconds"], "tokens": real["tokens"]}
    return found | known | {"verdict": verdict}


def table_of(done: list[dict[str, Any]]) -> Table:
    """The rows so far."""
    gib = [Column(name, name, significant) for name in ("predicted", "measured")]
    table = Table(
        caption="Memory of training steps of language models, GiB",
        labels=(*LABELS, "verdict", "moment"),
        columns=[
            *gib,
            Column("error %", "error", significant),
            *(Column(name, name, significant) for name in COMPONENTS),
            Column("tokens", "tokens", significant),
            Column("seconds", "seconds", significant),
            Column("fits", "fits", significant),
        ],
        repeats=1,
        reading=READING,
        rows=[row | {"fits": float(row["verdict"] == "fits")} for row in done],
    )
    errors = [abs(row["error"]) for row in done if not pd.isna(row.get("error"))]
    if errors:
        word = "met" if max(errors) <= WITHIN else "missed"
        what, wanted = "prediction, largest error in %", f"at most {WITHIN:g}"
        table.targets.append(Target(what, wanted, word, max(errors), min(errors), max(errors)))
    for row in done:
        if (row["model"], row["trained"], row["algo"]) == ("1b", LORA, "grpo"):
            what = f"1b, {LORA}, grpo, {row['lengths']}: a step within {row['limit']}"
            word = "met" if row["verdict"] == "fits" else "missed"
            table.targets.append(Target(what, "fits", word))
    return table


def kept(path: Path) -> list[dict[str, Any]]:
    """The rows of an existing table."""
    if not path.exists():
        return []
    found = pd.read_csv(path, dtype=dict.fromkeys(LABELS, str)).to_dict("records")
    return [{str(name): value for name, value in row.items()} for row in found]


def main(arguments: list[str] | None = None) -> None:
    command = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command.add_argument("--models", nargs="+", choices=SHAPES, default=("135m", "1b"))
    command.add_argument("--memory", default="16GiB", help="limit of a process (%(default)s)")
    command.add_argument("--device", default="cpu", help="cpu or cuda (%(default)s)")
    command.add_argument("--again", action="store_true", help="measure existing rows again")
    command.add_argument("--quick", action="store_true", help="only the tiny model")
    command.add_argument("--out", type=Path, default=Path("results/benchmarks"), help="folder")
    options = command.parse_args(arguments)
    try:
        limit = memory_of(options.memory)
    except ValueError as error:
        command.error(str(error))
    if options.device == "cpu":
        check_limit(limit)
    done = kept(options.out / "lm_memory.csv")
    for row in rows(("tiny",) if options.quick else options.models):
        labels = row.labels(limit, options.device)
        before = [old for old in done if all(old[name] == labels[name] for name in LABELS)]
        if before and not options.again:
            continue
        progress(", ".join(labels.values()))
        done = [old for old in done if old not in before]
        done.append(labels | measure(row, limit, options.device))
        table_of(done).write(options.out, "lm_memory")


if __name__ == "__main__":
    main()
