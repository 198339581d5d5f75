"""Entry point of `kit` and `python -m kit`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. A Ctrl-C during its imports also ends it cleanly."""
    try:
        if sys.argv[1:] == ["--version"] and _version():
            return
        from kit.cli import main as run

        run()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


def _version() -> bool:
    """Print the version without the command line's imports. False if it cannot be written; then the command line reports why."""
    from kit import __version__

    try:
        print(f"kit {__version__}", flush=True)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
