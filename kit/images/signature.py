"""Detached signatures over image.lock, by the user's own SSH key: `ssh-keygen -Y`. Nothing leaves the machine.

The lock names the image's bytes by their digest, and so its signature vouches for them. It lies beside the lock, in image.lock.sig.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from kit import shell
from kit.errors import ImageError, LockError, UsageError

# What ssh-keygen calls a namespace: a signature for anything else, such as a commit, is none for an image.
NAMESPACE = "slurm-kit-image"
_TIMEOUT_S = 60.0
_HINT = "install OpenSSH's client (apt: openssh-client)"


def file_of(lock_file: Path) -> Path:
    """Where the signature of a lock lies."""
    return lock_file.with_name(f"{lock_file.name}.sig")


def sign(lock_file: Path, key: Path) -> Path:
    """Sign a lock with an SSH key, or with the agent's where `key` is a public one; the signature's path.

    A passphrase is asked for on the terminal.
    """
    if not key.is_file():
        raise UsageError(f"{key}: no such key", hint="ssh-keygen -t ed25519")
    place = file_of(lock_file)
    place.unlink(missing_ok=True)
    program = shell.require("ssh-keygen", hint=_HINT)
    code = shell.call([program, "-Y", "sign", "-q", "-f", str(key), "-n", NAMESPACE, str(lock_file)])
    if code or not place.is_file():
        raise ImageError(f"{lock_file}: not signed: ssh-keygen ended with {code}", hint=f"ssh-add -l; ls -l {key}")
    place.chmod(0o644)
    return place


def require(lock_file: Path, signers: Sequence[str], *, what: str) -> str:
    """Who signed a lock. LockError when nobody did, when the lock changed since, or when no one of `signers` has the key.

    signers: as in `[store] signers`: a name and a public key each.
    """
    place = file_of(lock_file)
    mend = f"have one of {', '.join(map(name_of, signers)) or 'nobody'} run 'kit sign-image'"
    if not place.is_file():
        raise LockError(f"{what}: {place} is not there: nobody signed it", hint=mend)
    program = shell.require("ssh-keygen", hint=_HINT)
    with tempfile.TemporaryDirectory(prefix="kit-signers-") as folder:
        allowed = Path(folder) / "allowed_signers"
        allowed.write_text("".join(_line(signer) for signer in signers), encoding="utf-8")
        base = [program, "-Y"]
        files = ["-s", str(place), "-f", str(allowed)]
        found = shell.run([*base, "find-principals", *files], check=False, timeout=_TIMEOUT_S)
        who = found.stdout.splitlines()[0] if found.returncode == 0 and found.stdout else ""
        if not who:
            raise LockError(
                f"{what}: {place} was made with a key that does not belong to one of the cluster's signers", hint=mend
            )
        text = lock_file.read_text(encoding="utf-8")
        words = [*base, "verify", *files, "-I", who, "-n", NAMESPACE]
        done = shell.run(words, input=text, check=False, timeout=_TIMEOUT_S)
    if done.returncode:
        raise LockError(f"{what}: {lock_file} is not what {who} signed: it changed since", hint=mend)
    return who


def name_of(signer: str) -> str:
    """The name in an entry of `[store] signers`."""
    return signer.split(maxsplit=1)[0]


def _line(signer: str) -> str:
    """A line of allowed_signers (ssh-keygen(1)): the key counts for images alone."""
    name, kind, key = signer.split()[:3]
    return f'{name} namespaces="{NAMESPACE}" {kind} {key}\n'
