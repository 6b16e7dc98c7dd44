"""The same search for every algorithm: its trials, the search, and its result."""
