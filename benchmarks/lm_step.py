"""A step of GRPO on a language model: TRL's GRPOTrainer, ours, and the floors.

    python benchmarks/lm_step.py --repeats 5 --out results/benchmarks
    python benchmarks/lm_step.py --curves       # do both learn the same?
    python benchmarks/lm_step.py --quick        # a random model, to try it out

Both use the same prompts, group size, new tokens, temperature, loss and bfloat16 arithmetic, and
take one gradient step on all completions in one pass. Each runs in its own process; their steps
alternate. Without TRL, only ours and the floors are measured.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import version
from importlib.util import find_spec

import numpy as np
import torch
from _compare import Table, bounds, interleaved, parser, progress, ratio, spread, verdict
from _lm_sides import PRECISIONS, Settings, Turn, side

from grpo_bench.meter.cpus import usable_cpus
from grpo_bench.report.text.numbers import difference, in_units, share, significant
from grpo_bench.report.text.writers import Column
from grpo_bench.stats import mean_interval, paired_difference_interval

OURS, FLOOR = "ours", "floor"
ROWS = "floor, with as many rows as completions"
FASTER, PEAK = 3.0, 0.7  # targets at TRL's precision: times its speed, times its peak
GENERATION, PASSES = 2.5, 1.6  # targets: times their floors
TIMES = ("generation", "scoring", "logprobs", "passes", "optimizer")  # in the order of a step
BETAS = (0.0, 0.04)  # the second is DeepSeekMath's
BLOCK = 10  # steps that are averaged in the curves
CURVES = (
    "Mean reward in a block of steps: mean over {repeats} seeds with its 95 % interval (Student's "
    "t). The difference is taken seed by seed. Both start from the same model and take the same "
    "problems in the same order; their samples differ."
)


def measured(
    settings: Settings, peers: Sequence[str], repeats: int, steps: int
) -> dict[str, list[Turn]]:
    """Turns by side: ours, TRL at each precision, and the floor if there is no reference."""
    chosen = {OURS: ("ours", settings)}
    chosen |= {name: ("trl", replace(settings, precision=name)) for name in peers}
    if not settings.beta:
        chosen[FLOOR] = ("floor", settings)
    with ExitStack() as running:
        sides = {name: running.enter_context(side(*what)) for name, what in chosen.items()}
        for take in sides.values():
            take(1)  # wait until it has loaded: no side loads while another is timed
        return interleaved({name: taking(take, steps) for name, take in sides.items()}, repeats)


def taking(take: Callable[[int], Turn], steps: int) -> Callable[[int], Turn]:
    """A subject that takes ``steps`` steps in every turn."""
    return lambda turn: take(steps)


def add_rows(table: Table, settings: Settings, turns: dict[str, list[Turn]], steps: int) -> None:
    """Add a row for each side, and the verdicts."""
    seconds = {
        name: {part: [turn.seconds[part] / steps for turn in own] for part in own[0].seconds}
        for name, own in turns.items()
    }
    peaks = {name: [float(turn.peak) for turn in own] for name, own in turns.items()}
    reference = f"beta {settings.beta:g}"
    tokens = settings.completions * settings.new_tokens
    for name, parts in seconds.items():
        labels = dict(zip(table.labels, (reference, title(name)), strict=True))
        if name == FLOOR:
            table.add(labels, *(spread(part, parts[part]) for part in ("generation", "passes")))
            labels |= {"trainer": ROWS}
            table.add(labels, spread("generation", parts["rows"]))
            continue
        rate = [tokens / whole for whole in parts["whole"]]
        numbers = [spread(part, parts[part]) for part in ("whole", *TIMES)]
        numbers += [spread("rate", rate), spread("peak", peaks[name])]
        if name != OURS:
            slower = ratio(parts["whole"], seconds[OURS]["whole"])
            less = ratio(peaks[OURS], peaks[name])
            numbers += [slower, {f"peak_{key}": value for key, value in less.items()}]
        table.add(labels, *numbers)
        if name == "same":
            what = f"{reference}, seconds of TRL / ours"
            table.targets.append(verdict(what, slower, at_least=FASTER))
            what = f"{reference}, peak of ours / TRL"
            table.targets.append(verdict(what, less, at_most=PEAK))
    for part, limit in (("generation", GENERATION), ("passes", PASSES)):
        if FLOOR in seconds:
            above = ratio(seconds[OURS][part], seconds[FLOOR][part])
            table.targets.append(verdict(f"{part} / floor", above, at_most=limit))


def title(name: str) -> str:
    """The title of a row."""
    return f"TRL, {PRECISIONS[name]}" if name in PRECISIONS else name


def trl_note() -> str:
    """The version of TRL, or how to install it."""
    if find_spec("trl"):
        return f"TRL {version('trl')}"
    return "TRL is not installed: pip install 'trl==1.16.*'"


def step_table(settings: Settings, options: argparse.Namespace) -> Table:
    """Both sides with and without a reference, TRL at each precision."""
    shape = f"{settings.prompts} prompts x {settings.group_size}, {settings.new_tokens} new tokens"
    table = Table(
        caption=f"A GRPO step of {settings.model}, {shape}",
        labels=("reference", "trainer"),
        columns=[
            Column("seconds", "whole", significant, interval=True),
            *(Column(part, part, significant, interval=True) for part in TIMES),
            Column("tokens/s", "rate", significant, interval=True),
            Column("peak MiB", "peak", in_units(2**20), interval=True),
            Column("seconds, this / ours", "ratio", significant, interval=True),
            Column("peak, ours / this", "peak_ratio", significant, interval=True),
        ],
        repeats=options.repeats,
        footnotes=[trl_note()],
    )
    peers = options.precisions if find_spec("trl") else []
    for beta in BETAS:
        progress(f"beta {beta:g}")
        given = replace(settings, beta=beta)
        found = measured(given, peers, options.repeats, options.steps)
        add_rows(table, given, found, options.steps)
    return table


def curves_table(settings: Settings, options: argparse.Namespace) -> Table:
    """Reward while both learn."""
    table = Table(
        caption=f"Reward of {settings.model} while it learns",
        labels=("steps",),
        columns=[
            *(Column(name, name, share, interval=True) for name in ("ours", "TRL")),
            Column("ours - TRL", "difference", difference, interval=True),
        ],
        repeats=len(options.seeds),
        reading=CURVES,
        footnotes=[trl_note()],
    )
    blocks = range(0, options.learn, BLOCK)
    rewards: dict[str, list[list[float]]] = {"ours": [], "trl": []}
    for seed in options.seeds:
        for name, curves in rewards.items():
            progress(f"seed {seed}, {name}")
            with side(name, replace(settings, whole=False, seed=seed)) as take:
                curve = take(options.learn).rewards
            curves.append([float(np.mean(curve[first : first + BLOCK])) for first in blocks])
    apart = 0
    for first, own, other in zip(blocks, *(np.array(x).T for x in rewards.values()), strict=True):
        gap = paired_difference_interval(own, other)
        apart += gap.low > 0 or gap.high < 0
        table.add(
            {"steps": f"{first + 1} to {min(first + BLOCK, options.learn)}"},
            bounds("ours", mean_interval(own)),
            bounds("TRL", mean_interval(other)),
            bounds("difference", gap),
        )
    table.footnotes.append(f"Intervals of the difference without 0: {apart} of {len(table.rows)}")
    return table


def main(arguments: list[str] | None = None) -> None:
    command = parser(__doc__)
    command.add_argument("--quick", action="store_true", help="a tiny random model")
    command.add_argument("--curves", action="store_true", help="learning instead of speed")
    command.add_argument("--steps", type=int, default=1, help="of each side per turn")
    command.add_argument("--threads", type=int, default=usable_cpus(), help="of torch")
    command.add_argument(
        "--precisions", nargs="+", choices=PRECISIONS, default=["same", "autocast"], help="TRL's"
    )
    command.add_argument("--learn", type=int, default=20, help="steps of the curves")
    command.add_argument("--seeds", type=int, nargs="+", default=[1, 2], help="of the curves")
    options = command.parse_args(arguments)
    torch.set_num_threads(options.threads)  # for the table's header
    settings = Settings(threads=options.threads)
    if options.quick:
        settings = replace(settings, model="tiny", prompts=2, group_size=2, new_tokens=4)
    if not options.curves:
        step_table(settings, options).write(options.out, "lm_step")
    elif find_spec("trl"):
        curves_table(settings, options).write(options.out, "lm_curves")
    else:
        command.error("--curves: TRL is not installed, pip install 'trl==1.16.*'")


if __name__ == "__main__":
    main()
