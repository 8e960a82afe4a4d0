"""``bench`` lies beside ``src`` and is not installed: the root of the repository is put on the path, however pytest was started."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
