"""One training run of the Gym track: what it trains, what it measures, and where that goes."""
