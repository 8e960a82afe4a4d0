"""Reading and writing of the bundled data: one JSON object per line, UTF-8, keys in the order given."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def data_folder() -> Path:
    """src/tether/recipes_data of this checkout."""
    return Path(__file__).resolve().parents[2] / "src" / "tether" / "recipes_data"


def write_jsonl(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    lines = [json.dumps(row, ensure_ascii=False, allow_nan=False) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{path.name}: {len(lines)} rows")


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
