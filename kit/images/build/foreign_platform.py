"""Images for another platform than the engine's machine: what is missing for them is said before the first step."""

from __future__ import annotations

import errno
import os
import struct
import tempfile
from pathlib import Path

from kit import shell
from kit.errors import ImageError, LockError, ToolError
from kit.images.build.dockerfile_needs import Dockerfile
from kit.images.check_against_lock import made_by
from kit.schema.image import Build, ImageLock, ImageSpec, PythonPackages

# Architecture -> bits, byte order and number of its programs (e_machine of ELF).
_MACHINES = {
    "amd64": (64, "<", 62), "arm64": (64, "<", 183), "arm": (32, "<", 40), "ppc64le": (64, "<", 21), "s390x": (64, ">", 22),
    "riscv64": (64, "<", 243), "loong64": (64, "<", 258), "mips64le": (64, "<", 8),
}  # fmt: skip
# Platforms that a kernel may run without an emulator.
_NATIVE = {"amd64": {"386"}, "arm64": {"arm"}}
_WHEELS = {"amd64": "x86_64", "arm64": "aarch64"}


def is_foreign(options: Build, engine: str) -> bool:
    """Whether the image is for another architecture than the engine's machine. engine: its platform, as `linux/amd64`."""
    return options.platform is not None and _architecture(options.platform) != _architecture(engine)


def require(spec: ImageSpec, needs: Dockerfile, base: ImageLock | None, *, engine: str) -> None:
    """ImageError if the image's base, its wheels or a RUN step cannot be for its platform.

    base: the lock of the image that it builds on. engine: the platform of the engine's machine.
    """
    wanted = spec.build.platform or engine
    cause = f"the image is for {wanted}"
    if base is not None and base.platform and _architecture(base.platform) != _architecture(wanted):
        hint = "remove build.platform" if spec.build.platform else f"{made_by(base.name, base.source)} --relock"
        raise ImageError(f"{cause}, and its base, image {base.name}, is for {base.platform}", hint=hint)
    if not is_foreign(spec.build, engine):
        return
    if spec.base is not None and spec.base.bootstrap is not None:
        problem = f"{cause}, and [base.bootstrap] makes a base for this machine, {engine}"
        raise ImageError(problem, hint="name a base of a registry: [base] reference")
    _require_wheels(cause, wanted, spec.python)
    step = next((one for one in needs.steps if one.word == "RUN"), None)
    if step is not None and _is_local() and not executes(wanted, engine):
        problem = f"{cause}, and this machine, {engine}, cannot run its programs: line {step.line}: RUN {step.rest}"
        hint = "install qemu-user-static (binfmt) here, or set DOCKER_HOST to an engine on such a machine"
        raise ImageError(problem, hint=hint)


def is_of(locked: ImageLock, platform: str, *, required: bool) -> bool:
    """Whether a lock is for this platform. LockError if it is not and must be: its bytes cannot come again."""
    if locked.platform is None or _architecture(locked.platform) == _architecture(platform):
        return True
    if required:
        raise LockError(
            f"image {locked.name}: its lock is for {locked.platform}, and this build is for {platform}",
            hint=f"'kit build-image {locked.name} --relock' writes a lock for {platform}",
        )
    return False


def require_result(options: Build, architecture: str) -> None:
    """ImageError if the engine built for another architecture than `platform` asks for."""
    if options.platform and architecture and architecture != _architecture(options.platform):
        problem = f"the image is for {options.platform}, and the engine built one for linux/{architecture}"
        raise ImageError(problem, hint="name a base that exists for this platform")


def executes(platform: str, engine: str) -> bool:
    """Whether the kernel of this machine can start programs of the platform, by itself or by an emulator."""
    architecture = _architecture(platform)
    known = _MACHINES.get(architecture)
    return known is None or architecture in _NATIVE.get(_architecture(engine), ()) or has_handler(*known)


def has_handler(bits: int, order: str, machine: int) -> bool:
    """Whether something starts a program with this ELF header. For a foreign one, the kernel needs an emulator."""
    word = "Q" if bits == 64 else "I"
    ident = b"\x7fELF" + bytes([bits // 32, 1 if order == "<" else 2, 1]) + bytes(9)
    header = ident + struct.pack(
        f"{order}HHI3{word}I6H", 2, machine, 1, 0, 0, 0, 0, 64 if bits == 64 else 52, 0, 0, 0, 0, 0
    )
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "program"
        program.write_bytes(header + bytes(64))
        program.chmod(0o700)
        try:
            shell.run([str(program)], check=False, timeout=10)
        except OSError as error:
            return error.errno != errno.ENOEXEC
        except ToolError:
            # A folder without execution says nothing about the kernel.
            return True
    return True


def _require_wheels(place: str, wanted: str, python: PythonPackages | None) -> None:
    ending = _WHEELS.get(_architecture(wanted))
    if python is None or ending is None or any(tag.endswith(ending) for tag in python.platforms):
        return
    hint = f'in image.toml: [python] platforms = ["manylinux_2_28_{ending}", "manylinux_2_17_{ending}"]'
    raise ImageError(f"{place}, and [python] platforms names wheels for another one", hint=hint)


def _architecture(platform: str) -> str:
    return platform.split("/")[1]


def _is_local() -> bool:
    return os.environ.get("DOCKER_HOST", "unix://").startswith("unix://")
