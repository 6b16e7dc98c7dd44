"""Run records: one run, one folder. ``schema`` says what is in it."""

from grpo_bench.records.load import Results, load_results
from grpo_bench.records.schema import (
    STATUSES,
    VOLATILE,
    Manifest,
    RecordError,
    identity,
    read_manifest,
    run_folder,
)
from grpo_bench.records.store import Run, claim, plan, settle

__all__ = [
    "STATUSES",
    "VOLATILE",
    "Manifest",
    "RecordError",
    "Results",
    "Run",
    "claim",
    "identity",
    "load_results",
    "plan",
    "read_manifest",
    "run_folder",
    "settle",
]
