"""The same search for every algorithm: its trials, the search, and what it found."""
