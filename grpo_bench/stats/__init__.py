"""Pure functions on arrays: estimates with honest intervals."""

from grpo_bench.stats.intervals import (
    Interval,
    deviation_ratio_interval,
    deviation_within,
    mean_interval,
    paired_difference_interval,
    paired_ratio_interval,
    seeds_to_tell,
    wilson,
)

__all__ = [
    "Interval",
    "deviation_ratio_interval",
    "deviation_within",
    "mean_interval",
    "paired_difference_interval",
    "paired_ratio_interval",
    "seeds_to_tell",
    "wilson",
]
