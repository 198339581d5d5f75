"""`kit cluster`: a real Slurm on this machine, to try jobs on."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kit.cli.json_options import Json
from kit.cli.print_json import print_json
from kit.files import untrusted_files

if TYPE_CHECKING:
    from kit.slurm.embedded import ClusterStatus, EmbeddedCluster

app = typer.Typer(
    help="Run a real Slurm on this machine to try jobs on, log in to a cluster over ssh, or write a first cluster file.",
    no_args_is_help=True,
    add_completion=False,
)

Name = Annotated[str, typer.Option("--name", help="Name of the cluster. Several clusters can run at the same time.")]
Folder = Annotated[
    Path | None,
    typer.Option(
        "--dir", help="The folder for all state of the cluster.", show_default="a folder in the user's data folder"
    ),
]


@app.command()
def login(
    name: Annotated[str, typer.Argument(metavar="CLUSTER", help="Name of a cluster whose file has an ssh table.")],
    off: Annotated[bool, typer.Option("--off", help="Close the connection instead.")] = False,
) -> None:
    """Open the ssh connection to a cluster and keep it open. ssh may ask for a password or a code on this terminal."""
    from kit import config, data_folders
    from kit.errors import UsageError
    from kit.hosts import clusters

    project = data_folders.project()
    host = clusters.find_ssh_host(config.cluster_entry(name, project).name, project=project)
    if host is None:
        problem = f"the file of cluster {name} has no [ssh] table, so there is no connection to open"
        raise UsageError(problem, hint='[ssh]\n       host = "login.pod"')
    if off:
        host.connection.close()
    elif code := host.connection.login():
        raise typer.Exit(code)


Nodes = Annotated[int, typer.Option(min=1, max=1000, help="Number of virtual nodes.")]
GpusPerNode = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=64,
        help="Number of GPUs of each node.",
        show_default="the machine's GPUs divided among the nodes, or 4 placeholders if it has none",
    ),
]
CpusPerNode = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=1024,
        help="Number of CPUs that each node reports to Slurm.",
        show_default="the number of the machine, but at least 8",
    ),
]
PlaceholderGpus = Annotated[
    bool,
    typer.Option(
        "--placeholder-gpus",
        help="Offer placeholder GPUs, which are only names, even if the machine has real GPUs.",
    ),
]
Pyxis = Annotated[
    str,
    typer.Option(help="Path of the Pyxis plugin. `auto` looks for the plugin. `none` starts the cluster without it."),
]
Conf = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE", help="A line for slurm.conf, such as Prolog=/path; repeatable.", show_default=False
    ),
]
Accounting = Annotated[
    bool,
    typer.Option("--accounting", help="Run slurmdbd with a MariaDB, one account, and two QOS that have limits."),
]
Cgroups = Annotated[
    bool, typer.Option("--cgroups", help="Slurm tracks a job's processes with cgroups (v2). This needs root.")
]


@app.command()
def up(
    *,
    name: Name = "local",
    nodes: Nodes = 2,
    gpus_per_node: GpusPerNode = None,
    cpus_per_node: CpusPerNode = None,
    placeholder_gpus: PlaceholderGpus = False,
    pyxis: Pyxis = "auto",
    conf: Conf = None,
    accounting: Accounting = False,
    cgroups: Cgroups = False,
    folder: Folder = None,
) -> None:
    """Start a cluster and wait until its nodes are idle. Then print the line that makes Slurm's commands use the cluster."""
    from kit.slurm import embedded
    from kit.slurm.embedded import settings

    shape = embedded.ClusterSize(
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        cpus_per_node=cpus_per_node,
        placeholder_gpus=placeholder_gpus,
        conf=settings.parse(conf or ()),
        accounting=accounting,
        cgroups=cgroups,
    )
    cluster = embedded.up(name, shape, folder=folder, pyxis=pyxis, say=_say)
    _say(f"cluster {name}: {cluster.shape}")
    _say_without_file(name)
    typer.echo(f"export SLURM_CONF={shlex.quote(str(cluster.slurm_conf))}")


@app.command()
def status(
    *,
    name: Name = "local",
    folder: Folder = None,
    as_json: Json = False,
) -> None:
    """Show a cluster's nodes. The exit code is 6 if the cluster is not up."""
    from kit.errors import SlurmError
    from kit.slurm import embedded

    cluster_status = embedded.status(name, folder=folder)
    if as_json:
        print_json("cluster status", _as_data(cluster_status))
    else:
        _print_table(cluster_status)
    if cluster_status.state != "up":
        raise SlurmError(
            f"cluster {name} is broken: {', '.join(cluster_status.dead) or 'slurmctld'} does not run",
            hint=f"`kit cluster down` removes what is left; the logs are in {cluster_status.cluster.layout.logs}",
        )


@app.command()
def down(*, name: Name = "local", folder: Folder = None) -> None:
    """Stop a cluster and all its jobs, and remove everything that is left of it."""
    from kit.slurm import embedded

    removed = embedded.down(name, folder=folder)
    _say(f"cluster {name}: removed" if removed else f"cluster {name}: there is none")


@app.command()
def detect(
    name: Annotated[
        str,
        typer.Argument(
            help="Name of the cluster. The new file is clusters/NAME.toml of the project.", show_default=False
        ),
    ],
    *,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a first cluster file from the configuration of this machine's Slurm."""
    import tomli_w

    from kit import config, data_folders
    from kit.errors import UsageError
    from kit.schema.cluster import Cluster
    from kit.schema.schema_base import NAME
    from kit.slurm import client
    from kit.slurm.detect_cluster import detect as ask

    if not NAME.holds(name):
        raise UsageError(f"{name!r}: not a name: {NAME.how}", hint="kit cluster detect pod")
    path = data_folders.project() / "clusters" / f"{name}.toml"
    if path.exists() and not force:
        raise UsageError(f"{path}: the file exists already", hint="--force writes over it")
    found = ask(env=client.environment({}))
    config.validate(found, Cluster, file=str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    untrusted_files.write_text(path, _DETECTED + tomli_w.dumps(found))
    typer.echo(str(path))
    _say(
        "next: read it; set paths.runs and paths.store to folders that all nodes see; add accounts and QOS to its rows"
    )


# Facts that Slurm does not report are listed at the top of the file.
_DETECTED = """\
# Written by `kit cluster detect`. Slurm does not say which account and QOS you may use, which folders all nodes see, or what your
# fabric wants: add account and qos to the rows below, and [paths], [network] and mounts (docs/guides/clusters.md).
"""


def _say(line: str) -> None:
    typer.echo(line, err=True)


def _say_without_file(name: str) -> None:
    """A cluster that runs can be used with Slurm's commands at once, but --cluster names a file."""
    from kit import config, data_folders
    from kit.errors import ConfigError

    try:
        config.cluster_entry(name, data_folders.project())
    except ConfigError:
        _say(f"clusters/{name}.toml is not there, and `kit submit --cluster {name}` needs it: begin with")
        _say('  embedded = true\n  [node]\n  cpus = 8\n  [container]\n  runtime = "auto"')


def _as_data(cluster_status: ClusterStatus) -> dict[str, Any]:
    cluster = cluster_status.cluster
    return {
        "name": cluster.name,
        "state": cluster_status.state,
        "slurm_conf": str(cluster.slurm_conf),
        "subnet": cluster.subnet,
        "has_pyxis": cluster.has_pyxis,
        "pyxis": str(cluster.pyxis) if cluster.pyxis else None,
        "dead": list(cluster_status.dead),
        "nodes": [
            {
                "name": shown.node.name,
                "state": shown.state,
                "address": shown.node.address,
                "cpus": cluster.cpus_per_node,
                "gpus": [str(device) for device in shown.node.gpus],
                "enter": _enter(cluster, shown.node.name),
            }
            for shown in cluster_status.nodes
        ],
    }


def _enter(cluster: EmbeddedCluster, node: str) -> list[str] | None:
    return cluster.node_exec_argv(node) if cluster.isolated else None


def _print_table(cluster_status: ClusterStatus) -> None:
    from kit.cli.print_table import Column, show

    cluster = cluster_status.cluster
    print(f"{cluster.name}: {cluster_status.state}, {cluster.shape}")
    print(f"SLURM_CONF={cluster.slurm_conf}")
    columns = (Column("NODE"), Column("STATE"), Column("ADDRESS", 1), Column("CPUS", 3), Column("GPUS", 2))
    rows = [
        (one.node.name, one.state or "unknown", one.node.address, cluster.cpus_per_node, len(one.node.gpus))
        for one in cluster_status.nodes
    ]
    show(columns, rows)
