"""Independent random streams for a run, all from one ``SeedSequence``."""

from __future__ import annotations

import numpy as np

from grpo_bench.grpo.choices import check_choice

# policy: initialisation, sampled actions, minibatches. environment: the problems that it draws.
# starts: seeds of groups where the environment has no problem ids. warmup: demonstrations.
# Adding a name at the end keeps the streams of the others.
STREAMS = ("policy", "environment", "starts", "warmup")


def stream(seed: int, name: str) -> np.random.SeedSequence:
    """A named stream of a run's seed. Streams of different seeds or names share nothing.

    Raises:
        ValueError: unknown name.
    """
    check_choice("stream", name, STREAMS)
    return np.random.SeedSequence(entropy=seed, spawn_key=(STREAMS.index(name),))


def integer_seed(seed: int, name: str) -> int:
    """The stream as one integer below 2**31, for libraries that take nothing else."""
    return int(stream(seed, name).generate_state(1)[0] >> 1)
