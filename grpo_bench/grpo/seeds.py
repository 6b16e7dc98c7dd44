"""Independent random streams for a run, all from one ``SeedSequence``."""

from __future__ import annotations

import numpy as np

# policy: initialisation, sampled actions, minibatches. environment: the problems that it draws.
# starts: seeds of groups where the environment has no problem ids. warmup: demonstrations.
# Adding a name at the end keeps the streams of the others.
STREAMS = ("policy", "environment", "starts", "warmup")


def stream(seed: int, name: str) -> np.random.SeedSequence:
    """The stream of that name for a run's seed; streams of different seeds or names share nothing.

    Raises:
        ValueError: unknown name.
    """
    if name not in STREAMS:
        raise ValueError(f"stream {name!r}: expected one of {', '.join(STREAMS)}")
    return np.random.SeedSequence(entropy=seed, spawn_key=(STREAMS.index(name),))


def integer_seed(seed: int, name: str) -> int:
    """The stream as one integer below 2**31, for libraries that take nothing else."""
    return int(stream(seed, name).generate_state(1)[0] >> 1)
