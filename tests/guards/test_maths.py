"""The mathematics stays mathematics: short functions, two libraries, nothing that logs, prints or moves between devices."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

MATHS = Path(__file__).resolve().parents[2] / "src" / "tether" / "maths"
TREES = {file.name: ast.parse(file.read_text(encoding="utf-8")) for file in sorted(MATHS.glob("*.py"))}
FUNCTION_LIMIT = 60

LIBRARIES = {"torch", "jaxtyping"}
SPEAKING = {"print", "logging", "logger", "log", "warnings", "getlogger", "get_logger", "structlog", "loguru"}
MOVING = {"cuda", "cpu", "mps", "xpu"}

every_file = pytest.mark.parametrize("name", TREES)


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def _lines_without_docstring(function: ast.FunctionDef) -> int:
    lines = function.end_lineno - function.lineno + 1
    if ast.get_docstring(function) is None:
        return lines
    docstring = function.body[0]
    return lines - (docstring.end_lineno - docstring.lineno + 1)


def _is_device(text: object) -> bool:
    return isinstance(text, str) and text.partition(":")[0] in {*MOVING, "meta"}


def _offences(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id.lower().strip("_") in SPEAKING:
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and node.attr in MOVING:
            yield node.lineno, f".{node.attr}"
        elif isinstance(node, ast.Constant) and _is_device(node.value):
            yield node.lineno, repr(node.value)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "to":
            strings = [arg for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
            yield from ((node.lineno, ast.unparse(node)) for _ in strings)


def _foreign_imports(tree: ast.Module) -> Iterator[str]:
    siblings = {name.removesuffix(".py") for name in TREES}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules, own = [alias.name for alias in node.names], False
        elif isinstance(node, ast.ImportFrom):
            modules, own = [node.module or ""], node.level == 1
        else:
            continue
        for module in modules:
            root = module.partition(".")[0]
            known = root in siblings if own else root in LIBRARIES | (sys.stdlib_module_names - SPEAKING)
            if not known or (isinstance(node, ast.ImportFrom) and node.level > 1):
                yield ast.unparse(node)


def test_there_is_something_to_guard():
    assert len(TREES) > 15


@every_file
def test_functions_are_short(name: str):
    lengths = {node.name: _lines_without_docstring(node) for node in _functions(TREES[name])}
    assert {function: lines for function, lines in lengths.items() if lines > FUNCTION_LIMIT} == {}


@every_file
def test_imports_are_torch_shapes_and_itself(name: str):
    assert list(_foreign_imports(TREES[name])) == []


@every_file
def test_nothing_logs_prints_or_moves_between_devices(name: str):
    assert list(_offences(TREES[name])) == []


@pytest.mark.parametrize(
    "code",
    [
        "print(1)", "import logging", "x.cuda()", "x.to('cuda')", "x.to('cpu', y)", "zeros(1, device='cuda:0')",
        "logger.info('x')", "import tether.types", "from tether import metrics", "from .. import metrics",
        "from ..models import policy", "import numpy", "x.cpu()", "import warnings", "from .elsewhere import x",
    ],
)  # fmt: skip
def test_the_guard_sees(code: str):
    tree = ast.parse(code)
    assert [*_offences(tree), *_foreign_imports(tree)]


@pytest.mark.parametrize(
    "code", ["x.log().to(y.dtype)", "x.to(y.device)", "import math, torch.nn", "from .masked import select"]
)
def test_the_guard_lets_pass(code: str):
    tree = ast.parse(code)
    assert [*_offences(tree), *_foreign_imports(tree)] == []
