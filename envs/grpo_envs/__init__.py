"""Gymnasium environments with verifiable rewards, in which a group (G rollouts of one problem) is
a first-class thing. Importing this package registers the ids; it needs numpy and gymnasium only."""

from gymnasium.envs.registration import register

from grpo_envs.check import check_group_env

__all__ = ["check_group_env"]

for _name, _module in [("VLM", "vlm"), ("Arithmetic", "arithmetic"), ("Format", "format")]:
    register(
        id=f"GRPO-{_name}-v0",
        entry_point=f"grpo_envs.{_module}:{_name}Env",
        vector_entry_point=f"grpo_envs.{_module}:{_name}VectorEnv",
    )
