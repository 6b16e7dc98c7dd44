"""Many seeds of one configuration in one process: GRPO on stacked parameters, a record for each."""
