"""Detached signatures over image.lock, by the user's own SSH key: `ssh-keygen -Y`. Nothing leaves the machine.

The lock names the image's bytes by their digest, so its signature covers them. The signature is in image.lock.sig, next to the
lock.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from kit import shell, untrusted_files
from kit.errors import ImageError, LockError, UsageError
from kit.images import image_lock

# ssh-keygen's namespace: a signature for another purpose, such as a commit, is not valid for an image.
NAMESPACE = "slurm-kit-image"
_TIMEOUT_S = 60.0
_HINT = "install OpenSSH's client (apt: openssh-client)"


def file_of(lock_file: Path) -> Path:
    """The path of a lock's signature."""
    return lock_file.with_name(f"{lock_file.name}.sig")


def sign(lock_file: Path, key: Path) -> Path:
    """Sign a lock with an SSH key, or through the agent if `key` is a public key; return the signature's path.

    ssh-keygen asks for a passphrase on the terminal.
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
    """The name of the signer of a lock. LockError when there is no signature, the lock changed since, it is the lock of another
    image than its folder, or the signer is not in `signers`.

    signers: as in `[store] signers`: a name and a public key each.
    """
    place = file_of(lock_file)
    mend = f"have one of {', '.join(map(name_of, signers)) or 'nobody'} run 'kit sign-image'"
    if not place.is_file():
        raise LockError(f"{what}: the signature {place} does not exist: nobody signed the lock", hint=mend)
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
        # Byte for byte: a reader that changes line ends would accept a file that was not signed.
        text = untrusted_files.read_bytes(lock_file).decode(errors="surrogateescape")
        words = [*base, "verify", *files, "-I", who, "-n", NAMESPACE]
        done = shell.run(words, input=text, check=False, timeout=_TIMEOUT_S)
    if done.returncode:
        raise LockError(f"{what}: {lock_file} changed after {who} signed it", hint=mend)
    require_name(image_lock.head(lock_file).name, lock_file.parent.name)
    return who


def require_name(signed: str, asked: str) -> None:
    """LockError if the lock of an image is the lock of another one, which may be signed, too."""
    if signed != asked:
        problem = f"image {asked}: its lock is that of image {signed}, and a signature is for one name and one digest"
        raise LockError(problem, hint=f'image = "{signed}"')


def name_of(signer: str) -> str:
    """The name in an entry of `[store] signers`."""
    return signer.split(maxsplit=1)[0]


def _line(signer: str) -> str:
    """A line of allowed_signers (ssh-keygen(1)): the key is valid for images only."""
    name, kind, key = signer.split()[:3]
    return f'{name} namespaces="{NAMESPACE}" {kind} {key}\n'
