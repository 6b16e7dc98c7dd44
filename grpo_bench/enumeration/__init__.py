"""Policies so small that every group of rollouts can be listed: what a loss does in expectation."""
