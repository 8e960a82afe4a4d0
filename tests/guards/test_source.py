"""Sizes of files and functions, and calls that run or unpickle what a stranger wrote."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "tether"
SOURCES = sorted(PACKAGE.rglob("*.py"))

# A file past 350 lines is split, or its reason stands here.
LONG_FILES = {
    "maths/policy_loss.py": "surrogates of nine papers side by side; most lines are formulas and sources",
}
FILE_LIMIT = 350
FUNCTION_LIMIT = 100

# (file, call) that is known and safe, with the reason.
ALLOWED_CALLS: dict[tuple[str, str], str] = {}
FORBIDDEN = {
    "pickle.load", "pickle.loads", "torch.load", "yaml.load", "yaml.unsafe_load", "yaml.full_load", "eval",
    "exec", "os.system", "os.popen", "marshal.loads",
}  # fmt: skip
FORBIDDEN_SWITCHES = {"shell", "allow_pickle", "trust_remote_code"}


def _calls(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func)
            yield from (
                f"{switch.arg}=True"
                for switch in node.keywords
                if switch.arg in FORBIDDEN_SWITCHES
                and isinstance(switch.value, ast.Constant)
                and switch.value.value is True
            )


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def _name(file: Path) -> str:
    return str(file.relative_to(PACKAGE))


def test_nothing_runs_or_unpickles_foreign_code():
    switches = {f"{switch}=True" for switch in FORBIDDEN_SWITCHES}
    found = {
        (_name(file), call)
        for file in SOURCES
        for call in _calls(ast.parse(file.read_text(encoding="utf-8")))
    }
    assert {(file, call) for file, call in found if call in FORBIDDEN | switches} == set(ALLOWED_CALLS)


def test_files_are_short_or_say_why_not():
    lengths = {_name(file): len(file.read_text(encoding="utf-8").splitlines()) for file in SOURCES}
    too_long = {
        name: length for name, length in lengths.items() if length > FILE_LIMIT and name not in LONG_FILES
    }
    assert too_long == {}


def test_functions_fit_on_a_screen():
    spans = [
        (node.end_lineno - node.lineno + 1, _name(file), node.name)
        for file in SOURCES
        for node in _functions(ast.parse(file.read_text(encoding="utf-8")))
    ]
    assert [span for span in spans if span[0] > FUNCTION_LIMIT] == []
    over_45 = sum(span[0] > 45 for span in spans)
    assert over_45 <= 0.1 * len(spans), sorted(spans, reverse=True)[:10]


@pytest.mark.parametrize("file", SOURCES, ids=_name)
def test_file_parses_without_a_warning(file: Path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compile(file.read_text(encoding="utf-8"), str(file), "exec")


def test_no_file_is_empty_of_purpose():
    assert [
        _name(file) for file in SOURCES if not ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))
    ] == []
