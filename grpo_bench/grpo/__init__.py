"""GRPO: the formulas as pure functions of tensors, and the Stable-Baselines3 algorithm on them."""
