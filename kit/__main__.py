"""`kit` and `python -m kit`."""

from __future__ import annotations

import sys


def main() -> None:
    """The command line; a Ctrl-C during its imports ends as any other."""
    try:
        if sys.argv[1:] == ["--version"] and _version():
            return
        from kit.cli import main as run

        run()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


def _version() -> bool:
    """Print the version without the command line's imports. False when it cannot be written: the command line reports why."""
    from kit import __version__

    try:
        print(f"kit {__version__}", flush=True)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
