"""Adds and removes files of an image's tree so that its .sqsh behaves like one that Enroot imported.

Enroot reads the image's environment from /etc/environment, its volumes from /etc/fstab, and runs /etc/rc, which enters the working
directory and starts the entrypoint or the command (docs/internals/learnt.md#enroot).
"""

from __future__ import annotations

import posixpath
import re
import shlex

from kit.images.sources.tree_edits import ALWAYS_DROPPED, FOLDER_MODE, Addition, Edit
from kit.schema.image import ImageConfig

# The same expressions as in Enroot's common.sh. It removes other lines of the file, and quotes around a value. Its set of quotes
# contains a backslash.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_QUOTED = re.compile(r"[\\\"'](.*)[\\\"']\s*", re.DOTALL | re.ASCII)

_HOSTS = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n"
_RC_LOCAL = "# /etc/rc reads this file when the container starts; Pyxis and users put their own steps here.\n"


def edit(config: ImageConfig, *, provenance: str, noise: tuple[str, ...] = ()) -> Edit:
    """The changes for an image with this configuration.

    provenance: the source of the image, for /etc/rc; it must be the same on every machine. noise: patterns of more paths to leave
    out (`tree_edits.BUILD_NOISE` for the kit's own builds).
    """
    files = {
        "etc/rc": (0o755, rc(config, provenance)),
        "etc/rc.local": (0o644, _RC_LOCAL),
        "etc/environment": (0o644, environment(config)),
        "etc/fstab": (0o644, fstab(config)),
        # While an engine builds, it mounts its own files over these. In a read-only image they must exist to be mounted over.
        "etc/hostname": (0o644, ""),
        "etc/hosts": (0o644, _HOSTS),
        "etc/resolv.conf": (0o644, ""),
    }
    additions = [Addition(path=path, mode=mode, content=text.encode()) for path, (mode, text) in files.items()]
    additions.append(Addition(path="etc/mtab", mode=0o777, target="/proc/mounts"))
    folders = {"dev": 0o755, "proc": 0o755, "sys": 0o755, "run": 0o755, "tmp": 0o1777, "etc": 0o755, "mnt": 0o755}
    additions += [Addition(path=path, mode=mode) for path, mode in folders.items()]
    additions += [
        Addition(path=path, mode=FOLDER_MODE, follows=True)
        for path in _with_parents(config.workdir)
        if path not in folders
    ]
    return Edit(additions=tuple(sorted(additions, key=lambda a: a.key)), dropped=(*ALWAYS_DROPPED, *noise))


def environment(config: ImageConfig) -> str:
    """/etc/environment: one `NAME=value` per line.

    This format cannot hold a value with a newline, which goes into /etc/rc instead.
    """
    return "".join(f"{name}={_guarded(value)}\n" for name, value in config.env.items() if _fits(name, value))


def environment_of(text: str) -> dict[str, str]:
    """Names and values of an /etc/environment, as Enroot reads them."""
    pairs = (line.partition("=") for line in text.split("\n"))
    return {name: _unquoted(_unquoted(value)) for name, equals, value in pairs if equals and _NAME.fullmatch(name)}


def _fits(name: str, value: str) -> bool:
    return "\n" not in value and _NAME.fullmatch(name) is not None


def _guarded(value: str) -> str:
    """Add two pairs of quotes to a quoted value. Enroot removes one pair before its hooks and one after them."""
    return f'""{value}""' if _QUOTED.fullmatch(value) else value


def _unquoted(value: str) -> str:
    found = _QUOTED.fullmatch(value)
    return found[1] if found else value


def fstab(config: ImageConfig) -> str:
    """/etc/fstab: one bind line per declared volume, with blanks escaped as in fstab(5)."""
    lines = []
    for volume in sorted(config.volumes):
        place = volume.replace("\\", "\\134").replace(" ", "\\040").replace("\t", "\\011").replace("\n", "\\012")
        lines.append(f"${{ENROOT_ROOTFS}}{place} {place} none x-create=dir,bind,rw,nosuid,nodev\n")
    return "".join(lines)


def rc(config: ImageConfig, provenance: str) -> str:
    """/etc/rc: provenance and labels as comments, the working directory, then the entrypoint or the command."""
    comments = [f"provenance: {provenance}", *(f"{name} {value}" for name, value in sorted(config.labels.items()))]
    exports = [
        f"export {name}={shlex.quote(value)}"
        for name, value in config.env.items()
        if "\n" in value and _NAME.fullmatch(name)
    ]
    workdir = shlex.quote(config.workdir or "/")
    entrypoint = shlex.join(config.entrypoint)
    # Without arguments and without CMD, Docker refuses to start. A person at a prompt wants a shell.
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
    """Settings of the image that Enroot changes or drops, one sentence each."""
    sentences = []
    for name, value in config.env.items():
        if not _NAME.fullmatch(name):
            sentences.append(f"ENV {name!r} is not a name that a shell can set, and is left out")
            continue
        if "\n" in value:
            sentences.append(
                f"ENV {name} holds a newline: only /etc/rc can set it, which Pyxis does not run for a job's programs"
            )
        if re.search(r"\$\{[A-Za-z_]\w*\}", value):
            sentences.append(f"ENV {name} holds ${{...}}, which Enroot fills in from the host's environment at start")
        if name.startswith("ENROOT_"):
            sentences.append(f"ENV {name} is Enroot's own namespace and is dropped at start")
    return sentences


def _with_parents(folder: str) -> list[str]:
    """`/a/b` -> `["a", "a/b"]`."""
    parts = [part for part in posixpath.normpath(folder).split("/") if part not in ("", ".", "..")]
    return ["/".join(parts[: i + 1]) for i in range(len(parts))]


def _one_line(text: str) -> str:
    return " ".join(text.split("\n"))
