"""Names of models -> what the loaders take: a folder, or a hub id."""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path

from ..errors import ModelError
from .fetch import default_cache_dir, is_complete

NAMES = ("smollm2", "tiny")
_PATTERNS = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def resolve_model(
    name: str | Path, *, local_files_only: bool = True, cache_dir: Path | str | None = None
) -> Path:
    """The folder for `name`: "smollm2" (fetched before), "tiny" (made now), a folder, or a hub id owner/name.

    The two short names win over a folder of that name (write ./tiny for it). A hub id is looked for in
    Hugging Face's cache, and downloaded (safetensors only) when `local_files_only` is false. Raises
    ModelError with the remedy.
    """
    name = str(name)
    cache = Path(cache_dir) if cache_dir is not None else default_cache_dir()
    if name == "smollm2":
        if is_complete(cache / name):
            return cache / name
        raise ModelError(f"smollm2 is not in {cache}: run `tether fetch smollm2` (93 MB, once)")
    if name == "tiny":
        return _tiny(cache)
    folder = Path(name).expanduser()
    if name and folder.is_dir():
        return folder
    if _HUB_ID.fullmatch(name):
        return _snapshot(name, local_files_only)
    near = get_close_matches(name, NAMES, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise ModelError(
        f"no model {name!r}: expected {' or '.join(NAMES)}, a folder, or a hub id such as owner/name.{hint}"
    )


def _tiny(cache: Path) -> Path:
    from .tiny import FORMAT, make_tiny  # torch: only when the model must be made

    folder = cache / f"tiny-{FORMAT}"
    return folder if is_complete(folder) else make_tiny(folder)


def _snapshot(name: str, local_files_only: bool) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return Path(snapshot_download(name, local_files_only=local_files_only, allow_patterns=_PATTERNS))
    except (OSError, ValueError, HfHubHTTPError) as error:
        remedy = (
            f"run `hf download {name}`, or set local_files_only to false"
            if local_files_only
            else "check the name"
        )
        raise ModelError(
            f"no folder {name}, and the hub model {name} was not found: {remedy} ({error})"
        ) from error
