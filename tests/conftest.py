"""What every test gets: shape checks on, no network, one thread, and a cache of its own."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from jaxtyping import install_import_hook

# Before torch and huggingface_hub are imported: both read these once.
os.environ["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "1")
os.environ["MKL_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"]
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

# A run takes all cores that its process may use. Workers side by side would fight for them, and sums over several threads are not always
# added in the same order: each worker of xdist gets a core of its own.
_CORES = sorted(os.sched_getaffinity(0))
if _WORKER := os.environ.get("PYTEST_XDIST_WORKER"):
    os.sched_setaffinity(0, {_CORES[int(_WORKER.removeprefix("gw")) % len(_CORES)]})

_REAL_CACHE = os.environ.get("TETHER_CACHE")

# Shapes and dtypes in the annotations of tether.maths are checked on every call from here on.
install_import_hook("tether.maths", "beartype.beartype")


# The same examples every time, however busy the machine is.
hypothesis.settings.register_profile("tether", deadline=None, derandomize=True)
hypothesis.settings.load_profile("tether")


@pytest.fixture(autouse=True)
def _threads_of_the_session() -> Iterator[None]:
    """A test that let a run choose its threads leaves none of that to the next."""
    yield
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


def _use_cache(path: str | None) -> None:
    if path is None:
        os.environ.pop("TETHER_CACHE", None)
    else:
        os.environ["TETHER_CACHE"] = path


@pytest.fixture(scope="session", autouse=True)
def _session_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One cache per worker, so that the tiny model is made once and the user's cache is never touched."""
    folder = tmp_path_factory.mktemp("tether-cache")
    _use_cache(str(folder))
    yield folder
    _use_cache(_REAL_CACHE)


@pytest.fixture(scope="module", autouse=True)
def _cache_of_slow_modules(request: pytest.FixtureRequest, _session_cache: Path) -> Iterator[None]:
    """Modules marked slow as a whole see the real cache in their module fixtures as well."""
    if request.node.get_closest_marker("slow"):
        _use_cache(_REAL_CACHE)
    yield
    _use_cache(str(_session_cache))


@pytest.fixture(autouse=True)
def _cache_of_slow_tests(request: pytest.FixtureRequest, _session_cache: Path) -> Iterator[None]:
    """Tests marked slow see the user's cache, where the real model is."""
    before = os.environ.get("TETHER_CACHE")
    _use_cache(_REAL_CACHE if request.node.get_closest_marker("slow") else str(_session_cache))
    yield
    _use_cache(before)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """The one browser of the session, for tests marked web: Playwright runs once in a process."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="the extra web is not installed")
    path = os.environ.get("TETHER_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield found
        found.close()
