"""Reads the own parts of a site: scripts in a folder that [parts] of a cluster file names, with functions for the batch script."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kit import shell
from kit.config.toml_file import reason, shown
from kit.errors import ConfigError, Fault, KitError, did_you_mean
from kit.files import own_folders, untrusted_files
from kit.schema.cluster import Cluster

# templates/parts/site_parts/part.sh says when each is called.
PHASES = ("begun", "before_ranks", "before_attempt", "end")

_KEY = "parts.folder"
_NAME = re.compile(r"[a-z][a-z0-9_]*")
# No script that a batch script calls is larger.
_MOST_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class SitePart:
    """One script. name: of the file, without .sh. phases: those for which it has a function NAME::PHASE."""

    name: str
    text: str
    phases: tuple[str, ...]


def read_site_parts(cluster: Cluster, cluster_path: Path, cluster_file: str) -> tuple[SitePart, ...]:
    """The parts in order of their names; none if the cluster's file names no folder.

    A relative folder starts at the folder of the cluster's file. The scripts run as the user who submits, so ConfigError if anybody
    but root and this user could have written one; also for a script that is no bash, and for one without a phase.
    """
    if cluster.parts.folder is None:
        return ()
    folder = cluster_path.parent / Path(cluster.parts.folder).expanduser()
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix == ".sh")
        if not paths:
            raise _refused(cluster_file, f"{shown(folder)} has no file *.sh", hint="remove [parts]")
        _require_own(folder, cluster_file)
        return tuple(_read(path, cluster_file) for path in paths)
    except OSError as error:
        problem = f"{shown(Path(error.filename or folder))} cannot be read: {reason(error)}"
        raise _refused(cluster_file, problem, hint=f"mkdir -p {folder}") from None


def _read(path: Path, cluster_file: str) -> SitePart:
    _require_own(path, cluster_file)
    name = path.stem
    if not _NAME.fullmatch(name):
        problem = f"{shown(path)} is no name of a part: small letters, digits and _, the first a letter"
        better = re.sub(r"[^a-z0-9_]", "_", name.lower()).lstrip("0123456789_") or "part"
        raise _refused(cluster_file, problem, hint=f"mv {path} {path.with_name(better)}.sh")
    text = untrusted_files.read_text(path, most=_MOST_BYTES)
    checked = shell.run(["bash", "-n"], input=text, check=False)
    if checked.returncode:
        problem = f"{shown(path)} is not valid bash: {checked.stderr.strip().splitlines()[0]}"
        raise _refused(cluster_file, problem, hint=f"bash -n {path}")
    functions = dict.fromkeys(_functions(name, text))
    phases = tuple(one for one in PHASES if one in functions)
    others = [one for one in functions if one not in PHASES]
    misspelt = next((meant for one in others if (meant := did_you_mean(one, PHASES, cutoff=0.8))), "")
    if misspelt or not phases:
        what = f"has an unknown phase; {misspelt}" if misspelt else f"has no function {name}::PHASE"
        problem = f"{shown(path)} {what}"
        hint = f"{name}::before_ranks() {{ …; }}, or another phase: {', '.join(PHASES)}"
        raise _refused(cluster_file, problem, hint=hint)
    return SitePart(name=name, text=text, phases=phases)


def _functions(name: str, text: str) -> Iterator[str]:
    """The functions NAME::… that a script defines, without NAME."""
    for found in re.finditer(rf"^[ \t]*(function[ \t]+)?{name}::(\w+)[ \t]*(\([ \t]*\))?", text, re.MULTILINE):
        if found[1] or found[3]:
            yield found[2]


def _require_own(path: Path, cluster_file: str) -> None:
    if who := own_folders.replaceable_by(path):
        raise _refused(
            cluster_file,
            f"{shown(path)} can be changed by {who}, and would run as you",
            hint=f"have root or yourself own it, and: chmod go-w {path}",
        )


def _refused(cluster_file: str, problem: str, *, hint: str) -> KitError:
    return ConfigError.of(Fault(file=cluster_file, key=_KEY, problem=problem, hint=hint))
