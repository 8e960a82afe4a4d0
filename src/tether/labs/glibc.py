"""The random numbers of the C library, so that a program printed in a book can be replayed draw for draw."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

__all__ = ["RAND_MAX", "glibc_rand", "glibc_uniforms"]

RAND_MAX = 2**31 - 1


def glibc_rand(seed: int) -> Iterator[int]:
    """What ``rand()`` returns after ``srand(seed)``: glibc's additive feedback generator, r_i = r_(i-31) + r_(i-3) mod 2^32.

    The 31 words of the state come from the multiplicative generator 16807 x mod (2^31 - 1); 310 results are thrown away, and of
    every later one the lowest bit. Example: seed 1 -> 1804289383, 846930886, 1681692777.
    """
    words = [seed or 1]  # glibc takes a seed of 0 as 1
    for _ in range(30):
        words.append(16807 * words[-1] % RAND_MAX)
    state = deque(words[3:] + words[:3], maxlen=31)
    discarded = 0
    while True:
        state.append((state[0] + state[28]) % 2**32)
        if discarded < 310:
            discarded += 1
        else:
            yield state[-1] >> 1


def glibc_uniforms(seed: int) -> Iterator[float]:
    """rand() / RAND_MAX, in [0, 1] with both ends. Example: seed 42 -> .033470, .329964."""
    return (word / RAND_MAX for word in glibc_rand(seed))
