"""The promises of pyproject.toml and the Makefile."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

import pytest

import tether

ROOT = Path(__file__).resolve().parents[2]
LINES = (ROOT / "pyproject.toml").read_text(encoding="utf-8").splitlines()
PROJECT = tomllib.loads("\n".join(LINES))["project"]


@pytest.mark.parametrize("requirement", PROJECT["dependencies"])
def test_core_dependency_is_justified(requirement: str):
    line = next(line for line in LINES if f'"{requirement}"' in line)
    assert len(line.partition("#")[2].split()) >= 2


def test_version_has_one_source():
    assert PROJECT["dynamic"] == ["version"]
    assert tether.__version__.count(".") == 2


@pytest.mark.parametrize("target", ["quickstart", "test", "check", "slow"])
def test_make_knows_the_target(target: str):
    done = subprocess.run(["make", "--dry-run", target], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_ci_asks_nothing_of_stdin():
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert script.startswith("#!/usr/bin/env bash")
    assert "set -euo pipefail" in script
    assert "exec </dev/null" in script
