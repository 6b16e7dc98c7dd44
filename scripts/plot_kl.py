"""Draw docs/kl_forms.png: the exact KL to the reference during training on each form of the KL.

    python scripts/plot_kl.py

reads the records in results/reference/kl_forms, made by:

    python -m grpo_bench.run -m experiment=kl_forms results=results/reference/kl_forms
    python -m grpo_bench.run -m experiment=kl_forms algo.kl=exact algo.kl_coef=0 \
        results=results/reference/kl_forms
"""

from __future__ import annotations

from pathlib import Path

import matplotlib
import pandas as pd

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from grpo_bench.grpo.kl import FORMS
from grpo_bench.records.load import load_results

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / "results" / "reference" / "kl_forms"
PICTURE = ROOT / "docs" / "kl_forms.png"
NO_KL = "no KL (measured only)"
COLOURS = {"right": "tab:blue", "reverse": "tab:green", "zero": "tab:orange", "opposite": "tab:red"}
STYLES = ("-", "--", ":", "-.")
MEANING = {
    "right": "gradient of KL(pi || ref)",
    "reverse": "gradient of KL(ref || pi)",
    "zero": "gradient of zero",
    "opposite": "gradient of minus the KL",
}


def curves(records: Path) -> pd.DataFrame:
    """The exact KL over the seeds of each form; columns form, transitions, low, mean, high."""
    results = load_results(records)
    settings = {run.run: run.config["algo"] for run in results.runs.itertuples()}
    kl = results.metrics[results.metrics["metric"] == "train/kl_ref"].copy()
    kl["form"] = [settings[run]["kl"] if settings[run]["kl_coef"] else NO_KL for run in kl["run"]]
    # Episodes differ in length, so seeds log at different transitions: use bins of 3,000.
    kl["transitions"] = kl["transitions"] // 3000 * 3000 + 1500
    seeds = kl.groupby(["form", "transitions", "seed"])["value"].mean()
    stats = seeds.groupby(["form", "transitions"]).agg(["min", "mean", "max"])
    return stats.rename(columns={"min": "low", "max": "high"}).reset_index()


def draw(data: pd.DataFrame, out: Path) -> None:
    """Draw a line for each form, coloured by the direction of its gradient, with a band of its
    seeds."""
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    used: dict[str, int] = {}
    for form in [NO_KL, *FORMS]:
        rows = data[data["form"] == form]
        if rows.empty:
            continue
        direction = FORMS[form].gradient if form in FORMS else ""
        style = STYLES[used.setdefault(direction, 0)]
        used[direction] += 1
        colour = COLOURS.get(direction, "black")
        label = f"{form}: {MEANING[direction]}" if direction else form
        x = rows["transitions"] / 1e3
        axes.plot(x, rows["mean"], style, color=colour, label=label, linewidth=1.6)
        axes.fill_between(x, rows["low"], rows["high"], color=colour, alpha=0.12, linewidth=0)
    axes.set_yscale("log")
    axes.set_xlabel("thousand transitions")
    axes.set_ylabel("exact KL(pi || reference) per token")
    axes.set_title("GRPO on Arithmetic, kl_coef 1; mean and range of the seeds", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    figure.savefig(out, dpi=130, metadata={"Software": ""})


if __name__ == "__main__":
    draw(curves(RECORDS), PICTURE)
    print(f"Written to {PICTURE}")
