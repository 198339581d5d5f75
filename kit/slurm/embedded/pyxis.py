"""Finds Pyxis, and separates the nodes' Enroot folders on one machine.

Enroot's state must be private to a node. Pyxis hands Enroot no environment but PATH, and a path built from
SLURMD_NODENAME is not enough (field-notes 6), so each node sees, in place of `enroot`, a small script that points the
real one at the node's own folder. No file of the machine's Enroot or Slurm is read for this, and none is changed.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kit import shell
from kit.errors import UsageError
from kit.slurm.embedded.paths import Layout

_PLUGIN = "spank_pyxis.so"
_FOLDERS = ("usr/lib*/slurm", "usr/lib/*/slurm*", "usr/local/lib/slurm", "opt/pyxis*/lib")


@dataclass(frozen=True, kw_only=True)
class PyxisPlugin:
    """A plugin that was found, with the `enroot` that it would call."""

    plugin: Path
    enroot: Path


def choose(option: str, *, isolated: bool) -> PyxisPlugin | None:
    """What `--pyxis` means: `auto` (the first one found, if any), `none`, or the plugin's path.

    UsageError when a path is given that cannot be used.
    """
    if option == "none":
        return None
    enroot = shell.which("enroot")
    if option == "auto":
        plugin = next(_candidates(Path("/")), None)
        return PyxisPlugin(plugin=plugin, enroot=Path(enroot).resolve()) if plugin and enroot and isolated else None
    plugin = Path(option).expanduser().resolve()
    if not plugin.is_file():
        raise UsageError(f"--pyxis {option}: no such file", hint="name the plugin, spank_pyxis.so, or `auto` or `none`")
    if enroot is None:
        raise UsageError("--pyxis: there is no `enroot` on PATH, and Pyxis is nothing without it")
    if not isolated:
        raise UsageError("--pyxis: without namespaces the nodes would share Enroot's state", hint="start it as root")
    return PyxisPlugin(plugin=plugin, enroot=Path(enroot).resolve())


def _candidates(root: Path) -> Iterator[Path]:
    named = os.environ.get("KIT_PYXIS_PLUGIN")
    if named and Path(named).is_file():
        yield Path(named).resolve()
    for folder in _FOLDERS:
        yield from sorted(root.glob(f"{folder}/{_PLUGIN}"))


def plugstack_conf(pyxis: PyxisPlugin | None, layout: Layout) -> str:
    """The text of plugstack.conf; runtime_path is a tmpfs of the node's own."""
    if pyxis is None:
        return "# No SPANK plugins: Pyxis was not found, or not asked for.\n"
    options = [f"runtime_path={layout.node}/run/pyxis"]
    # Where the plugin knows how to mount an image instead of unpacking it: 0.3 s instead of 23 s (performance-notes).
    if shell.which("squashfuse") and b"use_squashfuse" in pyxis.plugin.read_bytes():
        options.append("use_squashfuse=1")
    return f"required {pyxis.plugin} {' '.join(options)}\n"


def enroot_wrapper(layout: Layout) -> str:
    """What a node runs as `enroot`. A path that the caller chose wins, as it does in Enroot's own configuration."""
    own = shlex.quote(str(layout.node))
    return f"""\
#!/usr/bin/env bash
# Keeps Enroot's state private to one virtual node, and below that to one user.
set -euo pipefail
readonly own={own}
export ENROOT_RUNTIME_PATH="${{ENROOT_RUNTIME_PATH:-${{own}}/run/enroot/${{EUID}}}}"
export ENROOT_DATA_PATH="${{ENROOT_DATA_PATH:-${{own}}/enroot/data-${{EUID}}}}"
export ENROOT_CACHE_PATH="${{ENROOT_CACHE_PATH:-${{own}}/enroot/cache-${{EUID}}}}"
export ENROOT_TEMP_PATH="${{ENROOT_TEMP_PATH:-${{own}}/enroot}}"
exec "${{own}}/bin/enroot" "$@"
"""
