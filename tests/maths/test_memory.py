"""Memory model."""

import pytest

from tether import maths
from tether.maths import ActivationKind


@pytest.mark.parametrize(
    ("kind", "expected"),
    [  # s 2, b 3, h 10, a 4: s b h = 60, a s^2 b = 48
        (ActivationKind.FULL, 2280),
        (ActivationKind.FLASH, 2040),
        (ActivationKind.CHECKPOINT, 120),
    ],
)
def test_activations_by_hand(kind, expected):
    assert maths.activation_bytes_per_layer(kind, 2, 3, 10, 4) == expected


def test_kv_cache_and_logits_by_hand():
    assert maths.kv_cache_bytes(3, 2, 8, 5) == 960
    assert maths.kv_cache_bytes(3, 2, 8, 5, bytes_per_value=1) == 480
    assert maths.logits_bytes(7, 100) == 7000
