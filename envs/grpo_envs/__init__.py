"""Gymnasium environments with verifiable rewards, in which a group (G rollouts of one problem) is
a first-class thing. Importing this package registers the ids; it needs numpy and gymnasium only,
and torch where GRPO-VLM is asked for on a device."""

from gymnasium.envs.registration import register

from grpo_envs.check import check_group_env

__all__ = ["check_group_env"]

for _name, _module, _vector in [
    ("VLM", "vlm", "make_vector_env"),  # which has a torch view as well
    ("Arithmetic", "tokens.arithmetic", "ArithmeticVectorEnv"),
    ("Format", "tokens.format", "FormatVectorEnv"),
]:
    register(
        id=f"GRPO-{_name}-v0",
        entry_point=f"grpo_envs.{_module}:{_name}Env",
        vector_entry_point=f"grpo_envs.{_module}:{_vector}",
    )
