"""GRPO-Arithmetic-v0 and GRPO-Format-v0: an expression, answered token by token."""
