"""Run records: one run, one folder. ``schema`` says what is in it, ``load`` reads many.

``load`` is not imported here: it needs pandas, which a run does not, and which takes a quarter of
a second.
"""

from grpo_bench.records.lock import Holder
from grpo_bench.records.schema import (
    STATUSES,
    TRAINING,
    VOLATILE,
    Manifest,
    RecordError,
    identity,
    read_manifest,
    run_folder,
)
from grpo_bench.records.store import Run, Sink, claim, holder, plan, settle

__all__ = [
    "STATUSES",
    "TRAINING",
    "VOLATILE",
    "Holder",
    "Manifest",
    "RecordError",
    "Run",
    "Sink",
    "claim",
    "holder",
    "identity",
    "plan",
    "read_manifest",
    "run_folder",
    "settle",
]
