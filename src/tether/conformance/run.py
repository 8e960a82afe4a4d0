"""Run a file of cases: every case in float64 at its own tolerance and in float32 at the fixed one, on every device."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tether.errors import ConfigError, DataError

from .codec import MISFIT, Deviation, decode, encode, leaves, worst_error
from .inputs import Inputs
from .operations import OPERATIONS

FLOAT32_RTOL, FLOAT32_ATOL = 2e-5, 2e-6
NO_OPERATION = "(no operation)"  # where the lines of the report put a case that names none
DTYPES = (torch.float64, torch.float32)
Case = dict[str, Any]


@dataclass(frozen=True)
class Failure:
    """One output of a case that did not come out, or with no `output` the whole case; in words and numbers."""

    case_id: str
    output: str | None
    problem: str
    got: Any = None
    expected: Any = None


@dataclass(frozen=True)
class CaseResult:
    """One case in one dtype on one device."""

    operation: str
    failures: tuple[Failure, ...]
    deviation: Deviation


@dataclass(frozen=True)
class OperationResult:
    """All cases of one operation in one dtype on one device; the worst errors over every number of them."""

    operation: str
    dtype: str
    device: str
    num_cases: int
    num_passed: int
    worst: Deviation
    failures: tuple[Failure, ...]


@dataclass(frozen=True)
class ConformanceReport:
    """What a file of cases showed. `missing`: operations that are not known, with the number of their cases."""

    path: str
    devices: tuple[str, ...]
    operations: tuple[OperationResult, ...]
    missing: dict[str, int]

    @property
    def num_failed(self) -> int:
        return sum(line.num_cases - line.num_passed for line in self.operations)

    @property
    def ok(self) -> bool:
        return not self.num_failed and not self.missing

    @property
    def verdict(self) -> str:
        """One sentence. Example: "all 546 checks of 62 operations passed"."""
        checks = sum(line.num_cases for line in self.operations)
        names = len({line.operation for line in self.operations})
        if self.ok:
            return f"all {checks} checks of {names} operations passed"
        unknown = f"; missing operations: {len(self.missing)}" if self.missing else ""
        return f"{self.num_failed} of {checks} checks failed{unknown}"


def run_file(path: str | Path, devices: Sequence[str] | None = None) -> ConformanceReport:
    """Run every case of a file on `devices`: the CPU and, where there is one, the CUDA device.

    Raises DataError for a file that cannot be read as cases, ConfigError for a device that is not there.
    A case that is malformed, or that makes an operation raise, is a failed case; the others go on.
    """
    cases = _read(Path(path))
    chosen = (
        tuple(devices) if devices is not None else ("cpu", *(["cuda"] if torch.cuda.is_available() else []))
    )
    _check_devices(chosen)
    groups: dict[str, list[tuple[str, Any]]] = {}
    for number, case in enumerate(cases, start=1):
        groups.setdefault(_operation_of(case), []).append((_id_of(case, number), case))
    known = {name: group for name, group in groups.items() if name in OPERATIONS or name == NO_OPERATION}
    lines = tuple(
        _summary(name, dtype, device, [run_case(case, dtype, device, case_id) for case_id, case in group])
        for name, group in known.items()
        for device in chosen
        for dtype in DTYPES
    )
    missing = {name: len(group) for name, group in groups.items() if name not in known}
    return ConformanceReport(str(path), chosen, lines, missing)


def run_case(case: Any, dtype: torch.dtype, device: str = "cpu", case_id: str | None = None) -> CaseResult:
    """Run one case of the format (numbers still encoded). Never raises: whatever goes wrong is a failure."""
    name, case_id = _operation_of(case), _id_of(case) if case_id is None else case_id
    # Boundary: cases are foreign data, and one that breaks an operation says nothing about the next.
    try:
        inputs, expected, rtol, atol = _parts(case, dtype)
        with torch.device(device):
            given = Inputs(inputs, dtype)
            actual = leaves(OPERATIONS[name](given))
        given.refuse_misspelt()
        return _compare(name, case_id, actual, leaves(expected), rtol, atol)
    except Exception as error:
        return CaseResult(name, (Failure(case_id, None, _one_line(error)),), MISFIT)


def _compare(name: str, case_id: str, actual: Case, expected: Case, rtol: float, atol: float) -> CaseResult:
    failures, worst = [], Deviation()
    for output, wanted in expected.items():
        if output not in actual:
            given = ", ".join(actual)
            failures.append(Failure(case_id, output, f"not produced; there is {given}", None, encode(wanted)))
            worst = MISFIT
            continue
        got = _plain(actual[output])
        deviation = worst_error(got, wanted, rtol, atol)
        worst |= deviation
        if not deviation.passes:
            problem = _how_wrong(deviation, got, wanted, rtol, atol)
            failures.append(Failure(case_id, output, problem, encode(got), encode(wanted)))
    return CaseResult(name, tuple(failures), worst)


def _plain(value: Any) -> Any:
    return value.detach().tolist() if isinstance(value, torch.Tensor) else value


def _how_wrong(deviation: Deviation, got: Any, wanted: Any, rtol: float, atol: float) -> str:
    if _shape(got) != _shape(wanted):
        return f"shape {_shape(got)} where {_shape(wanted)} is expected"
    finite = deviation.absolute != float("inf")
    size = f"off by {deviation.tolerance:.3g} times the tolerance" if finite else "a value of another kind"
    numbers = list(_numbers(got, wanted))
    if not isinstance(wanted, list) or not numbers:
        return size
    place, one, other = max(numbers, key=lambda item: worst_error(item[1], item[2], rtol, atol).tolerance)
    return f"{size} at {place}: {one!r} where {other!r} is expected"


def _numbers(got: Any, wanted: Any, place: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(place, got, expected) of every single number of two nested lists, where the lists fit."""
    if isinstance(got, list) and isinstance(wanted, list):
        for index, (one, other) in enumerate(zip(got, wanted, strict=False)):
            yield from _numbers(one, other, f"{place}[{index}]")
    else:
        yield place, got, wanted


def _shape(value: Any) -> list[int]:
    return [len(value), *(_shape(value[0]) if value else [])] if isinstance(value, list) else []


def _summary(name: str, dtype: torch.dtype, device: str, results: Iterable[CaseResult]) -> OperationResult:
    cases, worst = list(results), Deviation()
    for result in cases:
        worst |= result.deviation
    passed = sum(not result.failures for result in cases)
    failures = tuple(failure for result in cases for failure in result.failures)
    kind = str(dtype).removeprefix("torch.")
    return OperationResult(name, kind, device, len(cases), passed, worst, failures)


def _parts(case: Any, dtype: torch.dtype) -> tuple[Case, Case, float, float]:
    """Inputs, expected outputs, rtol and atol of a case for one dtype. Raises DataError where it is malformed."""
    if not isinstance(case, dict):
        raise DataError(f"a case must be an object with op, inputs and expected; got {type(case).__name__}")
    if not isinstance(case.get("op"), str):
        raise DataError("the case has no op, the name of an operation")
    for key in ("inputs", "expected"):
        if not isinstance(case.get(key), dict):
            raise DataError(f"{key!r} must be an object of names and values; the case has {_kind(case, key)}")
    if not case["expected"]:
        raise DataError("'expected' names no output: the case checks nothing")
    rtol, atol = _tolerance(case, "rtol", 1e-9), _tolerance(case, "atol", 1e-12)
    if dtype == torch.float32:
        rtol, atol = FLOAT32_RTOL, FLOAT32_ATOL
    return decode(case["inputs"]), decode(case["expected"]), rtol, atol


def _tolerance(case: Case, key: str, default: float) -> float:
    value = case.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise DataError(f"{key!r} must be a number, 0 or more; the case has {value!r}")
    return float(value)


def _kind(case: Case, key: str) -> str:
    return type(case[key]).__name__ if key in case else "none"


def _operation_of(case: Any) -> str:
    name = case.get("op") if isinstance(case, dict) else None
    return name if isinstance(name, str) else NO_OPERATION


def _id_of(case: Any, number: int | None = None) -> str:
    found = case.get("id") if isinstance(case, dict) else None
    return str(found) if found is not None else "case" if number is None else f"case {number}"


def _read(path: Path) -> list[Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON in UTF-8: {_one_line(error)}") from error
    cases = document.get("cases") if isinstance(document, dict) else None
    if not isinstance(cases, list) or not cases:
        raise DataError(
            f'{path} holds no cases: expected {{"cases": [{{"id", "op", "inputs", "expected"}}, ...]}}'
        )
    return cases


def _check_devices(devices: Sequence[str]) -> None:
    for device in devices:
        try:
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
            raise ConfigError(f"device {device!r} cannot be used: {_one_line(error)}") from error


def _one_line(error: BaseException, limit: int = 300) -> str:
    text = " ".join(str(error).split())
    named = text if isinstance(error, DataError) else f"{type(error).__name__}: {text}"
    return named if len(named) <= limit else f"{named[: limit - 3]}..."
