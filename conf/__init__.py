"""The Hydra configuration of ``grpo_bench.run`` and ``grpo_bench.tables``."""
