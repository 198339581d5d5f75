"""What an image's tree gets and loses on its way into a .sqsh, so that it behaves as one that Enroot imported.

Enroot reads the image's environment from /etc/environment, its volumes from /etc/fstab, and runs /etc/rc, which enters the
working directory and starts the entrypoint or the command (field-notes 3).
"""

from __future__ import annotations

import posixpath
import re
import shlex
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property

from kit.spec.image import ImageConfig

# Device nodes cannot be made by an ordinary user, and the rest is what an engine leaves in the containers that it exports.
ALWAYS_DROPPED = ("dev/*", "proc/*", "sys/*", ".dockerenv", "run/.containerenv")

# What differs between two builds of one Dockerfile and means nothing in a container: logs, caches, backups that dpkg and
# useradd keep, and the machine's identity.
BUILD_NOISE = (
    "tmp/*",
    "var/tmp/*",
    "var/log/*.log",
    "var/log/apt/*",
    "var/cache/apt/*",
    "var/cache/debconf/*-old",
    "var/cache/ldconfig/*",
    "var/lib/apt/lists/*",
    "var/lib/dpkg/*-old",
    "var/lib/systemd/random-seed",
    "etc/*-",
    "etc/.pwd.lock",
    "etc/machine-id",
    "var/lib/dbus/machine-id",
    "root/.cache",
)

_HOSTS = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n"
_RC_LOCAL = "# /etc/rc reads this file when the container starts; Pyxis and users put their own steps here.\n"


@dataclass(frozen=True, kw_only=True)
class Addition:
    """A file, folder or symbolic link that the .sqsh gets.

    path: without a leading slash. A file (content) or link (target) replaces what the image has there. A folder is made only
    where the image has nothing, and otherwise loses its time: an engine touches some of them when it exports.
    """

    path: str
    mode: int
    content: bytes | None = None
    target: str | None = None

    @property
    def key(self) -> tuple[bytes, ...]:
        """Place in the order in which a tree is walked: by path components, byte-wise."""
        return walk_key(self.path)

    @property
    def replaces(self) -> bool:
        """Whether it takes the place of what the image has there."""
        return self.content is not None or self.target is not None


@dataclass(frozen=True, kw_only=True)
class Edit:
    """All changes to a tree: additions in walk order, and glob patterns of what is left out (`*` stops at a slash)."""

    additions: tuple[Addition, ...]
    dropped: tuple[str, ...]

    def drops(self, path: str) -> bool:
        """Whether `path` (no leading slash), or a folder that it lies in, is left out."""
        parts = path.split("/")
        return any(_matches(pattern, parts) for pattern in self._patterns.get(parts[0], ()))

    @property
    def exclusions(self) -> tuple[str, ...]:
        """All that the image's own tree loses: what is dropped and what is replaced."""
        return (*self.dropped, *(addition.path for addition in self.additions if addition.replaces))

    @cached_property
    def _patterns(self) -> dict[str, list[list[str]]]:
        """By first component, which is never a glob: a tree has tens of thousands of paths to look up."""
        table: dict[str, list[list[str]]] = {}
        for pattern in self.exclusions:
            parts = pattern.split("/")
            table.setdefault(parts[0], []).append(parts)
        return table


def walk_key(path: str) -> tuple[bytes, ...]:
    """Sorts paths as a walk in byte order visits them, which is the order of mksquashfs and of an engine's export."""
    return tuple(part.encode(errors="surrogateescape") for part in path.split("/"))


def edit(config: ImageConfig, *, provenance: str, noise: tuple[str, ...] = ()) -> Edit:
    """The changes for an image with this configuration.

    provenance: where it came from, for /etc/rc; nothing that differs between machines. noise: patterns of what is also
    left out (`BUILD_NOISE` for own builds).
    """
    files = {
        "etc/rc": (0o755, rc(config, provenance)),
        "etc/rc.local": (0o644, _RC_LOCAL),
        "etc/environment": (0o644, environment(config)),
        "etc/fstab": (0o644, fstab(config)),
        # An engine mounts its own over these when it builds; in a read-only image they must exist to be mounted over.
        "etc/hostname": (0o644, ""),
        "etc/hosts": (0o644, _HOSTS),
        "etc/resolv.conf": (0o644, ""),
    }
    additions = [Addition(path=path, mode=mode, content=text.encode()) for path, (mode, text) in files.items()]
    additions.append(Addition(path="etc/mtab", mode=0o777, target="/proc/mounts"))
    folders = {"dev": 0o755, "proc": 0o755, "sys": 0o755, "run": 0o755, "tmp": 0o1777, "etc": 0o755, "mnt": 0o755}
    additions += [Addition(path=path, mode=mode) for path, mode in folders.items()]
    additions += [Addition(path=path, mode=0o755) for path in _with_parents(config.workdir) if path not in folders]
    return Edit(additions=tuple(sorted(additions, key=lambda a: a.key)), dropped=(*ALWAYS_DROPPED, *noise))


def environment(config: ImageConfig) -> str:
    """/etc/environment: one `NAME=value` a line. A value with a newline has no form here and goes into /etc/rc instead."""
    return "".join(f"{name}={value}\n" for name, value in config.env.items() if "\n" not in value)


def fstab(config: ImageConfig) -> str:
    """/etc/fstab: one bind line per declared volume, blanks escaped as fstab(5) says."""
    lines = []
    for volume in sorted(config.volumes):
        place = volume.replace("\\", "\\134").replace(" ", "\\040").replace("\t", "\\011").replace("\n", "\\012")
        lines.append(f"${{ENROOT_ROOTFS}}{place} {place} none x-create=dir,bind,rw,nosuid,nodev\n")
    return "".join(lines)


def rc(config: ImageConfig, provenance: str) -> str:
    """/etc/rc: provenance and labels as comments, the working directory, then the entrypoint or the command."""
    comments = [f"provenance: {provenance}", *(f"{name} {value}" for name, value in sorted(config.labels.items()))]
    exports = [f"export {name}={shlex.quote(value)}" for name, value in config.env.items() if "\n" in value]
    workdir = shlex.quote(config.workdir or "/")
    entrypoint = shlex.join(config.entrypoint)
    # Without arguments and without CMD, Docker refuses to start; a shell is what a person at a prompt wants.
    default = shlex.join((*config.entrypoint, *config.cmd)) or "/bin/sh"
    lines = [
        "#!/bin/sh",
        *(f"# {_one_line(comment)}" for comment in comments),
        *exports,
        f"mkdir -p {workdir} 2>/dev/null",
        f"cd {workdir} && unset OLDPWD || exit 1",
        "if [ -s /etc/rc.local ]; then",
        "    . /etc/rc.local",
        "fi",
        'if [ "$#" -gt 0 ]; then',
        f'    exec {entrypoint} "$@"' if entrypoint else '    exec "$@"',
        "fi",
        f"exec {default}",
    ]
    return "\n".join(lines) + "\n"


def warnings(config: ImageConfig) -> list[str]:
    """What Enroot will not carry as the image's author wrote it, one sentence each."""
    found = []
    for name, value in config.env.items():
        if "\n" in value:
            found.append(f"ENV {name} holds a newline, which /etc/environment cannot carry; /etc/rc exports it instead")
        if re.search(r"\$\{\w+\}", value):
            found.append(f"ENV {name} holds ${{...}}, which Enroot fills in from the host's environment at start")
        if name.startswith("ENROOT_"):
            found.append(f"ENV {name} is Enroot's own namespace and is dropped at start")
    return found


def _with_parents(folder: str) -> list[str]:
    """`/a/b` -> `["a", "a/b"]`."""
    parts = [part for part in posixpath.normpath(folder).split("/") if part not in ("", ".", "..")]
    return ["/".join(parts[: i + 1]) for i in range(len(parts))]


def _one_line(text: str) -> str:
    return " ".join(text.split("\n"))


def _matches(pattern: list[str], parts: list[str]) -> bool:
    return len(pattern) <= len(parts) and all(map(fnmatchcase, parts, pattern))
