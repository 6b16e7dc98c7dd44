"""The typed configuration of a run."""

from grpo_bench.config.resolve import CONF, composed, from_plain, resolved
from grpo_bench.config.schema import ControlConfig, GymConfig, LanguageConfig, RunConfig

__all__ = [
    "CONF",
    "ControlConfig",
    "GymConfig",
    "LanguageConfig",
    "RunConfig",
    "composed",
    "from_plain",
    "resolved",
]
