"""A file of cases is foreign data: whatever is wrong with it is said, and the rest goes on."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
import torch

from tether.conformance import OPERATIONS, as_json, as_text, run_case, run_file
from tether.conformance.codec import Deviation, decode, encode, worst_error
from tether.errors import ConfigError, DataError

GOOD = {"id": "good", "op": "pass_at_k", "inputs": {"n": 10, "c": 3, "k": 1}, "expected": {"value": 0.3}}


def report_of(tmp_path: Path, *cases: object):
    path = tmp_path / "cases.json"
    path.write_text(json.dumps({"cases": list(cases)}), encoding="utf-8")
    return run_file(path, ["cpu"])


def problem_of(case: object) -> str:
    [failure] = run_case(case, torch.float64).failures
    return failure.problem


def test_a_good_file(tmp_path: Path):
    report = report_of(tmp_path, GOOD, GOOD)
    assert report.ok
    assert report.verdict == "all 4 checks of 1 operations passed"
    lines = [(line.operation, line.dtype, line.device, line.num_cases, line.num_passed) for line in report.operations]
    assert lines == [("pass_at_k", "float64", "cpu", 2, 2), ("pass_at_k", "float32", "cpu", 2, 2)]
    assert "FAILED" not in as_text(report)
    assert json.loads(as_json(report))["ok"] is True


def test_failures_are_listed_and_the_others_go_on(tmp_path: Path):
    wrong = {"id": "w", "op": "remax_advantages", "inputs": {"rewards": [1, 2], "greedy_rewards": [0, 0]},
             "expected": {"advantages": [1, 5], "extra": ["nan"]}}  # fmt: skip
    report = report_of(tmp_path, wrong, GOOD, {**GOOD, "op": "sorcery"}, {**GOOD, "id": "s2", "op": "sorcery"}, {"id": "x"}, 7)
    text = as_text(report)
    assert not report.ok
    assert report.missing == {"sorcery": 2}
    assert report.num_failed == 6
    assert "FAILED w (remax_advantages, float64, cpu) advantages: off by" in text
    assert "at [1]: 2.0 where 5 is expected" in text
    assert "got      [1.0, 2.0]\n    expected [1, 5]" in text
    assert "extra: not produced; there is advantages" in text
    assert "FAILED x ((no operation), float32, cpu): the case has no op" in text
    assert "FAILED case 6 " in text
    assert "MISSING sorcery: 2 cases" in text
    assert text.endswith("6 of 8 checks failed; missing operations: 1")
    shown = json.loads(as_json(report))
    assert shown["missing"] == {"sorcery": 2}
    assert shown["operations"][0]["worst"]["absolute"] == "inf"
    assert [line["num_passed"] for line in shown["operations"] if line["operation"] == "pass_at_k"] == [1, 1]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[]", "holds no cases"),
        (b'{"cases": []}', "holds no cases"),
        (b'{"cases": {"a": 1}}', "holds no cases"),
        (b"3", "holds no cases"),
    ],
)
def test_a_file_that_is_not_cases(tmp_path: Path, content: bytes, words: str):
    path = tmp_path / "cases.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=words):
        run_file(path)


def test_a_file_that_cannot_be_read(tmp_path: Path):
    with pytest.raises(DataError, match=r"cannot read .*nothing\.json"):
        run_file(tmp_path / "nothing.json")
    with pytest.raises(DataError, match="cannot read"):
        run_file(tmp_path)


def test_a_device_that_is_not_there(tmp_path: Path):
    path = tmp_path / "cases.json"
    path.write_text(json.dumps({"cases": [GOOD]}), encoding="utf-8")
    with pytest.raises(ConfigError, match="'sundial' cannot be used"):
        run_file(path, ["sundial"])


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (None, "must be an object"),
        ([], "must be an object"),
        ({**GOOD, "op": 3}, "has no op"),
        ({"op": "pass_at_k", "expected": {"value": 1}}, "'inputs' must be an object.* has none"),
        ({**GOOD, "inputs": [1]}, "'inputs' must be an object.* has list"),
        ({"op": "pass_at_k", "inputs": {}}, "'expected' must be an object"),
        ({**GOOD, "expected": {}}, "checks nothing"),
        ({**GOOD, "rtol": "tight"}, "'rtol' must be a number"),
        ({**GOOD, "inputs": {"n": 10, "c": 3}}, "input 'k' is missing; given: n, c"),
        ({**GOOD, "inputs": {"n": 10, "c": 3, "k": 1.5}}, "input 'k': expected a whole number, got 1.5"),
        ({**GOOD, "inputs": {"n": 10, "c": 3, "k": "one"}}, "input 'k': expected a whole number, got 'one'"),
        ({**GOOD, "inputs": {"n": 10, "c": 3, "k": True}}, "input 'k': expected a whole number, got True"),
        ({**GOOD, "inputs": {"n": 10, "c": 3, "k": "inf"}}, "input 'k': expected a whole number, got inf"),
        ({**GOOD, "inputs": {"n": 10, "c": 11, "k": 1}}, "ValueError: expected 0 <= c <= n"),
        ({"op": "bon_select", "inputs": {"scores": ["nan", "nan"]}, "expected": {"index": 0}}, "no answer has a score"),
        ({"op": "bon_select", "inputs": {"scores": [[1], [1, 2]]}, "expected": {"index": 0}}, "input 'scores': "),
        ({"op": "bon_select", "inputs": {"scores": {"a": 1}}, "expected": {"index": 0}}, "input 'scores': "),
        ({"op": "bon_select", "inputs": {"scores": None}, "expected": {"index": 0}}, "input 'scores': "),
        ({"op": "bon_select", "inputs": {"scores": ["high"]}, "expected": {"index": 0}}, "input 'scores': "),
        ({"op": "reward_to_go", "inputs": {"rewards": [[1]], "mask": [["nan"]]}, "expected": {"returns": [[1]]}},
         "input 'mask': expected true and false"),
        ({"op": "reward_to_go", "inputs": {"rewards": [["nan"]], "mask": [[True]]}, "expected": {"returns": [[1]]}},
         "NonFiniteError: rewards is nan at row 0, column 0"),
        ({"op": "rloo_advantages", "inputs": {"rewards": [1], "group_ids": [0.5]}, "expected": {"advantages": [0]}},
         "input 'group_ids': expected whole numbers"),
        ({"op": "kl_token", "inputs": {"logprobs": [[0]], "ref_logprobs": [[0]], "mask": [[1]], "kind": "k9"},
          "expected": {"values": [[0]]}}, "input 'kind': expected one of k1, k2, k3; got 'k9'"),
        ({"op": "whiten", "inputs": {"x": [[0]], "mask": [[1]], "shift_mean": 1}, "expected": {"out": [[0]]}},
         "input 'shift_mean': expected true or false, got 1"),
        ({"op": "ngram_metrics", "inputs": {"token_lists": [3], "n": 1}, "expected": {"repeat_share": [0]}},
         "input 'token_lists': expected a list, got 3"),
    ],
)  # fmt: skip
def test_a_case_that_cannot_run_says_why(tmp_path: Path, case: object, words: str):
    assert report_of(tmp_path, case, GOOD).num_failed == 2
    assert re.search(words, problem_of(case)), problem_of(case)


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_every_operation_names_a_missing_input(name: str):
    assert "is missing" in problem_of({"op": name, "inputs": {}, "expected": {"x": 1}})


def test_optional_inputs_may_be_absent_or_null():
    x, mask = [[1.0, 3.0]], [[True, True]]
    for more in ({}, {"ddof": None, "eps": None}, {"ddof": 0, "eps": 1e-8}):
        inputs = {"x": x, "mask": mask, "shift_mean": True, **more}
        assert run_case({"op": "whiten", "inputs": inputs, "expected": {"out": [[-1, 1]]}}, torch.float32).failures == ()
    plain = {"logits": [1.0, 0.0], "temperature": 1.0, "top_k": None}
    case = {"op": "filtered_logprobs", "inputs": plain, "expected": {"keep": [True, True], "log_kept_mass": 0}}
    assert run_case(case, torch.float64).failures == ()


def test_tensors_are_made_on_the_device_of_the_run():
    seen = []

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func is torch.tensor:
                seen.append(str(kwargs["device"]))
            return func(*args, **(kwargs or {}))

    case = {"op": "remax_advantages", "inputs": {"rewards": [1], "greedy_rewards": [0]}, "expected": {"advantages": [1]}}
    with Watch():
        run_case(case, torch.float64, "meta")
    assert seen == ["meta", "meta"]


@pytest.mark.parametrize(
    ("got", "expected", "deviation"),
    [
        (1.5, 1.0, Deviation(0.5, 0.5, 5 / 1.01)),
        ([1, 2], [1.0, 2.0], Deviation()),
        (1e-9, 0.0, Deviation(1e-9, 0.0, 1e-9 / 1e-3)),
        (math.nan, math.nan, Deviation()),
        (-math.inf, -math.inf, Deviation()),
        (None, None, Deviation()),
        ("a", "a", Deviation()),
        (True, 1, Deviation()),
        ([], [], Deviation()),
    ],
)
def test_worst_error(got: object, expected: object, deviation: Deviation):
    found = worst_error(got, expected, 0.1, 1e-3)
    assert found.absolute == pytest.approx(deviation.absolute)
    assert found.relative == pytest.approx(deviation.relative)
    assert found.tolerance == pytest.approx(deviation.tolerance)


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        (1.0, math.nan), (math.nan, 1.0), (math.inf, -math.inf), (1e300, math.inf), (None, 1), (0, None), ("a", 1),
        ([1], 1), (1, [1]), ([1, 2], [1]), ([], [1]), ([[1]], [1]), (False, None),
    ],
)  # fmt: skip
def test_misfits(got: object, expected: object):
    assert worst_error(got, expected, 1.0, 1.0).tolerance == math.inf


def test_zero_tolerance_asks_for_equality():
    assert worst_error(1.0, 1.0, 0, 0).passes
    assert not worst_error(1.0 + 1e-15, 1.0, 0, 0).passes
    assert worst_error(10**40, 10**40, 0, 0).passes


def test_codec_round_trip():
    assert encode(decode(["inf", ["-inf", "nan", 1, None, "k1"], {"a": "nan"}])) == ["inf", ["-inf", "nan", 1, None, "k1"], {"a": "nan"}]
    assert math.isnan(decode("nan"))


def test_a_misspelt_optional_input_fails_and_one_that_is_not_needed_does_not():
    inputs = {"chosen": [1.0], "rejected": [0.0], "label_smoothing": 0.0}
    case = {"op": "bt_loss", "inputs": inputs, "expected": {"loss": math.log(1 + math.exp(-1))}}
    assert not run_case(case, torch.float64).failures
    assert not run_case({**case, "inputs": inputs | {"source": "a book"}}, torch.float64).failures
    assert problem_of({**case, "inputs": {"chosen": [1.0], "rejected": [0.0], "label_smothing": 0.3}}) == (
        "input 'label_smothing' is not one of this operation; did you mean 'label_smoothing'?"
    )
