"""``python -m tether`` and the ``tether`` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; the exit status is 0, 1 (Tether error), 2 (usage or configuration) or 130 (Ctrl-C)."""
    from tether.cli import main as run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
