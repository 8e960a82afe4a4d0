"""Every golden case, in float64 at its own tolerance and in float32 at the fixed one (algorithms.md section
13).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tether.conformance import OPERATIONS, as_text, run_case, run_file

CASES = json.loads((Path(__file__).parent / "cases.json").read_text(encoding="utf-8"))["cases"]


def test_all_cases_are_here():
    assert len(CASES) == 273
    assert {case["op"] for case in CASES} == set(OPERATIONS)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_golden(case: dict, dtype: torch.dtype):
    assert run_case(case, dtype).failures == ()


@pytest.mark.gpu
def test_golden_on_cuda():
    report = run_file(Path(__file__).parent / "cases.json", ["cuda"])
    assert report.ok, as_text(report)
