"""Time, memory and provenance of a run. torch is imported only when a tensor or a card is measured,
so this package is cheap to import."""

from grpo_bench.meter.clock import Phases
from grpo_bench.meter.memory import (
    gradient_bytes,
    module_bytes,
    optimizer_bytes,
    peak_bytes,
    peak_resident_bytes,
    reset_peak,
    resident_bytes,
)
from grpo_bench.meter.provenance import Provenance, code_digest, provenance
from grpo_bench.meter.selftest import self_test

__all__ = [
    "Phases",
    "Provenance",
    "code_digest",
    "gradient_bytes",
    "module_bytes",
    "optimizer_bytes",
    "peak_bytes",
    "peak_resident_bytes",
    "provenance",
    "reset_peak",
    "resident_bytes",
    "self_test",
]
