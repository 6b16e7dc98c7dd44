"""The keywords of an algorithm: its options in its signature and its help, and what to say where a
keyword is unknown."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, TypeVar

from grpo_bench.grpo.settings import Settings

Algorithm = TypeVar("Algorithm", bound=type)

NO_CRITIC = "there is no critic: advantages come from the group (baseline, supervision)"
NO_SDE = "every action is sampled independently, so leave it out"
ELSEWHERE = {  # keywords of SB3's algorithms and of TRL's GRPO, and what takes their place
    "n_steps": "an iteration plays whole episodes, group_size of each of n_problems problems: set "
    "n_problems",
    "vf_coef": NO_CRITIC,
    "clip_range_vf": NO_CRITIC,
    "gae_lambda": "there is no critic to bootstrap from: supervision='return_to_go' credits each "
    "action with the rewards that follow it, discounted by gamma",
    "normalize_advantage": "baseline='group' divides by the deviation of the group, 'batch' by "
    "that of the batch, 'group_mean' and 'rloo' by nothing",
    "use_sde": NO_SDE,
    "sde_sample_freq": NO_SDE,
    "rollout_buffer_class": "groups of episodes need a rollout of their own: grpo.rollout.Rollout",
    "rollout_buffer_kwargs": "groups of episodes need a rollout of their own: grpo.rollout.Rollout",
    "use_rms_prop": "pass policy_kwargs={'optimizer_class': torch.optim.RMSprop}",
    "rms_prop_eps": "pass policy_kwargs={'optimizer_kwargs': {'eps': ...}}",
    "n_envs": "make the environments first: make_vec_env(id, n_envs)",
    "num_generations": "the size of a group is group_size",
    "num_iterations": "passes over the rollouts are n_epochs",
    "beta": "the weight of the KL is kl_coef, and kl chooses its form",
    "epsilon": "the bound of the ratio is clip_range",
    "epsilon_high": "the upper bound of the ratio is clip_range_high",
    "loss_type": "choose aggregation, surrogate and baseline",
    "scale_rewards": "baseline='group' divides by the deviation, 'group_mean' does not",
}


def settings_of(algorithm: type, options: Mapping[str, Any]) -> Settings:
    """The settings that the keywords ``options`` of ``algorithm`` ask for.

    Raises:
        TypeError: an unknown keyword, with the one that is probably meant or what takes its place.
        ValueError: see ``Settings``.
    """
    ours = {each.name for each in fields(Settings)}
    for name, value in options.items():
        if name not in ours:
            known = [key for key in inspect.signature(algorithm).parameters if key[0] != "_"]
            hint = _hint(name, known)
            raise TypeError(f"{name}={value!r}: {algorithm.__name__} has no {name}{hint}")
    return Settings(**options)


def _hint(name: str, known: list[str]) -> str:
    if name in ELSEWHERE:
        return f"; {ELSEWHERE[name]}"
    close = get_close_matches(name, known, n=1)
    return f", did you mean {close[0]}?" if close else f"; it has {', '.join(known)}"


def takes_settings(algorithm: Algorithm) -> Algorithm:
    """A decorator for a class whose constructor takes the options as ``**options``: its signature
    names each option with its default, and its help also has their meanings.

    An option is typed once, so a new one needs no line in the algorithm. ``inspect.signature``,
    ``help`` and notebooks see it; so do type checkers, as an attribute of the algorithm.
    """
    init = vars(algorithm)["__init__"]
    signature = inspect.signature(init)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    options = [
        inspect.Parameter(
            f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=f.type
        )
        for f in fields(Settings)
    ]
    parameters = sorted([*options, *own], key=lambda p: p.kind)  # SB3's keywords are the last
    init.__signature__ = signature.replace(parameters=parameters)
    lines = [f"    {f.name}={f.default!r}: {f.metadata['meaning']}" for f in fields(Settings)]
    algorithm.__doc__ = "\n".join(
        [inspect.cleandoc(algorithm.__doc__ or ""), "", "Options:", *lines]
    )
    return algorithm
