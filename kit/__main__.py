"""`kit` and `python -m kit`."""

from __future__ import annotations

import sys


def main() -> None:
    """The command line; a Ctrl-C during its imports ends as any other."""
    try:
        from kit.cli import main as run

        run()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
