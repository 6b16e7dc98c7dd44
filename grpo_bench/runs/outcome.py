"""How a run ended, in one line."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from grpo_bench.config import ControlConfig, LanguageConfig, RunConfig
from grpo_bench.records import TRAINING, holder, read_manifest
from grpo_bench.records.files import read_parquet
from grpo_bench.records.texts import printable, reason_of
from grpo_bench.records.whole import damage


@dataclass(frozen=True)
class Outcome:
    """The end of a run, as its record has it."""

    folder: Path
    config: RunConfig
    name: str  # of the run, in a sweep with the settings that tell it from the others
    status: str  # of the record, or "damaged": it is ok, but a table cannot be read
    reason: str  # in one line; "" if it is ok
    score: float  # success on the split of its budget at the end; NaN if there is none
    reward: float  # the mean return there
    seconds: float  # of training
    speed: float  # transitions or tokens per second of training
    findings: list[str]  # of the doctor, by short name

    def again(self) -> str:
        """One line about a damaged record, before the run is executed again."""
        return printable(f"{self.name}: its record is damaged, it is executed again: {self.reason}")

    def line(self) -> str:
        """One line about it, for a terminal."""
        return printable(self._line())

    def _line(self) -> str:
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
    status: str = manifest.status
    reason = ""
    if status == "running":
        reason = f"in process {holder(folder)}"
    elif status != "ok" and (folder / "error.txt").exists():
        reason = reason_of((folder / "error.txt").read_text(encoding="utf-8", errors="replace"))
    elif status == "ok" and (reason := damage(folder)):
        status = "damaged"
    last = last_values(folder) if status == "ok" else {}
    phases = [f"time/{phase}_seconds" for phase in TRAINING]
    seconds = [last[phase] for phase in phases if phase in last] or [math.nan]
    judged = f"eval/{config.budget.split}"
    score, reward = (last.get(f"{judged}/{of}", math.nan) for of in ("success", "reward"))
    speed = last.get("time/transitions_per_second", math.nan)
    findings = [text.partition(":")[0] for text in manifest.extra.get("findings", [])]
    trained, of = sum(seconds), (folder, config, name)
    return Outcome(*of, status, reason, score, reward, trained, speed, findings)


def last_values(folder: Path) -> dict[str, float]:
    """The last value of each metric of a run."""
    table = read_parquet(folder / "metrics.parquet", ["metric", "value"])
    metrics = {"metric": [], "value": []} if table is None else table.to_pydict()
    return dict(zip(metrics["metric"], metrics["value"], strict=True))
