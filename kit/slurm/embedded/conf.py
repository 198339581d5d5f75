"""The text of the cluster's configuration files. Pure functions: they turn a recorded cluster into text.

The options work in Slurm 22.05 and 24.11; where the two differ, `version` decides.
"""

from __future__ import annotations

import re

from kit.errors import SlurmError
from kit.slurm.embedded import accounting, settings
from kit.slurm.embedded.cluster_record import EmbeddedCluster, VirtualNode

Version = tuple[int, int]

# From this release on, slurmd can be told not to use cgroups.
_CGROUP_DISABLED: Version = (24, 5)


# Lifetime of a step's credential in seconds; Slurm also holds a requeued job for this long. Slurm's default is two minutes.
_CREDENTIAL_S = 20
# Seconds without an answer after which a node is lost. Hundreds of nodes on one machine answer slowly, so they get Slurm's default.
_PATIENCE_S, _PATIENCE_WIDE_S, _FEW_NODES = 30, 300, 64


def parse_version(text: str) -> Version:
    """(22, 5) from the output of `slurmctld -V`, such as `slurm-wlm 22.05.8`."""
    match = re.search(r"(\d+)\.(\d+)", text)
    if match is None:
        raise SlurmError(f"slurmctld -V: no version in {text!r}")
    return int(match[1]), int(match[2])


def slurm_conf(cluster: EmbeddedCluster, *, user: str) -> str:
    """slurm.conf with the site's settings. user: the daemons' user."""
    return settings.applied(_own_settings(cluster, user=user), cluster.conf)


def _own_settings(cluster: EmbeddedCluster, *, user: str) -> str:
    layout = cluster.layout
    # Without a default, a job without --mem takes the whole node.
    memory_per_cpu = max(1, cluster.memory_mb // cluster.cpus_per_node)
    patience = _PATIENCE_S if len(cluster.nodes) <= _FEW_NODES else _PATIENCE_WIDE_S
    nodes = "\n".join(_node_line(cluster, node) for node in cluster.nodes)
    return f"""\
# Written by `kit cluster up`; `kit cluster down` removes it. Changes are lost.
ClusterName={cluster.name}
SlurmctldHost={cluster.controller_host}({cluster.controller_address})
SlurmctldPort={cluster.controller_port}
SlurmdPort={cluster.nodes[0].port}
SlurmUser={user}
SlurmdUser={user}

# Its own munge and its own files: nothing here is shared with another Slurm on this machine.
AuthType=auth/munge
AuthInfo=socket={layout.munge_socket},cred_expire={_CREDENTIAL_S}
StateSaveLocation={layout.controller_state}
SlurmdSpoolDir={layout.spool}/%n
# PMIx makes a folder of the step's number here on every node, and the nodes share /tmp.
TmpFS={layout.spool}/%n
SlurmctldPidFile={layout.folder}/slurmctld.pid
SlurmdPidFile={layout.folder}/slurmd-%n.pid
SlurmctldLogFile={layout.log("slurmctld")}
SlurmdLogFile={layout.log("slurmd-%n")}
SlurmctldSyslogDebug=quiet
SlurmdSyslogDebug=quiet
PlugStackConfig={layout.folder}/plugstack.conf

# Nodes claim more than the machine has: cgroups limit nothing, with --cgroups too.
SlurmdParameters=config_overrides
ProctrackType=proctrack/{"cgroup" if cluster.cgroups else "linuxproc"}
TaskPlugin=task/{"cgroup" if cluster.cgroups else "none"}
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU={memory_per_cpu}
GresTypes=gpu

# Somebody watches: a job starts when it is submitted, not three seconds later.
SchedulerParameters=batch_sched_delay=0,sched_interval=5,bf_interval=5

# A lost node is noticed in half a minute instead of five. A busy machine may still take its time to answer.
SlurmdTimeout={patience}
SlurmctldTimeout={patience}
MessageTimeout=30
KillWait=10
MinJobAge=3600
ReturnToService=2
JobRequeue=1

{accounting.settings(cluster)}
{nodes}
PartitionName=main Nodes={",".join(node.name for node in cluster.nodes)} Default=YES MaxTime=INFINITE State=UP
"""


def gres_conf(cluster: EmbeddedCluster) -> str:
    """gres.conf. It lists the device files and asks no driver library."""
    with_gpus = [f"NodeName={node.name} Name=gpu File={path}" for node in cluster.nodes for path in node.gpus]
    return "\n".join(["AutoDetect=off", *with_gpus, ""])


def cgroup_conf(version: Version, *, cgroups: bool) -> str:
    """cgroup.conf. cgroups: slurmd makes its own cgroups, without systemd; otherwise it uses none.

    By default, slurmd looks for a cgroup file system and, on cgroup v2, for systemd. Before 24.05 there is no `disabled`, but the
    v1 plugin does nothing until a controller is used, and none is.
    """
    if cgroups:
        return "CgroupPlugin=cgroup/v2\nIgnoreSystemd=yes\n"
    return f"CgroupPlugin={'disabled' if version >= _CGROUP_DISABLED else 'cgroup/v1'}\n"


def hosts(cluster: EmbeddedCluster) -> str:
    """The nodes' hosts file, with a name for every address: c10d looks up each one, and warns about those without a name.

    It asks for IPv4 addresses in their IPv6 form. This form has another name, so that a node's own name stays IPv4 alone.
    """
    controller = (cluster.controller_address, cluster.controller_host)
    machines = [controller, *((node.address, node.name) for node in cluster.nodes)]
    names = [f"{address}\t{name}" for address, name in machines]
    mapped = [f"::ffff:{address}\t{name}.mapped" for address, name in machines]
    return "\n".join(["127.0.0.1\tlocalhost", *names, *mapped, ""])


def _node_line(cluster: EmbeddedCluster, node: VirtualNode) -> str:
    host = node.name if cluster.isolated else cluster.controller_host
    gres = f" Gres=gpu:{len(node.gpus)}" if node.gpus else ""
    return (
        f"NodeName={node.name} NodeHostname={host} NodeAddr={node.address} Port={node.port}"
        f" Sockets=1 CoresPerSocket={cluster.cpus_per_node} ThreadsPerCore=1 RealMemory={cluster.memory_mb}{gres}"
        " State=UNKNOWN"
    )
