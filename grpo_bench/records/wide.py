"""Metrics with a column for each and a row for each moment, as packed records have them: what
metrics.parquet holds row after row in its columns ``metric`` and ``value``."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa

from grpo_bench.records.schema import BUDGETS, METRIC_SCHEMA


def widened(table: pa.Table) -> pa.Table:
    """The metrics of one run, ``METRIC_SCHEMA``, with a row for each moment, in order: ``BUDGETS``
    and a column for each metric, by name; null where the metric was not logged.

    Neighbouring rows of equal budgets are one moment. What it has of a metric beside the first is
    in rows of their own below, so that the values of a metric stay in their order.

    Raises:
        ValueError: a metric has the name of a budget or is called ``run``.
    """
    metric = table["metric"].combine_chunks().dictionary_encode()
    names, codes = metric.dictionary.to_pylist(), metric.indices.to_numpy()
    if taken := {"run", *BUDGETS} & set(names):
        raise ValueError(f"metric {min(taken)!r}: expected a name that no column has")
    budgets = {name: table[name].to_numpy() for name in BUDGETS}
    changes = np.zeros(len(codes), dtype=np.int64)
    for column in budgets.values():
        changes[1:] |= column[1:] != column[:-1]
    moments = changes.cumsum()
    seen = moments * len(names) + codes
    times = pd.Series(seen).groupby(seen).cumcount().to_numpy()  # how often, so far
    keys = moments * len(codes) + times  # in the order of moments, then of times
    _, first, row = np.unique(keys, return_index=True, return_inverse=True)
    columns = {n: pa.array(budgets[n][first], METRIC_SCHEMA.field(n).type) for n in BUDGETS}
    value = table["value"].to_numpy()
    for code in sorted(range(len(names)), key=names.__getitem__):
        its = codes == code
        values, absent = np.zeros(len(first)), np.ones(len(first), dtype=bool)
        values[row[its]], absent[row[its]] = value[its], False
        columns[names[code]] = pa.array(values, mask=absent)  # a NaN that was logged stays one
    return pa.table(columns)


def lengthened(table: pa.Table) -> pa.Table:
    """What ``widened`` came from, with the rows of a moment by the names of their metrics. Another
    column, such as ``run``, is kept."""
    kept = [n for n in table.column_names if n in BUDGETS or table[n].type != pa.float64()]
    metrics = [name for name in table.column_names if name not in kept]
    there = [table[name].is_valid().to_numpy().nonzero()[0] for name in metrics]
    row = np.concatenate([np.empty(0, np.intp), *there])
    order = row.argsort(kind="stable")
    codes = np.arange(len(metrics)).repeat([len(rows) for rows in there])
    values = [table[n].to_numpy()[rows] for n, rows in zip(metrics, there, strict=True)]
    value = np.concatenate([np.empty(0), *values])[order]
    names = pa.array(metrics, pa.string()).take(pa.array(codes[order]))
    long = table.select(kept).take(row[order])
    return long.append_column("metric", names).append_column("value", pa.array(value))
