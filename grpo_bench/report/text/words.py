"""Captions of the tables, and how to read them."""

from __future__ import annotations

from collections.abc import Sequence

from grpo_bench.report.rows.budgets import SCORES
from grpo_bench.report.rows.cells import NO_SPREAD_FROM
from grpo_bench.stats import AGGREGATE_FROM, BOOTSTRAP_FROM, INTERVAL_FROM

VERDICT = (
    "Verdict: on the difference in success, paired by seed and not corrected for several rows; "
    "no winner if the 95 % interval contains 0, or if fewer than "
    f"{NO_SPREAD_FROM} pairs are all equal; needs: seeds that would tell; of those ok: some runs "
    "failed."
)
INTERVALS = (
    "[low, high]: 95 % interval over the seeds that ended ok, Student's t below "
    f"{BOOTSTRAP_FROM} seeds (of the logarithm, for rates, bytes and ratios), bootstrap from "
    f"{BOOTSTRAP_FROM} on; none below {INTERVAL_FROM} seeds, or where all seeds are equal."
)
RATIOS = "geometric mean over pairs of one seed on equal machines"


def in_text(reference: str) -> str:
    """How a text names the algorithm that the rows are compared with."""
    return "PPO" if reference == "ppo" else reference


def captions(reference: str) -> dict[str, str]:
    """The caption of each table, given the algorithm that its rows are compared with."""
    others = "GRPO" if reference == "ppo" else "each algorithm"
    compared = f"{others} against {in_text(reference)}"
    return {
        "trades": "What GRPO trades against PPO",
        "summary": f"Summary: {compared}",
        "accuracy": f"Accuracy: {compared}",
        "equal": f"At equal budgets: {compared}",
        "reach": f"What it takes to reach a score: {compared}",
        "speed": f"Speed: {compared}, wall time of training alone",
        "memory": f"Memory: {compared}, one fresh process per run",
        "aggregate": f"Over all tasks: {compared}, normalised score on test",
        "paired": f"Problem by problem: {compared}, on the same test problems",
    }


# Of a column "<steps> per second": its title, what it counts, and the phases of a second.
RATES = {
    "transitions": ("k transitions/s", "thousand transitions", "rollout and update"),
    "tokens": ("tokens/s", "tokens", "generation, scoring, reference, critic and update"),
}


def short_reading(reference: str, steps: list[str]) -> str:
    """How to read the main table where there is little room, see ``readings``."""
    its = in_text(reference)
    return (
        f"Verdict: on the difference in test success after as many {' or '.join(steps)}, paired by "
        f"seed; needs: seeds that would tell. ×: times {its}'s, [95 % interval over the seeds], "
        f"none below {INTERVAL_FROM} seeds or where all are equal; speed above 1 is faster, memory "
        "below 1 is less."
    )


def readings(reference: str, steps: list[str]) -> dict[str, str]:
    """How to read each table, given the algorithm that its rows are compared with, and whether the
    steps are ``transitions`` of an environment, ``tokens`` of a language model, or both."""
    its = in_text(reference)
    counted = " or ".join(steps)
    titles, amounts, phases = (
        " or ".join(words) for words in zip(*(RATES[step] for step in steps), strict=True)
    )
    critic = (
        " Critic share: c, the part of those seconds in a critic's own passes. Bound: 1/(1 - c) "
        f"with {its}'s c, the most that leaving the critic out can gain at equal tokens."
    )
    times = (
        f"×: times {its}'s, {RATIOS}; speed: {counted} per second of training, above 1 is faster; "
        "peak mem: the process's peak; static mem: policy, critic, reference, gradients and "
        "optimiser state; below 1 is less."
    )
    return {
        "trades": (
            "ok, PPO ok: of the runs planned. Critic: PPO's, a network of its own (separate) or a "
            "layer on the policy's network (shared trunk). Success: share of the test problems "
            f"answered right after as many {counted}; difference: GRPO's minus PPO's. {VERDICT} In "
            "equal seconds: the same on validation, at the time when the quicker one is done. "
            f"{times} {INTERVALS}"
        ),
        "summary": (
            "ok: of the runs planned. Success: share of the test problems answered right. "
            f"{VERDICT} {times} {INTERVALS}"
        ),
        "accuracy": (
            "k: thousand. Start: success before training, on validation. Normalised: 0 is random, "
            "1 is perfect reward on test. Difference: success on test minus "
            f"{its}'s. {VERDICT} {INTERVALS}"
        ),
        "equal": (
            f"Held equal: {counted}, or seconds of training (without set-up, warm-up and "
            "evaluation) on equal machines; at: what every run of these rows has spent. Success: "
            "on validation, interpolated between evaluations; – where a run's first one after "
            "training began comes later. Seeds: those with a number. "
            f"Difference: success minus {its}'s. {VERDICT} {INTERVALS}"
        ),
        "reach": (
            f"Success: on validation; {_listed(SCORES)}, without scores that no run reaches, that "
            "one has before training, or that all have at their first evaluation. Reached: of the "
            "runs that ended ok; at first: those that have it at their first evaluation, and may "
            f"have needed less than shown. k: thousand. {counted.capitalize()}, gradient steps, "
            "seconds of training: interpolated between evaluations; median [95 % interval, from 6 "
            "seeds on]. A run that never gets there counts as one that needs more than it had; ∞: "
            f"fewer than half get there. ×: times {its}'s, below 1 is less; {RATIOS} for seconds "
            "[95 % interval]; – where not all pairs get there after their first evaluation."
        ),
        "speed": (
            f"{titles}: {amounts} per second of training ({phases}). s: seconds, means over the "
            f"seeds that ended ok. Ratio: to {its}'s {counted} per second, {RATIOS}; above 1 is "
            f"faster than {its}.{critic if 'tokens' in steps else ''} {INTERVALS}"
        ),
        "memory": (
            "Peak: of the process (on a card: the allocator's); growth: how far training raised "
            "it. 1 MB is 1e6 bytes, 1 KB is 1e3. Static: policy, critic, reference, gradients and "
            f"optimiser state. Ratios: to {its}'s, {RATIOS}; below 1 is less than {its}. "
            f"{INTERVALS}"
        ),
        "aggregate": (
            "Score: reward on test, 0 is random, 1 is perfect; a row for each algorithm with runs "
            "on all tasks. Mean: over tasks, of the mean over runs. IQM: mean of the middle half "
            "of all runs. Optimality gap: how far runs stay below 1, less is better. Better than "
            f"{its}: probability that a run has a higher score than one of {its} on a random task; "
            "0.5 is no difference. [low, high]: 95 % stratified bootstrap interval, from "
            f"{AGGREGATE_FROM} seeds of each task on."
        ),
        "paired": (
            f"Only this right, only {its} right: problems that one of the two solved, median over "
            "the seeds that both have. McNemar p: exact and two-sided, median over those seeds; "
            "it compares the two policies of a seed. Seeds better, seeds worse: in how many p is "
            "at most 0.05. Permutation p: of the mean difference in success, two-sided; it "
            "compares the algorithms, and swaps whole seeds, since the answers of one policy are "
            "not independent. Smallest p: the least that so many seeds can give."
        ),
    }


def _listed(numbers: Sequence[float]) -> str:
    """Numbers in words: ``0.5, 0.75 and 0.9``."""
    *first, last = [f"{number:g}" for number in numbers]
    return f"{', '.join(first)} and {last}"
