"""GRPO-Arithmetic-v0 and GRPO-Format-v0: compute an expression, token by token."""
