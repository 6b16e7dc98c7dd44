"""Statistics as pure functions on arrays: intervals, tests, and the number of seeds they need."""

from grpo_bench.stats.comparison import (
    McNemar,
    Nested,
    mcnemar,
    nested_permutation,
    probability_of_improvement,
)
from grpo_bench.stats.intervals import (
    BOOTSTRAP_FROM,
    INTERVAL_FROM,
    NOTHING,
    Interval,
    Spread,
    deviation,
    deviation_ratio_interval,
    mean_interval,
    paired_difference_interval,
    paired_ratio_interval,
    positive_mean_interval,
    spread,
    wilson,
)
from grpo_bench.stats.planning import seeds_for_p, seeds_to_tell, smallest_p
from grpo_bench.stats.reach import kaplan_meier, median_to_reach
from grpo_bench.stats.scores import (
    AGGREGATE_FROM,
    Profile,
    aggregate_interval,
    iqm,
    optimality_gap,
    performance_profile,
    task_mean,
)

__all__ = [
    "AGGREGATE_FROM",
    "BOOTSTRAP_FROM",
    "INTERVAL_FROM",
    "NOTHING",
    "Interval",
    "McNemar",
    "Nested",
    "Profile",
    "Spread",
    "aggregate_interval",
    "deviation",
    "deviation_ratio_interval",
    "iqm",
    "kaplan_meier",
    "mcnemar",
    "mean_interval",
    "median_to_reach",
    "nested_permutation",
    "optimality_gap",
    "paired_difference_interval",
    "paired_ratio_interval",
    "performance_profile",
    "positive_mean_interval",
    "probability_of_improvement",
    "seeds_for_p",
    "seeds_to_tell",
    "smallest_p",
    "spread",
    "task_mean",
    "wilson",
]
