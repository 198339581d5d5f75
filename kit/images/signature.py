"""Detached signatures over image.lock, by the user's own SSH key: `ssh-keygen -Y`. Nothing leaves the machine.

The lock has the image's name, its platform and the digest of its bytes, so its signature covers them. The signature is in
image.lock.sig, next to the lock.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kit import shell
from kit.config import load_model
from kit.errors import ImageError, LockError, UsageError
from kit.files import untrusted_files
from kit.images import image_lock
from kit.schema.image import ImageLock, ImageSpec

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
    signature = file_of(lock_file)
    signature.unlink(missing_ok=True)
    program = shell.require("ssh-keygen", hint=_HINT)
    code = shell.call([program, "-Y", "sign", "-q", "-f", str(key), "-n", NAMESPACE, str(lock_file)])
    if code or not signature.is_file():
        raise ImageError(f"{lock_file}: not signed: ssh-keygen ended with {code}", hint=f"ssh-add -l; ls -l {key}")
    signature.chmod(0o644)
    return signature


@dataclass(frozen=True, kw_only=True)
class Signed:
    """What a valid signature is for. platform: None in a lock that names none."""

    signer: str
    name: str
    sha256: str
    platform: str | None

    def __str__(self) -> str:
        what = f"signed by {self.signer}: the lock of image {self.name}, sha256:{self.sha256}"
        if self.platform is None:
            return f"{what}; the lock names no platform, so the signature binds name and digest only"
        return f"{what}, {self.platform}"


def require(lock_file: Path, signers: Sequence[str], *, what: str) -> Signed:
    """What was signed, and by whom. LockError when there is no signature, the lock changed since, it is the lock of another image
    than its folder or for another platform than its image.toml, or the signer is not in `signers`.

    signers: as in `[store] signers`: a name and a public key each.
    """
    signature = file_of(lock_file)
    hint = f"have one of {', '.join(map(name_of, signers)) or 'nobody'} run 'kit sign-image'"
    if not signature.is_file():
        raise LockError(f"{what}: the signature {signature} does not exist: nobody signed the lock", hint=hint)
    program = shell.require("ssh-keygen", hint=_HINT)
    with tempfile.TemporaryDirectory(prefix="kit-signers-") as folder:
        allowed = Path(folder) / "allowed_signers"
        allowed.write_text("".join(_line(signer) for signer in signers), encoding="utf-8")
        base = [program, "-Y"]
        files = ["-s", str(signature), "-f", str(allowed)]
        found = shell.run([*base, "find-principals", *files], check=False, timeout=_TIMEOUT_S)
        who = found.stdout.splitlines()[0] if found.returncode == 0 and found.stdout else ""
        if not who:
            raise LockError(
                f"{what}: {signature} was made with a key that does not belong to one of the cluster's signers",
                hint=hint,
            )
        # Byte for byte: a reader that changes line ends would accept a file that was not signed.
        text = untrusted_files.read_bytes(lock_file).decode(errors="surrogateescape")
        words = [*base, "verify", *files, "-I", who, "-n", NAMESPACE]
        done = shell.run(words, input=text, check=False, timeout=_TIMEOUT_S)
    if done.returncode:
        raise LockError(f"{what}: {lock_file} changed after {who} signed it", hint=hint)
    lock = image_lock.read_lock(lock_file)
    require_name(lock.name, lock_file.parent.name)
    _require_platform(lock, lock_file.with_name("image.toml"))
    return Signed(signer=who, name=lock.name, sha256=lock.sha256, platform=lock.platform)


def _require_platform(lock: ImageLock, image_file: Path) -> None:
    """LockError for the lock of another platform than the image's own file asks for. Both may be signed under one name."""
    asked = load_model(image_file, ImageSpec).build.platform if image_file.is_file() else None
    if asked and lock.platform and lock.platform.split("/")[1] != asked.split("/")[1]:
        problem = f"image {lock.name}: its lock is for {lock.platform}, and {image_file} asks for {asked}"
        raise LockError(problem, hint=f"kit build-image {lock.name}")


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
