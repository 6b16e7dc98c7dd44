"""GRPO-VLM-v0: the task, its sources of problems and its environments."""

from grpo_envs.vlm.task import VLMTask
from grpo_envs.vlm.views import VLMEnv, VLMVectorEnv, make_vector_env

__all__ = ["VLMEnv", "VLMTask", "VLMVectorEnv", "make_vector_env"]
