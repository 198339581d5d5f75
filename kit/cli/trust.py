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

    ssh_files = _brought()
    if as_json:
        rows = [
            {"cluster": name, "file": str(ssh_file.path), "lines": ssh_file.lines, "trusted": ssh_file.is_trusted()}
            for name, ssh_file in ssh_files
        ]
        print_json("trust", rows)
        return
    for name, ssh_file in ssh_files:
        if off:
            ssh_file.distrust()
            continue
        _show(name, ssh_file)
    waiting = {ssh_file.digest: ssh_file for _, ssh_file in ssh_files if not ssh_file.is_trusted()}
    if off or not waiting:
        print(f"{0 if off else len(ssh_files)} files of this project are trusted", file=sys.stderr)
        return
    if not yes and not sys.stdin.isatty():
        raise UsageError("there is no terminal to ask on, and nothing was trusted", hint="kit trust --yes")
    if not yes and not typer.confirm("Let ssh obey these lines as you?", err=True):
        raise typer.Exit(1)
    for ssh_file in waiting.values():
        ssh_file.trust()
    print(f"{len(waiting)} files are trusted until they change", file=sys.stderr)


def _brought() -> list[tuple[str, SshConfiguration]]:
    """The ssh configurations of the project's clusters that execute something, with the name of the cluster."""
    from kit import config, data_folders
    from kit import trust as trusted
    from kit.schema.cluster import Cluster

    project = data_folders.project()
    ssh_files: list[tuple[str, SshConfiguration]] = []
    for name in data_folders.names("clusters", project_dir=project):
        rules = config.load_model(data_folders.find("clusters", name, project_dir=project).path, Cluster)
        ssh_file = trusted.brought(rules.ssh.config) if rules.ssh is not None and rules.ssh.config else None
        if ssh_file is not None and ssh_file.lines:
            ssh_files.append((name, ssh_file))
    return ssh_files


def _show(cluster: str, ssh_file: SshConfiguration) -> None:
    from kit.files.safe_text import clean

    said = "trusted" if ssh_file.is_trusted() else "not trusted"
    print(clean(f"cluster {cluster}: {ssh_file.path} ({said})"))
    for line in ssh_file.lines:
        print(clean(f"  {line.strip()}"))
    for program in ssh_file.programs:
        print(clean(f"  with the file {program}"))
