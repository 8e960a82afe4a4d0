"""Every golden case, in float64 at its own tolerance and in float32 at the fixed one (algorithms.md section
13).
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent


def _adapter():
    spec = importlib.util.spec_from_file_location("golden_adapter", HERE / "adapter.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["golden_adapter"] = module
    spec.loader.exec_module(module)
    return module


adapter = _adapter()
CASES = json.loads((HERE / "cases.json").read_text())["cases"]


def _check(case: dict, dtype: torch.dtype, rtol: float, atol: float) -> None:
    assert case["op"] in adapter.OPS, f"operation {case['op']} is missing"
    actual = adapter.OPS[case["op"]](adapter.decode(case["inputs"]), dtype)
    for name, expected in adapter.decode(case["expected"]).items():
        error = adapter.worst_error(actual.get(name), expected, rtol, atol)
        assert error <= 1, (
            f"{name}: error {error:.3g} x tolerance; got {actual.get(name)}, expected {expected}"
        )


def test_all_cases_are_here():
    assert len(CASES) == 273
    assert {case["op"] for case in CASES} == set(adapter.OPS)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_golden_float64(case):
    _check(case, torch.float64, case["rtol"], case["atol"])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_golden_float32(case):
    _check(case, torch.float32, 2e-5, 2e-6)
