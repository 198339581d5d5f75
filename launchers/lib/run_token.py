"""The token by which the programs of a run know each other: whoever reaches a port of theirs may be another user."""

import contextlib
import os
import secrets
import time
from pathlib import Path

_CHARACTERS, _WITHIN_S = 64, 30.0


def read_token(run_dir: Path) -> str:
    """The run's token, 64 hexadecimal digits. The first program that asks draws it, into a file that its user alone may read.

    SystemExit for a file that holds no whole token.
    """
    path = run_dir / ".token"
    run_dir.mkdir(parents=True, exist_ok=True)
    with (
        contextlib.suppress(FileExistsError),
        open(path, "x", encoding="ascii", opener=lambda name, flags: os.open(name, flags, 0o600)) as sink,
    ):
        sink.write(secrets.token_hex(_CHARACTERS // 2))
    deadline = time.monotonic() + _WITHIN_S
    # Another program may be about to write it.
    while len(found := path.read_text(encoding="ascii")) != _CHARACTERS:
        if time.monotonic() > deadline:
            raise SystemExit(f"{path} holds no token of {_CHARACTERS} characters. Remove it, and start again.")
        time.sleep(0.02)
    return found
