"""kit generate: one sbatch file from TorchTitan's configuration file, by the words of the generators that people come from."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from kit.cli.job_options import ClusterName, Containers, Overrides

ConfigFile = Annotated[
    Path,
    typer.Option(
        "--config-file",
        help="TorchTitan's configuration: a TOML, or a Python file of assignments for a fork that reads one.",
    ),
]
Qos = Annotated[str | None, typer.Option("--qos", help="The row of the cluster's QOS table to use.")]
Nodes = Annotated[int, typer.Option("--nodes", help="Number of nodes of the job.")]
GpusPerNode = Annotated[
    int | None,
    typer.Option("--gpus-per-node", help="Number of GPUs on each node.", show_default="all GPUs of a node"),
]
Time = Annotated[str | None, typer.Option("--time", help="Time limit.", show_default="the limit in the QOS row")]
UseDdp = Annotated[bool, typer.Option("--use-ddp", help="Train with DDP over all nodes, without replica groups.")]
ReplicasPerNode = Annotated[
    int | None,
    typer.Option(
        "--num-ft-replicas-per-node",
        help="Train torchft replica groups: this many on each node.",
        show_default="8, at most one for each GPU, in a training of replica groups",
    ),
]
NodesPerReplica = Annotated[
    int | None,
    typer.Option(
        "--nodes-per-replica", help="Train torchft replica groups: each spans this many nodes.", show_default="1"
    ),
]
ExtraArgs = Annotated[
    str,
    typer.Option("--extra-args", help="Overrides (a.b=c) and options (--a.b c) for TorchTitan, quoted as in a shell."),
]
Memory = Annotated[str | None, typer.Option("--mem", help="Memory of each node.", show_default="that of the QOS row")]
Account = Annotated[str | None, typer.Option("--account", help="Slurm's account.", show_default="that of the QOS row")]
Partition = Annotated[
    str | None, typer.Option("--partition", help="Slurm's partition.", show_default="that of the QOS row")
]
OutputFile = Annotated[
    Path | None, typer.Option("--output-file", help="Path of the sbatch file to write.", show_default="stdout")
]
JobName = Annotated[
    str | None,
    typer.Option("--job-name", help="Slurm's job name.", show_default="from the name of the configuration file"),
]
MailUser = Annotated[str | None, typer.Option("--mail-user", help="The recipient of Slurm's mail about the job.")]
MailType = Annotated[
    str | None,
    typer.Option("--mail-type", help="The events that Slurm mails.", show_default="BEGIN,END,FAIL with --mail-user"),
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
    memory: Memory = None,
    account: Account = None,
    partition: Partition = None,
    replicas_per_node: ReplicasPerNode = None,
    nodes_per_replica: NodesPerReplica = None,
    extra_args: ExtraArgs = "",
    output_file: OutputFile = None,
    job_name: JobName = None,
    mail_user: MailUser = None,
    mail_type: MailType = None,
    output: Output = None,
    error: Error = None,
    cluster: ClusterName = None,
    containers: Containers = True,
    set_: Overrides = None,
) -> None:
    """Write one sbatch file that contains a TorchTitan run: one training, or torchft replica groups in or over nodes."""
    from kit.files import atomic_write
    from kit.hosts import output_folders
    from kit.submission.single_sbatch_file import Asked, single_file

    asked = Asked(
        config_file=config_file,
        qos=qos,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        time=time,
        memory=memory,
        account=account,
        partition=partition,
        use_ddp=use_ddp,
        replicas_per_node=replicas_per_node,
        nodes_per_replica=nodes_per_replica,
        extra_args=extra_args,
        job_name=job_name,
        mail_user=mail_user,
        mail_type=mail_type,
        output=output,
        error=error,
    )
    text = single_file(asked, cluster=cluster, overrides=list(set_ or []), containers=containers, say=_say)
    with output_folders.folders([text]):
        if output_file is None:
            print(text, end="")
            return
        atomic_write.write(output_file, text)
        output_file.chmod(0o755)
    print(output_file)


def _say(line: str) -> None:
    print(f"kit: {line}", file=sys.stderr)
