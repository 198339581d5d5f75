"""Entry point of `kit` and `python -m kit`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. A Ctrl-C during its imports also ends it cleanly."""
    try:
        from kit.cli import main as run

        run()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
