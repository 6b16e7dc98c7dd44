"""Tables of the KL forms, alone and together with rewards."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from grpo_bench.enumeration.evaluation import compare, evaluate, listed_moments
from grpo_bench.enumeration.examples import (
    SMALL,
    completions,
    moved,
    one_action,
    six_actions,
    three_steps,
)
from grpo_bench.enumeration.gradients import SUMMED, UNBOUNDED, kl_estimate
from grpo_bench.enumeration.table import Table, measures, number
from grpo_bench.enumeration.tasks import reverse_gradient, true_gradient
from grpo_bench.grpo.kl import FORMS
from grpo_bench.report.text.numbers import share
from grpo_bench.report.text.writers import Column

KL_COEF = 0.1  # weight of the KL in tables with rewards


def kl_table() -> Table:
    """Each KL form alone, on-policy and off-policy, against the true gradient of the KL."""
    shown = [
        Column("estimate", "estimate", number),
        *measures("error", "cosine")[0],
        Column("to reverse", "to_reverse", number),
        Column("variance", "variance", number),
        Column("error off", "error_off", number),
        Column("cosine off", "cosine_off", share),
    ]
    table = Table(
        "kl",
        "KL forms: the expected gradient of each, against the gradient of KL(pi || ref)",
        ["task", "form", "place", "label"],
        shown,
        "Place: a term of the loss, or taken off the return; label: what grpo.kl.FORMS says of its "
        "gradient, on-policy and in one state. Estimate: mean of the form over whole rollouts, "
        "beside the KL in the notes. "
        + measures("error", "cosine", "variance")[1]
        + " To reverse: error against the gradient of KL(ref || pi). Off: off-policy, the policy a "
        f"step of {SMALL} in logits further than the one that sampled, no bound on the ratio.",
    )
    for example, group_size in ((six_actions(), 8), (three_steps(), 4)):
        task, policies = example.task, example.policies
        truth = true_gradient(task, policies.new, policies.reference, kl_coef=1.0)
        away = moved(example, SMALL)
        reverse = reverse_gradient(task, policies.new, policies.reference)
        for name, form in FORMS.items():
            estimator = replace(SUMMED, baseline="none", kl=name, kl_coef=1.0, clip=UNBOUNDED)
            found, off = (
                listed_moments(example, estimator, group_size),
                evaluate(away, estimator, 2),
            )
            table.add(
                {"task": example.name, "form": name, "place": form.place, "label": form.gradient},
                {
                    "estimate": kl_estimate(task, name, policies),
                    **compare(found, truth)._asdict(),
                    "to_reverse": compare(found, reverse).error,
                    "scale_off": off.scale,
                    "cosine_off": off.cosine,
                    "error_off": off.error,
                },
            )
        kl = kl_estimate(task, "k1", policies)
        table.footnotes.append(
            f"{example.name}: {sum(task.problems == 0)} rollouts, KL(pi || ref) {number(kl)}, "
            f"off-policy {number(kl_estimate(task, 'k3_ratio', away.policies))}; "
            f"G={group_size} for the variance, which depends on G in the return forms only"
        )
    table.footnotes += [
        "on completions a term of the loss is summed over the tokens, and leaves out that a token "
        "now changes the KL of later states; taken off the return it counts that",
        "off-policy the return forms hold the policy that sampled against the reference: they are "
        "taken when it samples",
        "how far off k3 is depends on the pair of policies, and so do the other numbers off-policy "
        "and on completions; the ones, twos and zeros on-policy with one action do not",
    ]
    return table


def with_kl_table() -> Table:
    """Rewards and KL together, for baselines that change what the coefficient means."""
    columns, reading = measures("scale", "cosine", "error", "turned", "variance", "noise")
    table = Table(
        "with_kl",
        "Rewards and KL together: the expected step on-policy, against the gradient of "
        f"reward - {KL_COEF} KL(pi || ref)",
        ["task", "baseline", "form"],
        columns,
        f"G=8; form: of the KL, none leaves it out. {reading}",
        footnotes=[
            "a baseline that rescales the rewards and not the KL changes what the coefficient is",
            "completions: summed over the tokens, so that the scale is 1 if right",
        ],
    )
    for example, baseline, form in product(
        (one_action(), completions()), ("rloo", "group_mean", "group"), (None, *FORMS)
    ):
        estimator = replace(SUMMED, baseline=baseline, kl=form, kl_coef=KL_COEF)
        labels = {"task": example.name, "baseline": baseline, "form": form or "none"}
        table.add(labels, evaluate(example, estimator, 8)._asdict())
    return table
