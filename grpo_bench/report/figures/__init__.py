"""Figures of a report as files."""
