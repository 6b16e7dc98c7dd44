"""Tricks that make training fast and change no result, kept apart from the algorithm."""
