"""kit trust."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from kit.cli.json_options import Json
from kit.cli.print_json import print_json

if TYPE_CHECKING:
    from kit.trust import SshConfiguration


def trust(
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    off: Annotated[bool, typer.Option("--off", help="Forget that these files were trusted.")] = False,
    as_json: Json = False,
) -> None:
    """Show what this project would execute on this machine when you look at its clusters, and allow it after a question."""
    from kit.errors import UsageError

    found = _brought()
    if as_json:
        rows = [
            {"cluster": name, "file": str(one.path), "lines": one.lines, "trusted": one.is_trusted()}
            for name, one in found
        ]
        print_json("trust", rows)
        return
    for name, one in found:
        if off:
            one.distrust()
            continue
        _show(name, one)
    waiting = {one.digest: one for _, one in found if not one.is_trusted()}
    if off or not waiting:
        print(f"{0 if off else len(found)} files of this project are trusted", file=sys.stderr)
        return
    if not yes and not sys.stdin.isatty():
        raise UsageError("there is no terminal to ask on, and nothing was trusted", hint="kit trust --yes")
    if not yes and not typer.confirm("Let ssh obey these lines as you?", err=True):
        raise typer.Exit(1)
    for one in waiting.values():
        one.trust()
    print(f"{len(waiting)} files are trusted until they change", file=sys.stderr)


def _brought() -> list[tuple[str, SshConfiguration]]:
    """The ssh configurations of the project's clusters that execute something, with the name of the cluster."""
    from kit import config, data_folders
    from kit import trust as trusted
    from kit.schema.cluster import Cluster

    project = data_folders.project()
    found: list[tuple[str, SshConfiguration]] = []
    for name in data_folders.names("clusters", project_dir=project):
        rules = config.load_model(data_folders.find("clusters", name, project_dir=project).path, Cluster)
        one = trusted.brought(rules.ssh.config) if rules.ssh is not None and rules.ssh.config else None
        if one is not None and one.lines:
            found.append((name, one))
    return found


def _show(cluster: str, one: SshConfiguration) -> None:
    from kit.files.safe_text import clean

    said = "trusted" if one.is_trusted() else "not trusted"
    print(clean(f"cluster {cluster}: {one.path} ({said})"))
    for line in one.lines:
        print(clean(f"  {line.strip()}"))
    for program in one.programs:
        print(clean(f"  with the file {program}"))
