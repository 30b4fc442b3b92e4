"""Random numbers inside a kernel: a counter and a mixer, so that a chunk's draws depend only on its seed.

splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014): the state is one word that
grows by a constant; each number is the state, mixed. A kernel keeps the state in a local variable:

    state = np.uint64(seed)
    state += STEP
    k = below(mixed(state), n)
"""

import numpy as np

from hogwild.kernels.compiling import only_in_kernels

STEP = np.uint64(0x9E3779B97F4A7C15)
_A, _B = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_30, _27, _31, _32 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(32)


@only_in_kernels
def mixed(state):  # type: ignore[no-untyped-def]
    """Return 64 random bits from a state, uint64."""
    z = (state ^ (state >> _30)) * _A
    z = (z ^ (z >> _27)) * _B
    return z ^ (z >> _31)


@only_in_kernels
def below(bits, n):  # type: ignore[no-untyped-def]
    """Return a number in [0, n), n < 2^31, from 64 random bits: int64. Lemire's multiplication, without the rejection
    that would make it exact: off by at most n / 2^32."""
    return np.int64(((bits >> _32) * np.uint64(n)) >> _32)


@only_in_kernels
def unit(bits):  # type: ignore[no-untyped-def]
    """Return a number in [0, 1), float32, from 64 random bits."""
    return np.float32(bits >> np.uint64(40)) * np.float32(1.0 / 16777216.0)
