"""The tables of ``python -m grpo_bench.oracle``, and one table of all combinations of options."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pandas as pd

from grpo_bench.enumeration.advantage_tables import advantages_table
from grpo_bench.enumeration.evaluation import evaluate
from grpo_bench.enumeration.examples import SMALL, Example, completions, moved, one_action
from grpo_bench.enumeration.gradients import WHOLE_BATCH, Estimator
from grpo_bench.enumeration.kl_tables import KL_COEF, kl_table, with_kl_table
from grpo_bench.enumeration.policy_tables import (
    group_std_table,
    off_policy_table,
    policy_gradient_table,
    process_table,
)
from grpo_bench.enumeration.table import DECIMALS, Table
from grpo_bench.grpo.advantages import BASELINES
from grpo_bench.grpo.kl import FORMS
from grpo_bench.grpo.objectives import AGGREGATIONS, RATIOS, SURROGATES

DIGITS = 4  # of the numbers of all combinations

TABLES: dict[str, Callable[[], Table]] = {
    "kl": kl_table,
    "policy_gradient": policy_gradient_table,
    "group_std": group_std_table,
    "off_policy": off_policy_table,
    "process": process_table,
    "with_kl": with_kl_table,
    "advantages": advantages_table,
}


def combinations() -> Iterator[tuple[dict[str, Any], Example, Estimator]]:
    """Labels, example and estimator of every distinct combination of baseline, aggregation, ratio,
    surrogate, KL form and group size.

    On-policy, all ratios and surrogates are equal. With one action per rollout, all aggregations
    and ratios are equal. One of them is listed for all. Baselines over the batch stop at a group
    size of 4. Off-policy, the current policy is ``SMALL`` ahead of the sampling policy. The KL has
    weight ``KL_COEF``, in the objective as well.
    """
    for example, on_policy in product((one_action(), completions()), (True, False)):
        single = example.task.max_len == 1
        at = example if on_policy else moved(example, SMALL)
        options = product(
            BASELINES,
            list(AGGREGATIONS)[: 1 if single else None],
            list(RATIOS)[: 1 if single or on_policy else None],
            list(SURROGATES)[: 1 if on_policy else None],
            (None, *FORMS),
            (2, 4, 8),
        )
        for baseline, aggregation, ratio, surrogate, form, group_size in options:
            if baseline in WHOLE_BATCH and group_size > 4:
                continue
            labels = {
                "task": example.name,
                "policy": "on" if on_policy else "off",
                "baseline": baseline,
                "aggregation": "any" if single else aggregation,
                "ratio": "any" if single or on_policy else ratio,
                "surrogate": "any" if on_policy else surrogate,
                "kl": form or "none",
                "G": group_size,
            }
            estimator = Estimator(
                baseline=baseline,
                aggregation=aggregation,
                ratio=ratio,
                surrogate=surrogate,
                kl=form,
                kl_coef=KL_COEF if form else 0.0,
            )
            yield labels, at, estimator


def everything(every: int = 1) -> pd.DataFrame:
    """Bias and variance of all ``combinations``, or of each ``every``-th, to ``DIGITS``."""
    rows = []
    for number, (labels, example, estimator) in enumerate(combinations()):
        if number % every == 0:
            found = evaluate(example, estimator, labels["G"])._asdict()
            rows.append(labels | {k: _significant(x) for k, x in found.items()})
    return pd.DataFrame(rows)


def _significant(x: float) -> float:
    """x with ``DIGITS`` significant figures; 0 where it is 0 up to rounding."""
    return float(f"{round(x, DECIMALS) + 0.0:.{DIGITS}g}")
