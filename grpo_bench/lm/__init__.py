"""GRPO and PPO on causal language models."""
