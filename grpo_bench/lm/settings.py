"""The settings of GRPO and PPO on a language model, and which ones an algorithm has there."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields

from grpo_bench.config.schema import AlgoConfig, TextTrainConfig
from grpo_bench.grpo import settings as grpo
from grpo_bench.grpo.kl import FORMS
from grpo_bench.grpo.settings import count, factor, not_negative, one_of, option, positive
from grpo_bench.lm import critics

GYM_ONLY = {
    *("n_problems", "batch_size", "supervision", "ref_update_interval", "ref_tau"),
    *("mixed_start", "nan_reward", "target_kl", "max_episode_steps"),
}
GRPO_ONLY = {
    *("clip_range_high", "clip_dual", "surrogate", "ratio", "baseline", "ddof", "eps"),
    *("mask_truncated", "max_refills", "spread_tol"),
}
PPO_ONLY = {"critic", "critic_rank", "gamma", "gae_lambda", "vf_coef", "clip_range_vf"}


@dataclass(frozen=True, kw_only=True)
class Settings(grpo.Settings):
    """Those of ``GRPO``, and those of SB3's PPO. PPO clips its values as well, and may have a
    reference."""

    kind: str = option(MISSING, "grpo or ppo", one_of("grpo", "ppo"))
    learning_rate: float = option(MISSING, "at the start; it falls linearly to 0", not_negative)
    n_epochs: int = option(1, "passes over the completions", count)
    minibatches: int = option(1, "gradient steps in each pass", count)
    gamma: float = option(1.0, "discount of the rewards, by token", factor)
    critic: str = option("separate", "the critic's network: lm.critics", one_of(*critics.KINDS))
    critic_rank: int = option(16, "rank of the adapters of a LoRA critic", count)
    gae_lambda: float = option(0.95, "generalised advantage estimation's lambda", factor)
    vf_coef: float = option(0.5, "weight of the value loss", positive())
    clip_range_vf: float | None = option(
        0.2, "values may move by this much; None: without limit", positive(optional=True)
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kl != "none" and FORMS[self.kl].term is None:
            sampled = [name for name, form in FORMS.items() if form.term is not None]
            raise ValueError(
                f"kl={self.kl!r} with a language model, whose tokens are too many to sum over: "
                f"expected one of none, {', '.join(sampled)}"
            )


def settings_of(algo: AlgoConfig, train: TextTrainConfig, max_new_tokens: int) -> Settings:
    """The settings of an algorithm.

    PPO gets the same groups of completions as GRPO, though it makes no use of them, and takes the
    mean over tokens, as SB3 does over transitions.

    Raises:
        ValueError: a value out of range, or a setting that the algorithm does not have here.
    """
    given = {name: value for name, value in algo.keywords().items() if name != "name"}
    kind = algo.kind
    if kind not in ("grpo", "ppo"):
        raise ValueError(f"algo.kind={kind!r} with a language model: expected grpo or ppo")
    if kind == "ppo":
        given = {"group_size": train.group_size, "aggregation": "token_mean", **given}
    if given.get("aggregation") == "constant_length":
        given.setdefault("max_len", max_new_tokens)
    names = {each.name for each in fields(Settings)}
    known = names - GYM_ONLY - (PPO_ONLY if kind == "grpo" else GRPO_ONLY)
    defaults = {each.name: each.default for each in fields(grpo.Settings)}
    for name, value in given.items():
        if name not in known and value != defaults.get(name, MISSING):
            raise ValueError(
                f"algo.{name}={value!r} with a language model: {kind} has only "
                f"{', '.join(sorted(known))} there"
            )
    settings = Settings(**{name: value for name, value in given.items() if name in known})
    if train.episodes % settings.group_size:
        raise ValueError(
            f"env.train.episodes={train.episodes}: expected a multiple of "
            f"group_size={settings.group_size}"
        )
    groups = train.episodes // settings.group_size
    if groups % settings.minibatches:
        raise ValueError(
            f"algo.minibatches={settings.minibatches}: expected a divisor of the {groups} groups "
            "of an iteration"
        )
    return settings
