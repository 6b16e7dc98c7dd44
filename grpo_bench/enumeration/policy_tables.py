"""Tables of the rewards: baselines, aggregations, ratios and supervision, without KL."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

from grpo_bench.enumeration.evaluation import evaluate, listed_moments
from grpo_bench.enumeration.examples import (
    LARGE,
    SMALL,
    Example,
    completions,
    moved,
    one_action,
    paid_steps,
    successes,
)
from grpo_bench.enumeration.gradients import (
    BOUNDED,
    SUMMED,
    UNBOUNDED,
    WHOLE_BATCH,
    Estimator,
    Policies,
)
from grpo_bench.enumeration.table import Table, measures, number
from grpo_bench.enumeration.tasks import Task, log_probs, true_gradient
from grpo_bench.grpo.advantages import BASELINES
from grpo_bench.grpo.objectives import AGGREGATIONS, RATIOS, SURROGATES, importance_ratio
from grpo_bench.report.text.numbers import share
from grpo_bench.report.text.writers import Column

# The largest groups listed: larger ones give too many batches, or nothing new.
LARGEST = {"batch": 8, "batch_std": 8, "group_mean": 16, "rank": 16, "none": 16}


def policy_gradient_table() -> Table:
    """Each baseline, aggregation and group size, on-policy, without KL."""
    columns, reading = measures("scale", "cosine", "error", "turned", "variance", "noise", "flat")
    table = Table(
        "policy_gradient",
        "Baselines and aggregations: the expected step on-policy, against the gradient of the "
        "expected reward",
        ["task", "aggregation", "baseline", "G"],
        columns,
        reading,
        footnotes=[
            "one action: four problems, three of reward +1 right and -0.5 wrong with success 0.1, "
            "0.5, 0.9 and one with graded rewards; every aggregation is the same",
            "completions: at most three tokens, three problems of success 0.2, 0.42 and 0.65, "
            "reward 1 or 0, right ones of 1, 2 and 3 tokens; constant_length divides by the limit: "
            "its scale is 1/3 if right",
            f"{' and '.join(WHOLE_BATCH)} see a batch of two different problems (all pairs are "
            "listed), the others each group apart; token_mean divides by the tokens of those",
            "with rewards of two values rank is rloo divided by their distance; what it and the "
            "deviations turn here is how much the problems weigh against each other",
        ],
    )
    for example, names, sizes in (
        (one_action(), ["sequence_mean"], (2, 4, 8, 16, 64)),
        (completions(), list(AGGREGATIONS), (2, 4, 8, 16)),
    ):
        for aggregation, baseline, group_size in product(names, BASELINES, sizes):
            if group_size > LARGEST.get(baseline, group_size):
                continue
            estimator = Estimator(baseline=baseline, aggregation=aggregation)
            labels = {
                "task": example.name,
                "aggregation": aggregation if len(names) > 1 else "any",
                "baseline": baseline,
                "G": group_size,
            }
            table.add(labels, evaluate(example, estimator, group_size)._asdict())
    return table


def group_std_table() -> Table:
    """The factor by which dividing by the group's deviation rescales each problem's gradient."""
    sizes = (2, 4, 8, 16, 64)
    rates = [0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99]
    example = successes(rates)
    table = Table(
        "group_std",
        "Dividing by the group's deviation: the factor on the gradient of a success rate p",
        ["p", "ddof"],
        [
            *(Column(f"G={size}", f"G={size}", number) for size in sizes),
            Column("infinite", "infinite", number),
            *(Column(f"flat G={size}", f"flat G={size}", share) for size in sizes),
        ],
        "Expected step over the gradient of p, with rewards 1 and 0 and eps 1e-4; 1 for rloo and "
        "(G - 1)/G for group_mean at every p. Infinite: 1/sqrt(p (1 - p)), the limit for large G. "
        "Flat: share of groups without spread, p^G + (1 - p)^G, that teach nothing; they "
        "are in the factor. ddof: 0 divides the variance by G, 1 by G - 1.",
        footnotes=[
            "at G=2 every p counts alike; the larger G, the more rare and frequent successes "
            "weigh against those in the middle"
        ],
    )
    factors = {
        (ddof, size): _factors(example, Estimator(ddof=ddof), size)
        for ddof, size in product((0, 1), sizes)
    }
    for (place, p), ddof in product(enumerate(rates), (0, 1)):
        numbers = {f"G={size}": factors[ddof, size][place] for size in sizes}
        numbers["infinite"] = 1 / math.sqrt(p * (1 - p))
        numbers |= {f"flat G={size}": p**size + (1 - p) ** size for size in sizes}
        table.add({"p": p, "ddof": ddof}, numbers)
    smaller = [_factors(example, Estimator(eps=1e-9), size) for size in sizes]
    changes = [
        abs(a / b - 1)
        for size, few in zip(sizes, smaller, strict=True)
        for a, b in zip(few, factors[0, size], strict=True)
    ]
    table.footnotes.append(
        f"eps of 1e-9 instead of 1e-4 changes no factor (ddof 0) by more than {max(changes):.1%}"
    )
    return table


def _factors(example: Example, estimator: Estimator, group_size: int) -> list[float]:
    """Expected step over true gradient, for each problem."""
    task, policies = example.task, example.policies
    truth = true_gradient(task, policies.new, policies.reference).view(task.shape)
    found = listed_moments(example, estimator, group_size).mean.view(task.shape)
    factors: list[float] = ((found * truth).sum(1) / truth.square().sum(1)).tolist()
    return factors


def off_policy_table() -> Table:
    """Ratios and bounds after a small and a large step, against the gradient at the new policy."""
    columns, reading = measures("scale", "cosine", "error", "turned", "variance", "noise")
    table = Table(
        "off_policy",
        "Off-policy: sampled before a step, the expected next one against the gradient after it",
        ["task", "step", "baseline", "ratio", "surrogate", "bounds"],
        [Column("outside", "outside", share), *columns],
        f"G=8. Step: length in logits of one step up the true gradient; bounds: of the ratio, from "
        "0.8 to 1.2, or none. Outside: share of the sampled tokens whose ratio is not between 0.8 "
        f"and 1.2. {reading}",
        footnotes=[
            "completions: summed over the tokens (constant_length with a limit of 1), so that the "
            "scale is 1 if right; with one action both ratios are the same",
            "without bounds one action is right; on completions neither ratio is, since none "
            "corrects which states the old policy came to",
            "a bound of clip is meant to stop what has moved far enough, not to be right: the "
            "expected step loses just the part along which the last one went",
        ],
    )
    for start, length, baseline in product(
        (one_action(), completions()), (SMALL, LARGE), ("rloo", "group")
    ):
        example = moved(start, length)
        ratios = ["token"] if example.task.max_len == 1 else list(RATIOS)
        for ratio, surrogate, clip in product(ratios, SURROGATES, (UNBOUNDED, BOUNDED)):
            estimator = replace(
                SUMMED, baseline=baseline, ratio=ratio, surrogate=surrogate, clip=clip
            )
            labels = {
                "task": example.name,
                "step": length,
                "baseline": baseline,
                "ratio": ratio if len(ratios) > 1 else "any",
                "surrogate": surrogate,
                "bounds": "none" if clip is UNBOUNDED else "0.2",
            }
            outside = share_outside(example.task, example.policies, ratio)
            table.add(labels, {"outside": outside, **evaluate(example, estimator, 8)._asdict()})
    return table


def share_outside(task: Task, policies: Policies, ratio: str) -> float:
    """Share of the tokens sampled by ``policies.old`` whose ratio is not within ``BOUNDED``."""
    new, old = log_probs(task, policies.new), log_probs(task, policies.old)
    rho = importance_ratio(new, old, task.mask, ratio)
    outside = (rho < 1 - BOUNDED.low) | (rho > 1 + BOUNDED.high)
    sampled = old.sum(dim=1, keepdim=True).exp() * task.mask  # (M, T) expected number
    return ((sampled * outside).sum() / sampled.sum()).item()


def process_table() -> Table:
    """Every supervision, on a task that rewards single steps."""
    columns, reading = measures("scale", "cosine", "error", "turned", "variance", "noise")
    table = Table(
        "process",
        "Credit over time: the expected step where single steps are paid, on-policy",
        ["supervision", "baseline", "G"],
        columns,
        reading,
        footnotes=[
            "two problems of at most three tokens; summed over the tokens: the scale is 1 if right",
            "process: the rewards of this and later steps, normalised over all steps of the group. "
            "Without a baseline that is right, with less variance; a mean that is subtracted from "
            "each step is subtracted as often as steps follow, which the action itself decides",
            "return_to_go: the return from this step on, against those of the members that still "
            "play. A step that no other member plays counts 0, so small groups lose a part of the "
            "gradient of late steps",
        ],
    )
    baselines = ("none", "rloo", "group_mean", "group")
    kinds = [("outcome", baseline) for baseline in baselines]
    kinds += [("process", baseline) for baseline in baselines if baseline != "rloo"]
    kinds += [("return_to_go", baseline) for baseline in baselines]
    example = paid_steps()
    for (supervision, baseline), group_size in product(kinds, (2, 4, 8, 16)):
        estimator = replace(SUMMED, baseline=baseline, supervision=supervision)
        labels = {"supervision": supervision, "baseline": baseline, "G": group_size}
        table.add(labels, evaluate(example, estimator, group_size)._asdict())
    return table
