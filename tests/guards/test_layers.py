"""The direction of imports, what stays free of torch, and who may name which engine."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "tether"

TORCH_FREE = [
    "tether",
    *("tether.types", "tether.errors", "tether.config", "tether.events", "tether.records", "tether.metrics"),
    *("tether.stats", "tether.cli", "tether.progress", "tether.dryrun", "tether.report", "tether.collect"),
    *("tether.agreement", "tether.collect.simulate", "tether.collect.stats", "tether.collect.stats.command", "tether.collect.stats.page"),
    *("tether.collect.store", "tether.collect.select", "tether.collect.exchange.export", "tether.collect.exchange.dump"),
    *("tether.collect.exchange.formats", "tether.collect.exchange.tools", "tether.cli_collect"),
    *("tether.collect.web.server", "tether.access"),
    *("tether.trackers", "tether.watch", "tether.compare"),
    *("tether.audit", "tether.run.checks.rules", "tether.run.checks.evidence"),
    *("tether.rewards.features", "tether.rewards.linear", "tether.report.reward_audit"),
    *("tether.models.fetch", "tether.models.resolve", "tether.rewards.simulated_rater"),
]
HEAVY = ("torch", "transformers", "datasets", "pandas", "pyarrow", "scipy", "peft")
ENGINES = ("ray", "vllm", "torch.distributed")


def _exists(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _loaded_after(module: str) -> set[str]:
    code = f"import sys, {module}; print(chr(10).join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(done.stdout.split())


def _imports(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_imports_go_one_way():
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


@pytest.mark.parametrize("module", TORCH_FREE)
def test_module_loads_without_torch(module: str):
    if not _exists(module):
        pytest.skip(f"{module} is not built yet")
    assert _loaded_after(module).isdisjoint(HEAVY)


@pytest.mark.parametrize("module", ["tether", "tether.__main__"])
def test_import_and_entry_point_load_nothing_of_weight(module: str):
    assert _loaded_after(module).isdisjoint(
        {*HEAVY, "numpy", "pydantic", "yaml", "rich", "cyclopts", "jinja2", "jaxtyping"}
    )


def test_help_loads_neither_configuration_nor_numbers():
    code = (
        "import sys; from tether.cli import main; main(['run', '--help']); print(chr(10).join(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert set(done.stdout.split()).isdisjoint(
        {*HEAVY, "numpy", "pydantic", "yaml", "tether.config", "tether.run"}
    )


def test_only_backends_name_engines():
    named = {
        (str(file.relative_to(PACKAGE)), name)
        for file in PACKAGE.rglob("*.py")
        if file.relative_to(PACKAGE).parts[0] != "backends"
        for name in _imports(file)
        for engine in ENGINES
        if name == engine or name.startswith(f"{engine}.")
    }
    assert named == set()


def test_maths_imports_only_torch_and_shapes():
    allowed = {"torch", "jaxtyping", *sys.stdlib_module_names}
    foreign = {(file.name, name) for file in (PACKAGE / "maths").glob("*.py") for name in _imports(file)}
    assert {(file, name) for file, name in foreign if name.partition(".")[0] not in allowed} == set()
