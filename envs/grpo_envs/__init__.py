"""Gymnasium environments with verifiable rewards, made for groups: G rollouts of one problem.

Importing this package registers the environments. It needs only numpy and gymnasium, and torch for
GRPO-VLM on a device."""

from typing import TYPE_CHECKING, Any

from gymnasium.envs.registration import register, registry

if TYPE_CHECKING:
    from grpo_envs.check import check_group_env

__all__ = ["check_group_env"]


def register_ids() -> None:
    """Register the environments that are not registered yet."""
    for name, module, vector in [
        ("VLM", "vlm", "make_vector_env"),  # numpy, or torch on a device
        ("Arithmetic", "tokens.arithmetic", "ArithmeticVectorEnv"),
        ("Format", "tokens.format", "FormatVectorEnv"),
    ]:
        if (env_id := f"GRPO-{name}-v0") not in registry:
            register(
                id=env_id,
                entry_point=f"grpo_envs.{module}:{name}Env",
                vector_entry_point=f"grpo_envs.{module}:{vector}",
            )


def __getattr__(name: str) -> Any:
    """Import the check on first use: ``import gymnasium`` imports this package and stays fast."""
    if name == "check_group_env":
        from grpo_envs.check import check_group_env

        return check_group_env
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


register_ids()
