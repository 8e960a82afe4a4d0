"""``python -m tether`` and the ``tether`` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and end with its exit status."""
    from tether.cli import main as run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
