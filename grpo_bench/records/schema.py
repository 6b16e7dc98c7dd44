"""What a run record is: its name, its manifest, the columns of its tables.

runs/<env>/<algo>/<budget>-seed<seed>-<hash8>/
    manifest.json     a ``Manifest``
    attempt-<n>.json  the process that made the n-th attempt (see ``grpo_bench.records.lock``)
    metrics.parquet   ``METRIC_SCHEMA``: one row per metric and moment
    eval.parquet      ``EVAL_SCHEMA`` and one float64 column per reward component: one row per
                      problem and evaluation
    completions.jsonl of a language model: some answers of each evaluation
    tensorboard/      event files, if they were asked for
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
VOLATILE = (
    *("checkpoint_minutes", "hydra", "progress", "results", "tensorboard", "timeout_s", "wandb"),
)

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


BUDGETS = METRIC_SCHEMA.names[:4]  # what a moment costs
CURVE = "eval/validation/success"  # the metric that curves are of
START = "start/"  # prefix of a metric's first value, beside its last

_NAME = re.compile(
    r"(?P<env>[^/]+)/(?P<algo>[^/]+)/(?P<budget>[^/]+)-seed(?P<seed>-?\d+)-[0-9a-f]{8}"
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
    # findings: of the doctor
    extra: dict[str, Any] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION

    def to_json(self) -> bytes:
        """The bytes of ``manifest.json``: the same manifest gives the same bytes."""
        text = json.dumps(dataclasses.asdict(self), indent=2, sort_keys=True)
        return text.encode() + b"\n"

    @property
    def rank(self) -> tuple[bool, str]:
        """Of two records of one run that of the higher rank counts: one that is ok before one that
        is not, then the later one."""
        return self.status == "ok", self.start or ""


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a run's folder.

    Raises:
        RecordError: there is none, it is not JSON, or not of this schema.
    """
    path = folder / "manifest.json"
    try:
        return parse_manifest(path.read_text(encoding="utf-8"), f"{path}")
    except FileNotFoundError:
        raise RecordError(f"{path}: missing; delete the folder to plan this run anew") from None
    except UnicodeDecodeError as error:
        raise RecordError(_not_json(f"{path}", error)) from None


def parse_manifest(text: str, place: str) -> Manifest:
    """The manifest that a text in JSON is; ``place`` is where it stands, for what is raised.

    Raises:
        RecordError: it is not JSON, or not of this schema.
    """
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise RecordError(_not_json(place, error)) from None
    version = fields.get("schema_version") if isinstance(fields, dict) else None
    if version != SCHEMA_VERSION:
        raise RecordError(f"{place}: schema_version {version}, expected {SCHEMA_VERSION}")
    expected = {f.name for f in dataclasses.fields(Manifest)}
    if set(fields) != expected:
        raise RecordError(f"{place}: keys {sorted(fields)}, expected {sorted(expected)}")
    if fields["status"] not in STATUSES:
        raise RecordError(f"{place}: status {fields['status']!r}, expected one of {STATUSES}")
    try:
        coordinates(fields["config"])
        if fields["provenance"] is not None:
            fields["provenance"] = Provenance(**fields["provenance"])
    except (TypeError, ValueError) as error:
        raise RecordError(f"{place}: {error}") from None
    return Manifest(**fields)


def _not_json(place: str, error: ValueError) -> str:
    return f"{place}: not JSON ({error}); delete it to run this anew"


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


def is_run(name: str) -> bool:
    """Whether a name, ``<env>/<algo>/<slug>-<hash8>``, is that of a run."""
    return _NAME.fullmatch(name) is not None


def run_order(name: str) -> tuple[str, str, str, int, str]:
    """What the name of a run says of it: environment, algorithm, budget, seed, and the rest. Runs
    stand in this order, with seeds as numbers."""
    match = _NAME.fullmatch(name)
    assert match is not None
    return match["env"], match["algo"], match["budget"], int(match["seed"]), name


def _sanitised(name: str) -> str:
    """A name that every file system takes as one folder, never hidden nor a parent."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", name).lstrip(".") or "_"
