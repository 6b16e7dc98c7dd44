"""How a run ended, in one line."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from grpo_bench.config import ControlConfig, LanguageConfig, RunConfig
from grpo_bench.records import TRAINING, holder, read_manifest
from grpo_bench.records.store import last_line


@dataclass(frozen=True)
class Outcome:
    """The end of a run, as its record has it."""

    folder: Path
    config: RunConfig
    name: str  # of the run, in a sweep with the settings that tell it from the others
    status: str
    reason: str  # in one line; "" if it is ok
    score: float  # success on the split of its budget at the end; NaN if there is none
    reward: float  # the mean return there
    seconds: float  # of training
    speed: float  # transitions or tokens per second of training
    findings: list[str]  # of the doctor, by short name

    def line(self) -> str:
        """One line about it."""
        if self.status != "ok":
            reason = self.reason and f" ({self.reason})"
            return f"{self.name}: {self.status}{reason}, see {self.folder}"
        n = len(self.findings)
        found = f", {n} finding{'s' * (n > 1)}: {', '.join(self.findings)}" if n else ""
        if isinstance(self.config, LanguageConfig):
            rate = f"{self.speed:,.0f} tokens/s"
        else:
            rate = f"{self.speed / 1e3:,.1f} thousand transitions/s"
        reached = f"{self.score:.3f} right"
        if isinstance(self.config, ControlConfig):
            reached = f"mean return {self.reward:.4g}"
        split = self.config.budget.split
        return f"{self.name}: {reached} on {split}, {self.seconds:.1f} s of training, {rate}{found}"


def outcome(folder: Path, config: RunConfig, name: str) -> Outcome:
    """Read how a run ended, or that it has not.

    Raises:
        RecordError: the record cannot be read.
    """
    manifest = read_manifest(folder)
    status = manifest.status
    reason = ""
    if status == "running":
        reason = f"in process {holder(folder)}"
    elif status != "ok" and (folder / "error.txt").exists():
        reason = last_line((folder / "error.txt").read_text(encoding="utf-8"))
    last: dict[str, float] = {}
    if (folder / "metrics.parquet").exists():
        # ParquetFile, for read_table would take a folder called a=b for a column
        with pq.ParquetFile(folder / "metrics.parquet") as file:
            metrics = file.read(columns=["metric", "value"]).to_pydict()
        last = dict(zip(metrics["metric"], metrics["value"], strict=True))
    phases = [f"time/{phase}_seconds" for phase in TRAINING]
    seconds = [last[phase] for phase in phases if phase in last] or [math.nan]
    judged = f"eval/{config.budget.split}"
    score, reward = (last.get(f"{judged}/{of}", math.nan) for of in ("success", "reward"))
    speed = last.get("time/transitions_per_second", math.nan)
    findings = [text.partition(":")[0] for text in manifest.extra.get("findings", [])]
    trained, of = sum(seconds), (folder, config, name)
    return Outcome(*of, status, reason, score, reward, trained, speed, findings)
