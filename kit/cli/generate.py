"""kit generate: one sbatch file from TorchTitan's configuration file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kit.cli.job_options import ClusterName, Containers, Overrides


def generate(
    config_file: Annotated[Path, typer.Option("--config-file", help="TorchTitan's configuration file.")],
    qos: Annotated[str | None, typer.Option("--qos", help="A row of the cluster's QOS table.")] = None,
    nodes: Annotated[int, typer.Option("--nodes", help="Nodes of the job.")] = 1,
    gpus_per_node: Annotated[
        int | None, typer.Option("--gpus-per-node", help="GPUs on each node.", show_default="all of them")
    ] = None,
    time: Annotated[str | None, typer.Option("--time", help="Time limit.", show_default="the QOS row's")] = None,
    use_ddp: Annotated[bool, typer.Option("--use-ddp", help="One training over all nodes, no replica groups.")] = False,
    replicas_per_node: Annotated[
        int, typer.Option("--num-ft-replicas-per-node", help="torchft replica groups on each node.")
    ] = 1,
    nodes_per_replica: Annotated[
        int, typer.Option("--nodes-per-replica", help="Nodes that one replica group spans.")
    ] = 1,
    extra_args: Annotated[
        str, typer.Option("--extra-args", help="Further arguments of TorchTitan, quoted as for a shell.")
    ] = "",
    output_file: Annotated[
        Path | None, typer.Option("--output-file", help="Where to write the file.", show_default="stdout")
    ] = None,
    job_name: Annotated[
        str | None, typer.Option("--job-name", help="Slurm's job name.", show_default="the file's")
    ] = None,
    mail_user: Annotated[str | None, typer.Option("--mail-user", help="Who gets mail.")] = None,
    output: Annotated[
        str | None, typer.Option("--output", help="Log file, with Slurm's patterns.", show_default="slurm-%j.out")
    ] = None,
    error: Annotated[str | None, typer.Option("--error", help="The same for errors.", show_default="--output")] = None,
    cluster: ClusterName = None,
    containers: Containers = True,
    set_: Overrides = None,
) -> None:
    """Make one sbatch file that holds a whole run: DDP, or torchft replica groups within nodes or over several."""
    from kit.runs import atomic_write, output_folders
    from kit.runs.single_sbatch_file import Asked, single_file

    asked = Asked(
        config_file=config_file,
        qos=qos,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        time=time,
        use_ddp=use_ddp,
        replicas_per_node=replicas_per_node,
        nodes_per_replica=nodes_per_replica,
        extra_args=extra_args,
        job_name=job_name,
        mail_user=mail_user,
        output=output,
        error=error,
    )
    text = single_file(asked, cluster=cluster, overrides=list(set_ or []), containers=containers)
    with output_folders.folders([text]):
        if output_file is None:
            print(text, end="")
            return
        atomic_write.write(output_file, text)
        output_file.chmod(0o755)
    print(output_file)
