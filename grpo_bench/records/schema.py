"""What a run record is: its name, its manifest, the columns of its tables.

runs/<env>/<algo>/<budget>-seed<seed>-<hash8>/
    manifest.json     a ``Manifest``
    attempt-<n>.json  the process that made the n-th attempt (see ``grpo_bench.records.lock``)
    metrics.parquet   ``METRIC_SCHEMA``: one row per metric and moment
    eval.parquet      ``EVAL_SCHEMA`` and one float64 column per reward component: one row per
                      problem and evaluation
    completions.jsonl of a language model: some answers of each evaluation
    error.txt         the traceback, if it failed
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import pyarrow as pa

from grpo_bench.meter.provenance import Provenance

SCHEMA_VERSION = 1
Status = Literal["planned", "running", "ok", "failed", "oom", "nan", "killed", "timeout"]
STATUSES: tuple[Status, ...] = get_args(Status)

# Top-level keys of a configuration that do not determine the result.
VOLATILE = ("hydra", "progress", "results", "timeout_s")

# Phases that are training, on environments and of language models; a record has their seconds as
# ``time/<phase>_seconds``.
TRAINING = ("rollout", "generation", "scoring", "logprobs", "critic", "update")

METRIC_SCHEMA = pa.schema(
    [
        ("transitions", pa.int64()),
        ("gradient_steps", pa.int64()),
        ("seconds", pa.float64()),
        ("peak_bytes", pa.int64()),
        ("metric", pa.string()),
        ("value", pa.float64()),
    ]
)
EVAL_SCHEMA = pa.schema(
    [
        ("split", pa.string()),
        ("transitions", pa.int64()),
        ("problem_id", pa.int64()),
        ("reward", pa.float64()),
        ("success", pa.float64()),
        ("length", pa.int64()),
    ]
)


class RecordError(ValueError):
    """A record that cannot be read. The message names the file and what would be right."""


@dataclass(frozen=True)
class Manifest:
    """Everything about a run but its numbers. A planned run has a configuration only."""

    status: Status
    config: dict[str, Any]  # resolved; with the names of env, algo and budget, and the seed
    attempt: int = 0
    seeds: dict[str, Any] = field(default_factory=dict)  # of every random stream
    provenance: Provenance | None = None
    concurrency: int | None = None  # runs that went on beside this one, itself included
    start: str | None = None  # ISO 8601, UTC
    end: str | None = None
    # findings: of the doctor; company: seeds that learned in one process with it, itself included
    extra: dict[str, Any] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION

    def to_json(self) -> bytes:
        """The bytes of ``manifest.json``: the same manifest gives the same bytes."""
        text = json.dumps(dataclasses.asdict(self), indent=2, sort_keys=True)
        return text.encode() + b"\n"


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a run's folder.

    Raises:
        RecordError: there is none, it is not JSON, or not of this schema.
    """
    path = folder / "manifest.json"
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecordError(f"{path}: missing; delete the folder to plan this run anew") from None
    except ValueError as error:
        raise RecordError(f"{path}: not JSON ({error}); delete it to run this anew") from None
    version = fields.get("schema_version") if isinstance(fields, dict) else None
    if version != SCHEMA_VERSION:
        raise RecordError(f"{path}: schema_version {version}, expected {SCHEMA_VERSION}")
    expected = {f.name for f in dataclasses.fields(Manifest)}
    if set(fields) != expected:
        raise RecordError(f"{path}: keys {sorted(fields)}, expected {sorted(expected)}")
    if fields["status"] not in STATUSES:
        raise RecordError(f"{path}: status {fields['status']!r}, expected one of {STATUSES}")
    try:
        coordinates(fields["config"])
        if fields["provenance"] is not None:
            fields["provenance"] = Provenance(**fields["provenance"])
    except (TypeError, ValueError) as error:
        raise RecordError(f"{path}: {error}") from None
    return Manifest(**fields)


def coordinates(config: dict[str, Any]) -> tuple[str, str, str, int]:
    """Names of environment, algorithm and budget, and the seed.

    Raises:
        ValueError: one of them is missing, or the seed is not a whole number.
    """
    try:
        env, algo, budget = (str(config[group]["name"]) for group in ("env", "algo", "budget"))
        seed = config["seed"]
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"config={config}: expected env.name, algo.name, budget.name and seed ({error!r})"
        ) from None
    if not isinstance(seed, int):
        raise ValueError(f"seed={seed!r}: expected a whole number")
    return env, algo, budget, seed


def identity(config: dict[str, Any]) -> str:
    """Eight hex digits that name what determines a result: sha256 over canonical JSON of the
    resolved configuration without ``VOLATILE``, and the schema version.

    Raises:
        ValueError: the configuration holds something that JSON has no form for.
    """
    determining = {key: value for key, value in config.items() if key not in VOLATILE}
    content = {"schema_version": SCHEMA_VERSION, "config": determining}
    try:
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"config={config}: does not go into JSON ({error})") from None
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def run_folder(results: Path, config: dict[str, Any]) -> Path:
    """Where the record of this configuration lies: ``<env>/<algo>/<slug>-<hash8>``."""
    env, algo, budget, seed = coordinates(config)
    slug = f"{_sanitised(budget)}-seed{seed}"
    return results / _sanitised(env) / _sanitised(algo) / f"{slug}-{identity(config)}"


def _sanitised(name: str) -> str:
    """A name that every file system takes as one folder, never hidden nor a parent."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", name).lstrip(".") or "_"
