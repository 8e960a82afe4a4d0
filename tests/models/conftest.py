"""A tiny model folder per session, batches of it, and plain transformers as the oracle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from model_rows import ragged_batch

from tether.data.batches import TextBatch
from tether.models.tiny import make_tiny


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def batch() -> TextBatch:
    """Four rows of unlike length and answer share; ids are drawn, pads are the id 0."""
    return ragged_batch()


SERVER = """
import sys
sys.modules["tether"] = None  # importing it fails: what runs here is plain transformers
import contextlib, io, json, traceback, torch, transformers
for line in sys.stdin:
    printed, error = io.StringIO(), ""
    with contextlib.redirect_stdout(printed):
        try:
            exec(json.loads(line), {})
        except BaseException:
            error = traceback.format_exc()
    print(json.dumps([printed.getvalue(), error]), flush=True)
"""


@pytest.fixture(scope="session")
def fresh_process() -> Iterator[Callable[[str], str]]:
    """Run code in another interpreter, one for the session, that cannot import tether."""
    environment = {**os.environ, "PYTHONPATH": "", "OMP_NUM_THREADS": "1"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([sys.executable, "-c", SERVER], text=True, env=environment, **pipes) as process:

        def run(code: str) -> str:
            process.stdin.write(json.dumps(code) + "\n")
            process.stdin.flush()
            printed, error = json.loads(process.stdout.readline())
            assert not error, error
            return printed

        yield run
        process.kill()  # its own shutdown takes seconds
