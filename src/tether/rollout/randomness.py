"""Counter-based randomness: the uniform of a token is a function of (key, sample index, position) and of
nothing else.

No generator is advanced, so batch size, order of requests, number of workers and a restart change no draw.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["request_key", "uniforms"]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio: the increment of splitmix64
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def request_key(run_seed: int, step: int, prompt_id: str) -> int:
    """The 64-bit key of a prompt's randomness at a step: a stable hash, the same on every machine and Python.

    Example: request_key(0, 1, "a") differs from request_key(0, 11, "") and from request_key(1, 0, "a").
    """
    text = f"{run_seed}\x1f{step}\x1f{prompt_id}"
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8, person=b"tether.rollout").digest()
    return int.from_bytes(digest, "little")


def uniforms(keys: ArrayLike, sample_indices: ArrayLike, positions: ArrayLike) -> NDArray[np.float64]:
    """One uniform of the open interval (0, 1) per element; the arguments broadcast.

    Each argument is absorbed by one round of splitmix64 (Steele, Lea, Flood 2014); the top 53 bits plus one
    half are scaled by 2^-53, so neither 0 nor 1 occurs. ``keys`` are unsigned 64-bit, the others
    non-negative.
    """
    state = _mix(np.asarray(keys, dtype=np.uint64))
    state = _mix(state ^ np.asarray(sample_indices, dtype=np.uint64))
    state = _mix(state ^ np.asarray(positions, dtype=np.uint64))
    # (2^53 - 1 + .5) rounds to 2^53 in float64: the minimum keeps the largest value below 1.
    return np.minimum(((state >> np.uint64(11)) + 0.5) * 2.0**-53, 1.0 - 2.0**-53)


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The splitmix64 step: add the increment, then the finaliser; a bijection of 64 bits (wraps on
    purpose).
    """
    with np.errstate(over="ignore"):
        state = state + _GOLDEN
        state = (state ^ (state >> np.uint64(30))) * _MIX_1
        state = (state ^ (state >> np.uint64(27))) * _MIX_2
    return state ^ (state >> np.uint64(31))
