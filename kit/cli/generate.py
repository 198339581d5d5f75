"""kit generate: one sbatch file from TorchTitan's configuration file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kit.cli.job_options import ClusterName, Containers, Overrides

ConfigFile = Annotated[Path, typer.Option("--config-file", help="TorchTitan's configuration file.")]
Qos = Annotated[str | None, typer.Option("--qos", help="The row of the cluster's QOS table to use.")]
Nodes = Annotated[int, typer.Option("--nodes", help="Number of nodes of the job.")]
GpusPerNode = Annotated[
    int | None,
    typer.Option("--gpus-per-node", help="Number of GPUs on each node.", show_default="all GPUs of a node"),
]
Time = Annotated[str | None, typer.Option("--time", help="Time limit.", show_default="the limit in the QOS row")]
UseDdp = Annotated[bool, typer.Option("--use-ddp", help="Train with DDP over all nodes, without replica groups.")]
ReplicasPerNode = Annotated[
    int, typer.Option("--num-ft-replicas-per-node", help="Number of torchft replica groups on each node.")
]
NodesPerReplica = Annotated[
    int, typer.Option("--nodes-per-replica", help="Number of nodes that one replica group spans.")
]
ExtraArgs = Annotated[str, typer.Option("--extra-args", help="Further arguments for TorchTitan, quoted as in a shell.")]
OutputFile = Annotated[
    Path | None, typer.Option("--output-file", help="Path of the sbatch file to write.", show_default="stdout")
]
JobName = Annotated[
    str | None,
    typer.Option("--job-name", help="Slurm's job name.", show_default="from the name of the configuration file"),
]
MailUser = Annotated[
    str | None, typer.Option("--mail-user", help="The recipient of Slurm's mail when the job ends or fails.")
]
Output = Annotated[
    str | None,
    typer.Option(
        "--output",
        help="Log file of the job. It may contain Slurm's patterns, such as %j.",
        show_default="slurm-%j.out",
    ),
]
Error = Annotated[
    str | None,
    typer.Option("--error", help="Log file for stderr, in the same form.", show_default="the file of --output"),
]


def generate(
    config_file: ConfigFile,
    qos: Qos = None,
    nodes: Nodes = 1,
    gpus_per_node: GpusPerNode = None,
    time: Time = None,
    use_ddp: UseDdp = False,
    replicas_per_node: ReplicasPerNode = 1,
    nodes_per_replica: NodesPerReplica = 1,
    extra_args: ExtraArgs = "",
    output_file: OutputFile = None,
    job_name: JobName = None,
    mail_user: MailUser = None,
    output: Output = None,
    error: Error = None,
    cluster: ClusterName = None,
    containers: Containers = True,
    set_: Overrides = None,
) -> None:
    """Write one sbatch file that contains a TorchTitan run: DDP, or torchft replica groups within or across nodes."""
    from kit.files import atomic_write
    from kit.submit import output_folders
    from kit.submit.single_sbatch_file import Asked, single_file

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
