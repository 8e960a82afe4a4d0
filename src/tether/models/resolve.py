"""Names of models -> what the loaders take: a folder, or a hub id."""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path

from ..errors import ModelError
from .fetch import default_cache_dir, is_complete

NAMES = ("smollm2", "tiny")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def resolve_model(name: str, cache_dir: Path | str | None = None) -> str:
    """A folder or hub id for `name`: "smollm2" (fetched before), "tiny" (made now), a folder, or owner/name.

    A folder of that name wins over the two short names. Hub ids come back unchanged: whether they may be downloaded
    is the loader's `local_files_only`. Raises ModelError with the remedy.
    """
    cache = Path(cache_dir) if cache_dir is not None else default_cache_dir()
    folder = Path(name).expanduser()
    if name and folder.is_dir():
        return str(folder)
    if name == "smollm2":
        if is_complete(cache / name):
            return str(cache / name)
        raise ModelError(f"smollm2 is not in {cache}: run `tether fetch smollm2` (93 MB, once)")
    if name == "tiny":
        return str(_tiny(cache))
    if _HUB_ID.fullmatch(name) and not name.startswith("."):
        return name
    near = get_close_matches(name, NAMES, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise ModelError(
        f"no model {name!r}: expected {' or '.join(NAMES)}, a folder, or a hub id such as owner/name.{hint}"
    )


def _tiny(cache: Path) -> Path:
    from .tiny import FORMAT, make_tiny  # torch: only when the model must be made

    folder = cache / f"tiny-{FORMAT}"
    return folder if is_complete(folder) else make_tiny(folder)
