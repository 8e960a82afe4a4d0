"""Is this text a database of judgements? Looks at names and first bytes alone, without SQLAlchemy."""

from __future__ import annotations

from pathlib import Path

__all__ = ["APPLICATION_ID", "POSTGRES", "SQLITE_HEADER", "is_collection", "is_database"]

APPLICATION_ID = 0x74657468  # "teth": what `file` and PRAGMA application_id say of a SQLite database of ours
POSTGRES = ("postgresql://", "postgres://", "postgresql+psycopg://")
SQLITE_HEADER = b"SQLite format 3\x00"


def is_collection(path: Path) -> bool:
    """Whether the file is a SQLite database of ours."""
    try:
        with open(path, "rb") as file:
            head = file.read(100)
    except OSError:
        return False
    return head.startswith(SQLITE_HEADER) and head[68:72] == APPLICATION_ID.to_bytes(4, "big")


def is_database(text: str) -> bool:
    """Whether a data path of a configuration means one: a URL, a file that is one, or a name that ends in .db."""
    path = Path(text).expanduser()
    return text.startswith((*POSTGRES, "sqlite:///")) or path.suffix == ".db" or is_collection(path)
