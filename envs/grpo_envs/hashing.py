"""Random numbers that depend only on the problem: the same in every batch, view and process.

The hash is splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
OOPSLA 2014), used as a counter-based generator: draw c of problem p is
``mix(mix(p) + c * GOLDEN)``.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from grpo_envs.task import IntArray

UInt64Array = NDArray[np.uint64]
GOLDEN = 0x9E3779B97F4A7C15  # 2**64 / golden ratio, splitmix64's step


def mix(z: UInt64Array) -> UInt64Array:
    """splitmix64's output function, elementwise: a bijection of 64-bit integers that mixes all
    bits."""
    z = z + np.uint64(GOLDEN)  # a new array; the rest is in place
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


def counters(n: int) -> UInt64Array:
    """The counters of the first n draws of a problem, (n,)."""
    return np.arange(n, dtype=np.uint64) * np.uint64(GOLDEN)


def draws(ids: IntArray, counters: UInt64Array) -> UInt64Array:
    """64 random bits, (n, c), for problems (n,) and counters (c,)."""
    return mix(mix(ids.view(np.uint64))[:, None] + counters)


def below(bits: UInt64Array, m: int | IntArray) -> IntArray:
    """Integers in [0, m) from draws, uniform up to a bias below m / 2**32; m broadcasts."""
    high = bits >> np.uint64(32)
    return ((high * np.asarray(m, dtype=np.uint64)) >> np.uint64(32)).astype(np.int64)


def normals(bits: UInt64Array) -> NDArray[np.float32]:
    """Independent standard normals (n, 2 c) from draws (n, c), two for each (Box and Muller).

    The radius comes from 24 bits, so no value exceeds sqrt(48 ln 2) = 5.77.
    """
    uniform = ((bits >> np.uint64(40)).astype(np.float32) + 1) * np.float32(2**-24)  # (0, 1]
    turn = (bits & np.uint64(0xFFFFFF)).astype(np.float32) * np.float32(2 * math.pi / 2**24)
    radius = np.sqrt(-2 * np.log(uniform))
    return np.concatenate([radius * np.cos(turn), radius * np.sin(turn)], axis=1)
