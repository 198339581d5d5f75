"""The token by which the programs of a run know each other: whoever reaches a port of theirs may be another user."""

import contextlib
import os
import secrets
import tempfile
from pathlib import Path

_CHARACTERS = 64


def read_token(run_dir: Path) -> str:
    """The run's token, 64 hexadecimal digits. The first program that asks draws it, into a file that its user alone may read.

    SystemExit for a file that holds no whole token.
    """
    path = run_dir / ".token"
    run_dir.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        # The file gets its name when it is whole: a program that is killed meanwhile leaves none that others would wait for.
        with tempfile.NamedTemporaryFile("w", dir=run_dir, prefix=".token-", encoding="ascii") as drawn:
            drawn.write(secrets.token_hex(_CHARACTERS // 2))
            drawn.flush()
            with contextlib.suppress(FileExistsError):
                os.link(drawn.name, path)
    found = path.read_text(encoding="ascii")
    if len(found) != _CHARACTERS:
        raise SystemExit(f"{path} holds no token of {_CHARACTERS} characters. Remove it, and start again.")
    return found
