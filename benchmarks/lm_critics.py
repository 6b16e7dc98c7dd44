"""Seconds of an iteration on a language model: GRPO against PPO with each critic.

    python benchmarks/lm_critics.py --repeats 5 --out results/benchmarks
    python benchmarks/lm_critics.py --quick      # a random model, to try it out

All use SmolLM2-135M on arithmetic_text, the same groups and the settings of the comparison. GRPO
skips groups whose rewards are all equal. The row ``grpo, all groups`` does not: it shows the cost
under a reward that leaves no such group.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from _compare import Table, interleaved, parser, progress, ratio, ratio_columns, spread

from grpo_bench.config import composed
from grpo_bench.lm.setup import make_trainer
from grpo_bench.report.text.numbers import hundredths, significant
from grpo_bench.report.text.writers import Column

PARTS = ("generation", "scoring", "critic", "update")  # phases of an iteration
ALGOS = {
    "grpo": "grpo",
    "grpo, all groups": "grpo",
    "ppo": "ppo",
    "ppo_shared": "ppo_shared",
    "ppo_lora": "lm/ppo_lora",
}
READING = (
    "Seconds of an iteration: median and [smallest, largest] of the turns. Critic: its values, its "
    "loss and its step; a shared critic is trained in the policy's update, so only its values "
    "count. Share: the critic's part c of the iteration; without it the same work takes 1 - c, so "
    "1 / (1 - c) bounds the gain. Ratio: seconds over GRPO's in the same turn: median and "
    "[smallest, largest], and geometric mean [95 %, t]."
)


def iteration(algo: str, model: str) -> Callable[[int], dict[str, float]]:
    """A function that runs one iteration and returns the seconds of its parts."""
    overrides = (f"model={model}", "env=arithmetic_text", f"algo={ALGOS[algo]}", "model.save=false")
    trainer = make_trainer(composed(*overrides))
    if algo == "grpo, all groups":
        everyone = list(range(trainer.n_problems))
        trainer._with_gradient = lambda *_: everyone  # type: ignore[method-assign]

    def take(turn: int) -> dict[str, float]:
        before = dict(trainer.phases.seconds)
        trainer.update(trainer.collect())
        after = trainer.phases.seconds
        spent = {name: after.get(name, 0.0) - before.get(name, 0.0) for name in PARTS}
        return spent | {"whole": sum(spent.values())}

    return take


def critics_table(model: str, repeats: int) -> Table:
    """A row for each algorithm."""
    table = Table(
        caption=f"An iteration of GRPO and of PPO with each critic: {model}, 8 problems x 8",
        labels=("algorithm",),
        columns=[
            Column("seconds", "whole", significant, interval=True),
            *(Column(name, name, significant) for name in PARTS),
            Column("critic share", "share", hundredths),
            Column("bound", "bound", significant),
            *ratio_columns("seconds, this / grpo"),
        ],
        repeats=repeats,
        reading=READING,
    )
    subjects: dict[str, Any] = {}
    for algo in ALGOS:
        progress(algo)
        subjects[algo] = iteration(algo, model)
        subjects[algo](-1)  # warm-up: the optimiser makes its state
    found = interleaved(subjects, repeats)
    whole = {algo: [turn["whole"] for turn in turns] for algo, turns in found.items()}
    for algo, turns in found.items():
        numbers = [spread("whole", whole[algo])]
        numbers += [spread(name, [turn[name] for turn in turns]) for name in PARTS]
        share = sum(turn["critic"] for turn in turns) / sum(whole[algo])
        if share:
            numbers.append({"share": share, "bound": 1 / (1 - share)})
        if algo != "grpo":
            numbers.append(ratio(whole[algo], whole["grpo"]))
        table.add({"algorithm": algo}, *numbers)
    return table


def main(arguments: list[str] | None = None) -> None:
    command = parser(__doc__)
    command.add_argument("--quick", action="store_true", help="a tiny random model")
    options = command.parse_args(arguments)
    model = "tiny" if options.quick else "smollm2_135m"
    critics_table(model, options.repeats).write(options.out, "lm_critics")


if __name__ == "__main__":
    main()
