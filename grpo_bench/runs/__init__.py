"""From a configuration to a record: one run, many runs, and what people see of them."""
