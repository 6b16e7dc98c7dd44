"""From a resolved configuration to its trainer."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from grpo_bench.config.schema import LanguageConfig, LoraConfig
from grpo_bench.grpo.choices import check_choice
from grpo_bench.grpo.seeds import integer_seed
from grpo_bench.lm.critics import Critic, make_critic
from grpo_bench.lm.lora import Lora, Reference
from grpo_bench.lm.models import LanguageModel, check_source, load_model
from grpo_bench.lm.optimizer import OPTIMIZERS
from grpo_bench.lm.parallel import World
from grpo_bench.lm.settings import Settings, settings_of
from grpo_bench.lm.sharding import check_sharded, shard_all
from grpo_bench.lm.tasks import TextTask, task_of
from grpo_bench.lm.torchrun import n_processes
from grpo_bench.lm.trainer import Trainer
from grpo_bench.lm.vllm_backend import check_backend
from grpo_bench.meter.clock import Phases


def make_trainer(
    config: LanguageConfig,
    device: str = "cpu",
    world: World | None = None,
    phases: Phases | None = None,
) -> Trainer:
    """The trainer of a resolved configuration.

    Raises:
        ValueError: names the setting that is wrong, or says why the model is not there.
    """
    networks = make_networks(config, device)
    world = World() if world is None else world
    world.check_equal(networks.lm.model.parameters())
    if config.model.sharded:
        shard_all(networks.lm.model, networks.reference, networks.critic, world)
    return with_networks(networks, config, world, phases)


class Networks(NamedTuple):
    """What a step runs, before it has an optimiser."""

    lm: LanguageModel
    reference: Reference | None
    critic: Critic | None


def make_networks(config: LanguageConfig, device: str) -> Networks:
    """The networks of a resolved configuration. On the device ``meta`` they have shapes only."""
    model, settings = config.model, settings_from(config)
    lora = lora_of(model.lora)
    weights_seed = integer_seed(config.seed, "policy")
    lm = load_model(
        model.source,
        dtype=model.dtype,
        device=device,
        lora=lora,
        gradient_checkpointing=model.gradient_checkpointing,
        seed=weights_seed,
    )
    reference = None if settings.kl == "none" else Reference(lm.model)
    critic = None
    if settings.kind == "ppo":
        of_critic = replace(lora, rank=settings.critic_rank)
        critic = make_critic(settings.critic, lm.model, reference, of_critic, weights_seed)
    return Networks(lm, reference, critic)


def with_networks(
    networks: Networks,
    config: LanguageConfig,
    world: World | None = None,
    phases: Phases | None = None,
) -> Trainer:
    """The trainer of networks that were made for this configuration."""
    return Trainer(
        networks.lm,
        TextTask(config.env, networks.lm),
        settings_from(config),
        config.env,
        optimizer=config.model.optimizer,
        critic=networks.critic,
        reference=networks.reference,
        seed=config.seed,
        world=world,
        phases=phases,
    )


def check_config(config: LanguageConfig) -> None:
    """What can be seen without loading the model.

    Raises:
        ValueError: as ``make_trainer``.
    """
    model, env, settings = config.model, config.env, settings_from(config)
    ranks = World(size=n_processes())
    ranks.check_parts(env.train.episodes // settings.group_size, settings.minibatches)
    if model.sharded:
        check_sharded(ranks)
    check_backend(env.generation.backend, ranks)
    check_source(model.source, model.dtype)
    check_choice("model.optimizer", model.optimizer, OPTIMIZERS)
    task = task_of(env)
    task.chats(task.problem_ids("train")[:1], env.examples)


def settings_from(config: LanguageConfig) -> Settings:
    """The settings of the update."""
    env = config.env
    return settings_of(config.algo, env.train, env.generation.max_new_tokens)


def lora_of(config: LoraConfig) -> Lora:
    """The adapters of a configuration."""
    targets = config.target_modules
    named = targets if isinstance(targets, str) else tuple(targets)
    return Lora(config.rank, config.alpha, named)
