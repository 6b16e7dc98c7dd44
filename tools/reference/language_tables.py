"""How the language models of results/reference/lm learned, what they say before and after, and the
peaks of memory of all algorithms side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pandas as pd

import grpo_envs  # noqa: F401  (registers the ids)
from grpo_bench.records.load import load_results
from grpo_bench.report import csv
from grpo_bench.report.text.numbers import hundredths, significant
from grpo_bench.report.text.writers import markdown_grid
from grpo_bench.stats import mean_interval, wilson
from grpo_envs.task import Task
from tools.reference.committed import RESULTS, Committed

RECORDS = RESULTS / "lm"
MEMORY = RESULTS / "lm_memory.csv"
ALGOS = ("grpo", "ppo", "ppo_shared", "ppo_lora")
TEXT = ("model", "trained", "task", "algo", "question", "before", "after")
SHOWN = 8  # completions of each task
SUCCESS = "eval/validation/success"
CURVES = (
    "Greedy success on all 540 validation problems, before training and at each evaluation: mean "
    "over the seeds [95 % interval, Student's t]. At: tokens sampled so far, mean over the seeds."
)
RUNS = (
    "Greedy: the most probable token each time; sampled: at the temperature of training. Share of "
    "right answers on as many problems (in parentheses), none of them trained on, with Wilson's "
    "95 % interval."
)
PEAKS = (
    "Peak GiB of a fresh process over two iterations, and in parentheses the prediction of "
    "`python -m grpo_bench.plan`. Lengths: problems × completions of each × new tokens. Half a GiB "
    "of each peak is the interpreter with its libraries."
)
EXAMPLES = (
    "Greedy answers to the first validation problems before and after training with seed {seed}. "
    "✓: right, and for `format_text` well formed."
)


def curves(folder: Path) -> pd.DataFrame:
    """One row for each task, algorithm and evaluation."""
    results = load_results(folder)
    ok = results.runs[results.runs["status"] == "ok"]["run"]
    metrics = results.metrics[results.metrics["run"].isin(ok)]
    rows = metrics[metrics["metric"] == SUCCESS].sort_values(["run", "transitions"], kind="stable")
    rows = rows.assign(evaluation=rows.groupby("run").cumcount())
    table = []
    for (env, algo, evaluation), part in rows.groupby(["env", "algo", "evaluation"]):
        interval = mean_interval(part["value"])
        table.append(
            {
                "env": env,
                "algo": algo,
                "evaluation": evaluation,
                "seeds": len(part),
                "tokens": part["transitions"].mean(),
                "success": interval.estimate,
                "low": max(interval.low, 0.0),
                "high": min(interval.high, 1.0),
            }
        )
    return pd.DataFrame(table)


def readable_curves(table: pd.DataFrame) -> pd.DataFrame:
    """The curves as people read them: a row for each task and algorithm."""
    rows = []
    for (env, algo), part in table.groupby(["env", "algo"]):
        cells = {}
        for row in part.to_dict("records"):
            value = hundredths(row["success"])
            if row["high"] - row["low"] > 1e-9:  # else all seeds are equal
                value += f" [{hundredths(row['low'])}, {hundredths(row['high'])}]"
            name = "before" if row["evaluation"] == 0 else f"evaluation {row['evaluation']}"
            cells[name] = f"{value} at {row['tokens'] / 1000:.0f}k" if row["evaluation"] else value
        rows.append({"task": env, "algo": algo, "seeds": str(part["seeds"].max()), **cells})
    return pd.DataFrame(rows).fillna("")


def run_rows(folder: Path) -> pd.DataFrame:
    """One row for each run: its accuracy before and after, each with Wilson's interval."""
    results = load_results(folder)
    ok = results.runs[results.runs["status"] == "ok"]["run"]
    found = results.evaluations[results.evaluations["run"].isin(ok)]
    rows = []
    for (env, algo, seed), run in found.groupby(["env", "algo", "seed"]):
        row = {"task": env, "algo": algo, "seed": str(seed)}
        first, last = run["transitions"].min(), run["transitions"].max()
        for title, split, moment in (
            ("validation, before", "validation", first),
            ("validation, after", "validation", last),
            ("test, greedy", "test", last),
            ("test, sampled", "test_sampled", last),
        ):
            part = run[(run["split"] == split) & (run["transitions"] == moment)]["success"]
            interval = wilson(int(part.sum()), len(part))
            bounds = f"[{hundredths(interval.low)}, {hundredths(interval.high)}]"
            row[f"{title} ({len(part)})"] = f"{hundredths(part.mean())} {bounds}"
        rows.append(row)
    return pd.DataFrame(rows).fillna("")


def peaks(table: pd.DataFrame) -> pd.DataFrame:
    """The measured peaks of all algorithms side by side."""
    rows = []
    for (model, trained, lengths), part in table.groupby(
        ["model", "trained", "lengths"], sort=False
    ):
        row = {"model": f"{model}, {trained}", "lengths": lengths}
        found = part.set_index("algo")
        for algo in ALGOS:
            row[algo] = _peak(found.loc[algo]) if algo in found.index else ""
        if {"grpo", "ppo"} <= set(found.index):
            ratio = found.loc["grpo", "measured"] / found.loc["ppo", "measured"]
            row["grpo / ppo"] = "" if pd.isna(ratio) else hundredths(ratio)
        rows.append(row)
    return pd.DataFrame(rows).fillna("")


def _peak(row: pd.Series) -> str:
    predicted = significant(row["predicted"])
    if row["verdict"] != "fits":
        return f"over {row['limit']} ({predicted})"
    return f"{significant(row['measured'])} ({predicted})"


def examples(folder: Path, algo: str = "grpo") -> str:
    """Completions before and after, of the lowest seed of each task, in Markdown."""
    runs = load_results(folder).runs
    parts = []
    for env, rows in runs[(runs["algo"] == algo) & (runs["status"] == "ok")].groupby("env"):
        run = rows.sort_values("seed").iloc[0]
        if run["config"]["env"].get("shuffled_rewards"):
            continue
        asked = Asked(run["config"]["env"])
        table = pd.DataFrame(completion_pairs(folder / run["run"], asked)[:SHOWN])
        parts += [
            f"**{env}**",
            "",
            markdown_grid(table, TEXT),
            "",
            EXAMPLES.format(seed=run["seed"]),
            "",
        ]
    return "\n".join(parts)


class Asked:
    """What a task asks, and what the best reply is worth."""

    def __init__(self, env: dict[str, Any]) -> None:
        self.examples = env["examples"]
        vector = gym.make_vec(env["id"], 1, **env["kwargs"])
        self.task: Task = vector.unwrapped.task  # type: ignore[attr-defined]

    def question(self, problem_id: int) -> str:
        """The last message before the reply."""
        return self.task.chats(np.array([problem_id]), self.examples)[0][-1]["content"]


def completion_pairs(run: Path, asked: Asked) -> list[dict[str, str]]:
    """Question, first and last completion of each validation problem that a record shows."""
    found: dict[int, list[dict[str, Any]]] = {}
    text = (run / "completions.jsonl").read_text(encoding="utf-8").removesuffix("\n")
    for line in text.split("\n"):  # not splitlines, which ends one at U+2028 too
        entry = json.loads(line)
        if entry["split"] == "validation":
            found.setdefault(entry["problem_id"], []).append(entry)
    return [
        {
            "question": asked.question(problem_id),
            "before": _judged(entries[0], asked.task.oracle_score),
            "after": _judged(entries[-1], asked.task.oracle_score),
        }
        for problem_id, entries in found.items()
    ]


def _judged(entry: dict[str, Any], best: float) -> str:
    return f"{'✓' if entry['reward'] >= best else '✗'} {_cell(entry['completion'])}"


def _cell(text: str) -> str:
    """A text on one line of a Markdown table, as it stands."""
    flat = " ".join(text.split()).replace("`", "'")
    return f"`{flat}`" if flat else "(nothing)"


def language_tables(committed: Committed) -> dict[Path, str]:
    """The five tables of results/reference/lm."""
    folder = committed.root / RECORDS
    memory = peaks(pd.read_csv(committed.root / MEMORY))
    table = curves(folder)
    texts = {
        "curves.csv": csv(table),
        "curves.md": f"{markdown_grid(readable_curves(table), TEXT)}\n\n<sub>{CURVES}</sub>\n",
        "runs.md": f"{markdown_grid(run_rows(folder), TEXT)}\n\n<sub>{RUNS}</sub>\n",
        "completions.md": examples(folder),
        "memory.md": f"{markdown_grid(memory, TEXT)}\n\n<sub>{PEAKS}</sub>\n",
    }
    return {RECORDS / name: text for name, text in texts.items()}
