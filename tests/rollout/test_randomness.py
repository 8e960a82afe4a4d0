"""Uniforms are a function of their coordinates, and look uniform along each of them."""

from __future__ import annotations

import numpy as np
import pytest

from tether.rollout import request_key, uniforms


def test_pinned_values() -> None:
    assert request_key(0, 1, "a") == request_key(0, 1, "a")
    assert (
        len({request_key(0, 1, "a"), request_key(0, 11, ""), request_key(1, 0, "a"), request_key(0, 1, "b")})
        == 4
    )
    assert request_key(17, 3, "prompt-5") == PINNED_KEY
    np.testing.assert_array_equal(uniforms([0, 0, 2**64 - 1], [0, 1, 7], [0, 0, 99]), PINNED_UNIFORMS)


PINNED_KEY = 17581192934480462583
PINNED_UNIFORMS = [0.13870941014555432, 0.26913031959045414, 0.502838018753623]


def test_each_element_stands_alone() -> None:
    keys, samples, positions = np.arange(5, dtype=np.uint64), np.arange(5), np.arange(5) * 3
    together = uniforms(keys, samples, positions)
    alone = [float(uniforms(k, s, p)) for k, s, p in zip(keys, samples, positions, strict=True)]
    assert together.tolist() == alone
    assert uniforms(keys[:, None], samples, 0).shape == (5, 5)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_uniform_and_uncorrelated_along_each_axis(axis: int) -> None:
    coordinates: list[object] = [7, 7, 7]
    coordinates[axis] = np.arange(40_000)
    u = uniforms(*coordinates)
    assert u.min() > 0
    assert u.max() < 1
    counts = np.histogram(u, 50, (0, 1))[0]
    assert ((counts - 800) ** 2 / 800).sum() < 100  # 49 degrees of freedom: 1 in 40,000
    assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 0.025
    assert len(np.unique(u)) == len(u)


def test_neighbouring_keys_and_swapped_coordinates_are_unrelated() -> None:
    positions = np.arange(20_000)
    assert abs(np.corrcoef(uniforms(1, 0, positions), uniforms(0, 1, positions))[0, 1]) < 0.03
    assert not np.any(uniforms(5, 1, 2) == uniforms(5, 2, 1))
