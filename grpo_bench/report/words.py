"""What the tables say of themselves in words: what they are about, and how to read them."""

from __future__ import annotations

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
        "summary": f"Summary: {'what GRPO trades against PPO' if reference == 'ppo' else beside}",
        "accuracy": f"Accuracy: {beside}",
        "speed": f"Speed: {beside}, wall time of training alone",
        "memory": f"Memory: {beside}, one fresh process per run",
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
        "summary": (
            "ok: of the runs planned. Success: share of the test problems answered right. Verdict: "
            "on the difference in success, paired by seed; needs: how many seeds would tell. "
            f"×: times {its}'s, geometric mean of pairs of one seed and equal machines; speed: "
            f"{counted} per second of training, above 1 is faster; peak mem: the most that the "
            "process held; static mem: policy, critic, reference, gradients and optimiser state, "
            f"below 1 is less. {INTERVALS}; of shares cut at 0 and 1."
        ),
        "accuracy": (
            "k: thousand. Start: success of the policy before training, on validation. Normalised: "
            "0 is random, 1 is perfect reward on test. Difference: success on test minus "
            f"{its}'s, paired by seed; no winner is named where its interval holds 0; needs: how "
            f"many seeds would tell. {INTERVALS}; of success, a share, cut at 0 and 1."
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
    }
