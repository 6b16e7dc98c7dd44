"""The configuration of a run: every group, every key, its type and the values that are valid.

A key is a field whose type carries its rule (``rules``). To add a key, add a field here and a line
in ``conf/``. OmegaConf's structured configs are not used: they turn ``'3'`` into 3 and ``true``
into 1, and add their defaults to the composed configuration, which would rename every run.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Self

from grpo_bench.config.rules import (
    COUNT,
    Count,
    Flag,
    Folder,
    Layers,
    Number,
    Options,
    Plain,
    Project,
    Rate,
    Seconds,
    Seed,
    Share,
    Text,
    Tuned,
    Wrappers,
    argument_rule,
    option_rule,
    others,
    read,
)


@dataclass(frozen=True)
class BudgetConfig:
    """How long a run trains, and on what it is judged."""

    name: Text
    transitions: Count
    evaluations: Count
    split: Tuned
    test: Flag


@dataclass(frozen=True)
class AlgoConfig:
    """An algorithm. ``options`` are the keywords of its own: GRPO's (``grpo.settings``), or those
    of a class of SB3, which checks them itself. ``code`` is the digest of each module of the user's
    own that they name; ``resolve.resolved`` adds it."""

    name: Text
    kind: Text
    learning_rate: Rate
    minibatches: Count
    n_epochs: Count
    code: Options = field(default_factory=dict)
    options: Mapping[str, Any] = others(option_rule)

    def keywords(self) -> dict[str, Any]:
        """All but the name and the code, in one mapping."""
        apart = ("name", "code", "options")
        return {key: value for key, value in vars(self).items() if key not in apart} | {
            **self.options
        }


@dataclass(frozen=True)
class NetworkConfig:
    """The actor's body and its arguments: a name in ``training.networks.BODIES``, or a features
    extractor of SB3 as ``package.module:Name``."""

    body: Text
    arguments: Mapping[str, Any] = others(argument_rule)


@dataclass(frozen=True)
class WarmupConfig:
    """Supervised training on noisy demonstrations, before the run: ``training.warmup``."""

    steps: Count
    batch_size: Count
    learning_rate: Rate
    noise: Share
    seed: Seed


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """An iteration. The last three are what ``conf/algo`` takes as its defaults."""

    episodes: Count
    minibatches: Count
    n_epochs: Count
    learning_rate: Rate


@dataclass(frozen=True, kw_only=True)
class GymTrainConfig(TrainConfig):
    """An iteration of the Gym track."""

    n_steps: Count


@dataclass(frozen=True, kw_only=True)
class TextTrainConfig(TrainConfig):
    """An iteration of a language model."""

    group_size: Count
    max_tokens: Count


@dataclass(frozen=True)
class TransitionsConfig:
    """The length of each budget: environment transitions, or tokens of a language model."""

    by_budget: Mapping[str, int] = others(lambda name: COUNT)


@dataclass(frozen=True)
class GenerationConfig:
    """How a language model writes its completions."""

    max_new_tokens: Count
    temperature: Rate
    backend: Text


@dataclass(frozen=True)
class EvaluationConfig:
    """How a language model is evaluated."""

    batch_size: Count


@dataclass(frozen=True, kw_only=True)
class EnvConfig:
    """An environment, and what depends on it. ``code`` as in ``AlgoConfig``."""

    name: Text
    id: Text
    train: TrainConfig
    warmup: WarmupConfig | None
    kwargs: Options = field(default_factory=dict)
    code: Options = field(default_factory=dict)
    transitions: TransitionsConfig


@dataclass(frozen=True, kw_only=True)
class GymEnvConfig(EnvConfig):
    """An environment of the Gym track."""

    policy: Text
    network: NetworkConfig
    train: GymTrainConfig


@dataclass(frozen=True, kw_only=True)
class ControlTrainConfig(GymTrainConfig):
    """An iteration on an environment whose episodes have different lengths. GRPO plays ``episodes``
    of them, SB3's algorithms ``n_steps`` in each of the sub-environments."""

    sub_envs: Count


@dataclass(frozen=True)
class ReturnsConfig:
    """Mean returns of a random policy and of a good one, which become the scores 0 and 1."""

    random: Number
    reference: Number


@dataclass(frozen=True)
class EpisodesConfig:
    """How many episodes an evaluation plays, with the most likely actions (``greedy``) or with
    sampled ones."""

    episodes: Count
    greedy: Flag


@dataclass(frozen=True, kw_only=True)
class ControlEnvConfig(EnvConfig):
    """Any Gymnasium environment. Its ``id`` may be ``package.module:Name-v0``.

    Attributes:
        policy: a policy of SB3, or ``auto``: the one that fits the observations.
        wrappers: ``package.module:Wrapper`` of each, the innermost first; one with keywords is
            ``{package.module:Wrapper: {keyword: value}}``.
        workers: 1: the sub-environments are in the run's own process; more: each in one of its own.
        gamma: the discount of all algorithms.
        normalize: observations and rewards, by SB3's ``VecNormalize``.
        zoo: settings of PPO that RL Baselines3 Zoo publishes for it.
    """

    policy: Text
    network: NetworkConfig | None
    train: ControlTrainConfig
    wrappers: Wrappers
    workers: Count
    gamma: Share
    normalize: Flag
    returns: ReturnsConfig | None
    evaluation: EpisodesConfig
    zoo: Options = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TextEnvConfig(EnvConfig):
    """An environment whose problems are put to a language model.

    Attributes:
        pay_truncated: judge also a reply that reached the limit of tokens before its end.
    """

    examples: Seed
    generation: GenerationConfig
    train: TextTrainConfig
    evaluation: EvaluationConfig
    shuffled_rewards: Flag = False
    pay_truncated: Flag = False


@dataclass(frozen=True)
class LoraConfig:
    """Adapters; with a rank of 0 all weights are trained."""

    rank: Seed
    alpha: Count
    target_modules: Layers


@dataclass(frozen=True)
class ModelConfig:
    """A language model. ``content`` is the digest of its folder, or its revision on the hub;
    ``resolve.resolved`` adds it."""

    name: Text
    source: Text
    dtype: Text
    optimizer: Text
    gradient_checkpointing: Flag
    sharded: Flag
    save: Flag
    lora: LoraConfig
    content: Text = ""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The configuration of a run: a ``GymConfig``, ``ControlConfig`` or ``LanguageConfig``.

    Attributes:
        plain: the same as plain values, for the record of the run and the hash in its name.
    """

    env: EnvConfig
    algo: AlgoConfig
    budget: BudgetConfig
    seed: Seed
    device: Text
    threads: Count
    results: Folder
    timeout_s: Seconds
    tensorboard: Flag
    wandb: Project
    checkpoint_minutes: Rate = 10.0
    plain: Plain = field(default_factory=dict, repr=False, metadata={"plain": True})

    @property
    def name(self) -> str:
        """A short name: environment, algorithm and seed."""
        return self.name_with("")

    def name_with(self, differs: str) -> str:
        """The same with the settings that tell it from other runs of this algorithm."""
        algo = f"{self.algo.name} ({differs})" if differs else self.algo.name
        return f"{self.env.name} {algo} seed={self.seed}"

    def changed(self, values: Mapping[str, Any]) -> Self:
        """The same with other values, by dotted key, checked like all others."""
        plain = deepcopy(self.plain)
        for name, value in values.items():
            *groups, key = name.split(".")
            group = plain
            for part in groups:
                group = group[part]
            group[key] = value
        return read(type(self), plain)


@dataclass(frozen=True, kw_only=True)
class GymConfig(RunConfig):
    """A run on one of our own tasks."""

    env: GymEnvConfig


@dataclass(frozen=True, kw_only=True)
class ControlConfig(RunConfig):
    """A run on any Gymnasium environment."""

    env: ControlEnvConfig


@dataclass(frozen=True, kw_only=True)
class LanguageConfig(RunConfig):
    """A run that trains a language model."""

    env: TextEnvConfig
    model: ModelConfig
