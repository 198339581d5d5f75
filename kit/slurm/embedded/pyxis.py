"""Finds Pyxis, and separates the nodes' Enroot folders on one machine.

Each node needs its own Enroot state. Pyxis passes Enroot no environment except PATH, and a path built from SLURMD_NODENAME is not
enough (docs/internals/learnt.md#several-nodes-on-one-machine). So in place of `enroot`, each node sees a small script that makes
the real one use the node's own folder. This reads and changes no file of the machine's Enroot or Slurm.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kit import shell
from kit.errors import UsageError
from kit.slurm.embedded.paths import EmbeddedPaths

_PLUGIN = "spank_pyxis.so"
_FOLDERS = ("usr/lib*/slurm", "usr/lib/*/slurm*", "usr/local/lib/slurm", "opt/pyxis*/lib")


@dataclass(frozen=True, kw_only=True)
class PyxisPlugin:
    """A plugin, and the `enroot` that it would call."""

    plugin: Path
    enroot: Path


def choose(option: str, *, isolated: bool) -> PyxisPlugin | None:
    """The plugin that `--pyxis` selects: `auto` (the first one found, if any), `none`, or the plugin's path.

    UsageError if the given path cannot be used.
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
        raise UsageError("--pyxis: there is no `enroot` on PATH, and Pyxis needs it")
    if not isolated:
        raise UsageError("--pyxis: without namespaces the nodes would share Enroot's state", hint="start it as root")
    return PyxisPlugin(plugin=plugin, enroot=Path(enroot).resolve())


def _candidates(root: Path) -> Iterator[Path]:
    named = os.environ.get("KIT_PYXIS_PLUGIN")
    if named and Path(named).is_file():
        yield Path(named).resolve()
    for folder in _FOLDERS:
        yield from (path for path in sorted(root.glob(f"{folder}/{_PLUGIN}")) if path.is_file())


def plugstack_conf(pyxis: PyxisPlugin | None, layout: EmbeddedPaths) -> str:
    """The text of plugstack.conf. runtime_path is on the node's own tmpfs."""
    if pyxis is None:
        return "# No SPANK plugins: Pyxis was not found, or not asked for.\n"
    options = [f"runtime_path={layout.node}/run/pyxis"]
    # If the plugin can mount an image instead of unpacking it, let it: 0.3 s instead of 7 s (docs/internals/learnt.md#pyxis).
    if shell.which("squashfuse") and b"use_squashfuse" in pyxis.plugin.read_bytes():
        options.append("use_squashfuse=1")
    return f"required {pyxis.plugin} {' '.join(options)}\n"


def enroot_wrapper(layout: EmbeddedPaths) -> str:
    """The script that a node runs as `enroot`.

    As in Enroot's own configuration, a path that the caller has set takes precedence.
    """
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
