"""What the tables say of themselves in words: what they are about, and how to read them."""

from __future__ import annotations

from collections.abc import Sequence

from grpo_bench.report.rows.budgets import SCORES
from grpo_bench.report.rows.cells import NO_SPREAD_FROM
from grpo_bench.stats import AGGREGATE_FROM

WINNER = (
    "no winner is named where its interval holds 0, nor of fewer than "
    f"{NO_SPREAD_FROM} pairs that are all equal; of those ok: some runs of either gave no result"
)
INTERVALS = (
    "[low, high]: 95 % interval over the seeds that ended ok: Student's t below 10 seeds, "
    "bootstrap from 10 on; none where all are equal"
)


def in_text(reference: str) -> str:
    """How a text names the algorithm that the rows are compared with."""
    return "PPO" if reference == "ppo" else reference


def captions(reference: str) -> dict[str, str]:
    """The caption of each table, given the algorithm that its rows are compared with."""
    beside = f"{'GRPO' if reference == 'ppo' else 'each algorithm'} beside {in_text(reference)}"
    return {
        "trades": "What GRPO trades against PPO",
        "summary": f"Summary: {'what GRPO trades against PPO' if reference == 'ppo' else beside}",
        "accuracy": f"Accuracy: {beside}",
        "equal": f"At equal budgets: {beside}",
        "reach": f"What it takes to reach a score: {beside}",
        "speed": f"Speed: {beside}, wall time of training alone",
        "memory": f"Memory: {beside}, one fresh process per run",
        "aggregate": f"Over all tasks: {beside}, normalised score on test",
        "paired": f"Problem by problem: {beside}, on the same test problems",
    }


# Of what stands in a column "<steps> per second": its title, what it counts, what a second is of.
RATES = {
    "transitions": ("k transitions/s", "thousand transitions", "rollout and update"),
    "tokens": ("tokens/s", "tokens", "generation, scoring, reference, critic and update"),
}


def readings(reference: str, steps: list[str]) -> dict[str, str]:
    """How to read each table, given the algorithm that its rows are compared with, and whether a
    step is one of the ``transitions`` of an environment, of the ``tokens`` of a language model, or
    some are this and some that."""
    its = in_text(reference)
    counted = " or ".join(steps)
    titles, amounts, phases = (
        " or ".join(words) for words in zip(*(RATES[step] for step in steps), strict=True)
    )
    critic = (
        " Critic share: c, the part of those seconds that a critic with a pass of its own takes, "
        f"for its values and their gradient. Bound: 1/(1 - c) with {its}'s c, the most that "
        "leaving it out can gain at equal tokens."
    )
    return {
        "trades": (
            "ok, PPO ok: of the runs planned. Critic: PPO's, a network of its own (separate) or a "
            "layer on the policy's (shared trunk). Success: share of the test problems answered "
            f"right, after as many {counted} of both; difference: GRPO's minus PPO's, paired by "
            f"seed; {WINNER}; needs: how many seeds would tell. In "
            "equal seconds: the same on validation, when the quicker one is done. ×: "
            f"times PPO's, geometric mean of pairs of one seed and equal machines; speed: {counted}"
            " per second of training, above 1 is faster; peak mem: the most that the process "
            "held; static mem: policy, critic, reference, gradients and optimiser state, below 1 "
            f"is less. {INTERVALS}; of shares cut at 0 and 1."
        ),
        "summary": (
            "ok: of the runs planned. Success: share of the test problems answered right. Verdict: "
            f"on the difference in success, paired by seed; {WINNER}; needs: how many seeds would "
            "tell. "
            f"×: times {its}'s, geometric mean of pairs of one seed and equal machines; speed: "
            f"{counted} per second of training, above 1 is faster; peak mem: the most that the "
            "process held; static mem: policy, critic, reference, gradients and optimiser state, "
            f"below 1 is less. {INTERVALS}; of shares cut at 0 and 1."
        ),
        "accuracy": (
            "k: thousand. Start: success of the policy before training, on validation. Normalised: "
            "0 is random, 1 is perfect reward on test. Difference: success on test minus "
            f"{its}'s, paired by seed; {WINNER}; needs: how many seeds would tell. {INTERVALS}; "
            "of success, a share, cut at 0 and 1."
        ),
        "equal": (
            f"Held equal: {counted}, and seconds of training (set-up, warm-up and evaluation are "
            "apart) on equal machines; at: as much as every run of these rows has spent. Success: "
            "on validation, on the straight line between the evaluations before and after; – where "
            "a run's first one after training began comes later. Seeds: those with a number. "
            f"Difference: success minus {its}'s, paired by seed; {WINNER}; needs: how many seeds "
            f"would tell. {INTERVALS}; of success, a "
            "share, cut at 0 and 1."
        ),
        "reach": (
            f"Success: on validation; {_listed(SCORES)}, without those that no run reaches, that "
            "one has before training, or that all have at their first evaluation. Reached: of the "
            "runs that ended ok; at first: those that have it at their first evaluation, and so "
            f"needed no more than stands here. k: thousand. {counted.capitalize()}, gradient "
            "steps, seconds of training: what it takes, on the straight line between two "
            "evaluations; median [95 % interval of a median, which needs 6 seeds]. A run that "
            "never gets there counts as one that needs more than it had; ∞: fewer than half get "
            f"there. ×: times {its}'s, below 1 is less; geometric mean paired by seed, seconds on "
            "equal machines [95 % interval]; – where not all of the pairs get there after their "
            "first evaluation."
        ),
        "speed": (
            f"{titles}: {amounts} per second of training ({phases}; "
            "set-up, warm-up and evaluation are apart). s: seconds, means over the seeds that "
            f"ended ok. Ratio: to {its}'s {counted} per second, geometric mean paired by seed on "
            f"equal machines; above 1 is faster than {its}.{critic if 'tokens' in steps else ''} "
            f"{INTERVALS}."
        ),
        "memory": (
            "Peak: the most that the process held (on a card: the allocator's peak); growth: how "
            "far training raised that above what was held when it began. 1 MB is 1e6 bytes, 1 KB "
            "is 1e3. Static: policy, critic, reference, gradients and optimiser state. Ratios: to "
            f"{its}'s, geometric mean paired by seed on equal machines; below 1 is less than "
            f"{its}. {INTERVALS}."
        ),
        "aggregate": (
            "Score: reward on test, 0 is random, 1 is perfect; a row for each algorithm with runs "
            "on all tasks. Mean: over tasks, of the mean over runs. IQM: mean of the middle half "
            "of all runs. Optimality gap: how far runs stay below 1, less is better. Better than "
            f"{its}: how probable it is that a run has a higher score than one of {its} on a task "
            "drawn at random; 0.5 is no difference. [low, high]: 95 % stratified bootstrap "
            f"interval, which draws seeds within each task and needs {AGGREGATE_FROM} of them."
        ),
        "paired": (
            f"Only this right, only {its} right: problems that one of the two solved, median over "
            "the seeds that both have. McNemar p: exact and two-sided, median over those seeds; "
            "it tells apart the two policies of a seed. Seeds better, seeds worse: in how many p "
            "is at most 0.05. Permutation p: of the mean difference in success, two-sided; it is "
            "about the algorithms, and swaps whole seeds, since the problems of one policy are no "
            "replications. Smallest p: the least that so many seeds can give."
        ),
    }


def _listed(numbers: Sequence[float]) -> str:
    """Numbers in words: ``0.5, 0.75 and 0.9``."""
    *first, last = [f"{number:g}" for number in numbers]
    return f"{', '.join(first)} and {last}"
