"""Tables of what happens while training, for docs/algorithm.md.

``kl``: where the exact KL ends with each form of it, beside the same seeds without any (records
kl_forms). ``spread``: what of a rollout can still teach, at a quarter of the budget and at the end
(records options).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd

from grpo_bench.grpo.kl import FORMS
from grpo_bench.records.load import Results, load_results
from grpo_bench.report import markdown
from grpo_bench.report.text.origin import header
from tools.reference.committed import RESULTS, Committed

TEST = "eval/test/success"
WINDOW = 20  # iterations that are averaged


def at(results: Results, metric: str, share: float) -> pd.Series:
    """A metric of each run, averaged over ``WINDOW`` iterations around a share of the budget."""
    rows = results.metrics[results.metrics["metric"] == metric].sort_values("transitions")

    def mean(values: pd.Series) -> float:
        middle = round(share * len(values))
        first = max(0, min(middle - WINDOW // 2, len(values) - WINDOW))
        return float(values.iloc[first : first + WINDOW].mean())

    return rows.groupby("run")["value"].apply(mean)


def spread(values: pd.Series, form: str = "{:.2f}") -> str:
    """The mean over the seeds, with the lowest and the highest."""
    low, mean, high = (form.format(value) for value in (values.min(), values.mean(), values.max()))
    return f"{mean} [{low}, {high}]"


def kl_table(results: Results) -> pd.DataFrame:
    """One row for each form, and one without any."""
    runs = results.runs.set_index("run")
    runs = runs.assign(
        form=[c["algo"]["kl"] if c["algo"]["kl_coef"] else "none" for c in runs["config"]],
        kl=at(results, "train/kl_ref", 1.0),
        success=at(results, TEST, 1.0),
    )
    without = runs[runs["form"] == "none"].set_index("seed")["kl"]
    rows = []
    for form in ["none", *FORMS]:
        of_form = runs[runs["form"] == form]
        ratio = of_form.set_index("seed")["kl"] / without
        rows.append(
            {
                "form": form,
                "gradient": FORMS[form].gradient if form in FORMS else "",
                "exact KL at the end": spread(of_form["kl"], "{:.3f}"),
                "over that without": "" if form == "none" else spread(ratio),
                "test success": spread(of_form["success"], "{:.3f}"),
            }
        )
    table = pd.DataFrame(rows)
    table.attrs = about(
        results,
        "KL forms: where training with kl_coef 1 ends, grpo on arithmetic",
        "Exact KL(pi || ref) per token, mean of the last 20 iterations; over that of the same seed "
        "without a KL. Gradient: see grpo.kl.FORMS; zero is meant for the policy that sampled. "
        "Mean [lowest, highest] of five seeds.",
    )
    return table


SHOWN = (
    *("grpo", "grpo_baseline_batch", "grpo_baseline_none", "grpo_group_size_2"),
    *("grpo_group_size_32", "grpo_dynamic_sampling", "grpo_entropy"),
)
EARLY = (  # what is read at a quarter of the budget
    *("rollout/zero_std_frac", "rollout/zero_std_expected"),
    *("rollout/success_rate", "train/entropy_loss"),
)


def spread_table(results: Results) -> pd.DataFrame:
    """One row for some of the options on vlm."""
    runs = results.runs.set_index("run")
    runs = runs[(runs["env"] == "vlm") & runs["algo"].isin(SHOWN)]
    steps = results.metrics.groupby("run")["gradient_steps"].max()
    metrics = results.metrics[results.metrics["run"].isin(runs.index)]
    few = replace(results, metrics=metrics)
    means = {
        (metric, share): at(few, metric, share)
        for metric, share in (
            *((metric, 0.25) for metric in EARLY),
            *((metric, 1.0) for metric in ("rollout/zero_std_frac", TEST)),
        )
    }
    rows = []
    for algo in SHOWN:
        chosen = runs.index[runs["algo"] == algo]

        def mean(metric: str, share: float, chosen: pd.Index = chosen) -> float:
            return float(means[metric, share][chosen].mean())

        rows.append(
            {
                "algo": algo,
                "flat at 1/4": f"{mean('rollout/zero_std_frac', 0.25):.2f}",
                "expected": f"{mean('rollout/zero_std_expected', 0.25):.2f}",
                "success rate": f"{mean('rollout/success_rate', 0.25):.2f}",
                "entropy": f"{-mean('train/entropy_loss', 0.25):.3f}",
                "flat at the end": f"{mean('rollout/zero_std_frac', 1.0):.2f}",
                "gradient steps": f"{steps[chosen].mean():,.0f}",
                "test success": f"{mean(TEST, 1.0):.3f}",
            }
        )
    table = pd.DataFrame(rows)
    table.attrs = about(
        results,
        "What of a rollout can still teach, on vlm",
        "Flat: share of the groups without spread (rollout/zero_std_frac) around a quarter of the "
        "budget, and at the end; expected: p^G + (1 - p)^G at the success rate p of then "
        "(rollout/zero_std_expected); entropy of the policy in nats, of at most 1.386. Means of "
        "five seeds.",
    )
    return table


def about(results: Results, caption: str, reading: str) -> dict[str, object]:
    """What ``markdown`` wants to know beside the cells."""
    return {
        "caption": caption,
        "header": header(results.runs),
        "reading": reading,
        "footnotes": [],
    }


TABLES: dict[str, tuple[str, Callable[[Results], pd.DataFrame]]] = {
    "kl": ("kl_forms", kl_table),
    "spread": ("options", spread_table),
}


def training_tables(committed: Committed) -> dict[Path, str]:
    """``training/kl.md`` and ``training/spread.md``."""
    texts = {}
    for name, (records, make) in TABLES.items():
        results = load_results(committed.root / RESULTS / records)
        texts[RESULTS / "training" / f"{name}.md"] = markdown(make(results))
    return texts
