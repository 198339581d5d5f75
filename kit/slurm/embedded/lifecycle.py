"""up, down and status of the embedded cluster."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kit import shell
from kit.errors import SlurmError, ToolError
from kit.slurm.embedded import (
    accounting,
    cgroup_support,
    conf,
    daemons,
    free_addresses,
    gpus,
    lock,
    nodes,
    settings,
    teardown,
)
from kit.slurm.embedded.cluster_record import (
    Accounting,
    ClusterSize,
    EmbeddedCluster,
    VirtualNode,
    machine_memory_mb,
)
from kit.slurm.embedded.find_cluster import layout_of, this_boot
from kit.slurm.embedded.paths import EmbeddedPaths, node_names
from kit.slurm.embedded.pyxis import PyxisPlugin, choose, plugstack_conf

Say = Callable[[str], None]

# Seconds. A start takes two to four; the limit allows for a loaded machine.
START_S = 60.0
_LOCK_S = 90.0
_QUERY_S = 5.0
_POLL_S = 0.1
_MIN_CPUS = 8


@dataclass(frozen=True, kw_only=True)
class NodeStatus:
    """A node as slurmctld sees it. state: Slurm's own word; empty if slurmctld does not answer."""

    node: VirtualNode
    state: str


@dataclass(frozen=True, kw_only=True)
class ClusterStatus:
    """The state of a recorded cluster. `broken`: a daemon is in `dead`, or slurmctld does not answer."""

    cluster: EmbeddedCluster
    state: Literal["up", "broken"]
    nodes: tuple[NodeStatus, ...]
    dead: tuple[str, ...]


def up(
    name: str = "local",
    shape: ClusterSize | None = None,
    *,
    folder: Path | None = None,
    pyxis: str = "auto",
    timeout_s: float = START_S,
    say: Say = lambda _: None,
) -> EmbeddedCluster:
    """Start a cluster and wait until every node is idle. A running cluster of the same shape is returned unchanged.

    folder: for all its files, default `default_folder(name)`. pyxis: `auto`, `none` or the plugin's path. say: called with each
    step. After any failure, or Ctrl-C, nothing of the cluster is left. Raises UsageError for an impossible shape, ToolError for
    missing programs, SlurmError with a daemon's last output.
    """
    daemons.require_programs()
    if shape and shape.accounting:
        accounting.require_programs()
    if shape and shape.cgroups:
        cgroup_support.require()
    layout = layout_of(name, folder)
    with lock.held(layout.folder, timeout_s=_LOCK_S):
        shape = shape or ClusterSize()
        isolated = nodes.allowed() and shape.nodes <= nodes.MOST_ISOLATED
        plugin = choose(pyxis, isolated=isolated)
        wanted = _design(name, layout, shape, plugin, isolated=isolated)
        running = _running(layout)
        if running:
            if running.shape != wanted.shape:
                raise SlurmError(
                    f"cluster {name} is up with another shape: {running.shape}; asked for: {wanted.shape}",
                    hint=f"{_command('down', name)} first; it ends the jobs on it",
                )
            say(f"cluster {name} is already up")
            return running
        if teardown.remove(layout):
            say(f"removed what an earlier cluster {name} had left")
        try:
            return _start(wanted, plugin, timeout_s=timeout_s, say=say)
        except BaseException:
            teardown.remove(layout)
            raise


def down(name: str = "local", *, folder: Path | None = None) -> bool:
    """End the cluster's jobs and daemons and remove its files. Returns False if there was no cluster."""
    layout = layout_of(name, folder)
    if not layout.folder.parent.exists():
        return False
    with lock.held(layout.folder, timeout_s=_LOCK_S):
        cluster = _running(layout)
        if cluster:
            teardown.cancel_jobs(cluster)
        return teardown.remove(layout)


def status(name: str = "local", *, folder: Path | None = None) -> ClusterStatus:
    """The state of the cluster and of its nodes. SlurmError if no such cluster is recorded."""
    cluster = EmbeddedCluster.load(layout_of(name, folder))
    if cluster is None:
        raise SlurmError(f"no cluster {name!r} is up", hint=_command("up", name))
    gone = _dead(cluster)
    states = {} if "slurmctld" in gone else _node_states(cluster)
    return ClusterStatus(
        cluster=cluster,
        state="up" if cluster.phase == "up" and states and not gone else "broken",
        nodes=tuple(NodeStatus(node=node, state=states.get(node.name, "")) for node in cluster.nodes),
        dead=gone,
    )


def _command(verb: str, name: str) -> str:
    return f"`kit cluster {verb}{'' if name == 'local' else f' --name {name}'}`"


def _dead(cluster: EmbeddedCluster) -> tuple[str, ...]:
    everything = (*cluster.daemons, *(node.name for node in cluster.nodes))
    return everything if cluster.boot_id != this_boot() else tuple(daemons.dead(cluster))


def _running(layout: EmbeddedPaths) -> EmbeddedCluster | None:
    cluster = EmbeddedCluster.load(layout)
    return cluster if cluster and cluster.phase == "up" and not _dead(cluster) else None


def _design(
    name: str, layout: EmbeddedPaths, shape: ClusterSize, pyxis: PyxisPlugin | None, *, isolated: bool
) -> EmbeddedCluster:
    """Plan the cluster, before anything is created."""
    names = node_names(name, shape.nodes)
    seed = str(layout.folder)
    real = () if shape.placeholder_gpus else gpus.real_devices()
    per_node = shape.gpus_per_node
    if real and per_node != 0:
        devices = gpus.deal(real, nodes=shape.nodes, per_node=per_node)
    else:
        count = gpus.PLACEHOLDERS_PER_NODE if per_node is None else per_node
        devices = (gpus.placeholders(layout.gpus, count),) * shape.nodes
    # Isolated nodes have their own addresses and can share a port; other nodes share one address.
    slurmds, databases = 1 if isolated else shape.nodes, 2 if shape.accounting else 0
    first, *ports = free_addresses.choose_ports(1 + slurmds + databases, seed=seed, in_use=free_addresses.port_in_use)
    routed = free_addresses.routed_networks() if isolated else []
    subnet = free_addresses.choose_subnet(seed=seed, taken=routed, nodes=shape.nodes) if isolated else None
    return EmbeddedCluster(
        name=name,
        folder=layout.folder,
        phase="starting",
        boot_id=this_boot(),
        cpus_per_node=shape.cpus_per_node or max(_MIN_CPUS, os.cpu_count() or 1),
        gpus_per_node=len(devices[0]),
        memory_mb=machine_memory_mb(),
        controller_host=socket.gethostname().split(".")[0],
        controller_address=nodes.host_address(subnet) if subnet else "127.0.0.1",
        controller_port=first,
        subnet=str(subnet) if subnet else None,
        nodes=tuple(
            VirtualNode(
                name=node,
                address=nodes.node_address(subnet, index) if subnet else "127.0.0.1",
                port=ports[0 if subnet else index],
                gpus=devices[index],
            )
            for index, node in enumerate(names)
        ),
        pyxis=pyxis.plugin if pyxis else None,
        conf=settings.checked(shape.conf),
        accounting=Accounting(port=ports[-2], database_port=ports[-1]) if shape.accounting else None,
        cgroups=shape.cgroups,
    )


def _start(cluster: EmbeddedCluster, pyxis: PyxisPlugin | None, *, timeout_s: float, say: Say) -> EmbeddedCluster:
    layout = cluster.layout
    deadline = time.monotonic() + timeout_s
    if gpus.shared([node.gpus for node in cluster.nodes]) and not cluster.has_placeholders:
        say("nodes share a GPU, for there are fewer than nodes: NCCL refuses two ranks on one, gloo does not")
    layout.folder.mkdir(exist_ok=True)
    # Save the record first, so that a killed start is recognised.
    cluster.save()
    _write_files(cluster, pyxis)
    env = daemons.environment(layout)
    if cluster.isolated:
        say(f"making {len(cluster.nodes)} nodes on {cluster.subnet}")
        cluster = cluster.model_copy(update={"nodes": nodes.start(cluster, env=env, pyxis=pyxis)})
    say(f"starting munged, {'a database, slurmdbd, ' if cluster.accounting else ''}slurmctld and slurmd")
    started = {"munged": daemons.start_munged(layout, env)}
    if cluster.accounting:
        started |= accounting.start(cluster, env)
    started["slurmctld"] = daemons.start_controller(layout, env)
    started |= {f"slurmd-{node.name}": daemons.start_slurmd(cluster, node, env) for node in cluster.nodes}
    cluster = cluster.model_copy(update={"daemons": started})
    cluster.save()
    _wait_until_idle(cluster, deadline)
    if pyxis:
        _check_pyxis(cluster)
    cluster = cluster.model_copy(update={"phase": "up"})
    cluster.save()
    return cluster


def _write_files(cluster: EmbeddedCluster, pyxis: PyxisPlugin | None) -> None:
    layout = cluster.layout
    for folder in (layout.logs, layout.spool, layout.node, layout.folder / "nodes"):
        folder.mkdir()
    if cluster.has_placeholders:
        gpus.make_placeholders(cluster.nodes[0].gpus)
    version = conf.parse_version(shell.run([daemons.program("slurmctld"), "-V"]).stdout)
    layout.slurm_conf.write_text(conf.slurm_conf(cluster, user=daemons.user()))
    (layout.folder / "gres.conf").write_text(conf.gres_conf(cluster))
    (layout.folder / "cgroup.conf").write_text(conf.cgroup_conf(version, cgroups=cluster.cgroups))
    (layout.folder / "plugstack.conf").write_text(plugstack_conf(pyxis, layout))
    layout.hosts.write_text(conf.hosts(cluster))
    for name in settings.COPIED:
        if name in cluster.conf:
            shutil.copyfile(cluster.conf[name], layout.folder / name)


def _wait_until_idle(cluster: EmbeddedCluster, deadline: float) -> None:
    """Wait for all nodes. slurmctld reports a node as `unknown` for the first few seconds."""
    while True:
        gone = daemons.dead(cluster)
        if gone:
            last_words = daemons.tail(cluster.layout, gone[0])
            raise SlurmError(f"cluster {cluster.name}: {gone[0]} died at its start\n{last_words}")
        states = _node_states(cluster)
        waiting = [node.name for node in cluster.nodes if states.get(node.name) != "idle"]
        if not waiting:
            return
        if time.monotonic() > deadline:
            suspect = f"slurmd-{waiting[0]}" if states else "slurmctld"
            shown = states.get(waiting[0], "unknown: slurmctld does not answer")
            raise SlurmError(
                f"cluster {cluster.name}: node {waiting[0]} did not become idle in time, but is {shown}\n"
                + daemons.tail(cluster.layout, suspect)
            )
        time.sleep(_POLL_S)


def _check_pyxis(cluster: EmbeddedCluster) -> None:
    """Check now that Slurm loads the plugin: one built for another Slurm makes every srun fail."""
    shown = shell.run(["srun", "--help"], env=_client_env(cluster), check=False)
    if "--container-image" not in shown.stdout:
        raise SlurmError(
            f"{cluster.pyxis}: this Slurm does not load it\n{shown.stderr}".rstrip(),
            hint="build Pyxis against this very Slurm, or leave it out: --pyxis none",
        )


def _node_states(cluster: EmbeddedCluster) -> dict[str, str]:
    """Slurm's word for each node's state, such as `idle`; empty if slurmctld does not answer."""
    argv = ["sinfo", "--noheader", "--Node", "--format=%N %T"]
    try:
        shown = shell.run(argv, env=_client_env(cluster), timeout=_QUERY_S)
    except ToolError:
        return {}
    return dict(line.split(maxsplit=1) for line in shown.stdout.splitlines() if line.strip())


def _client_env(cluster: EmbeddedCluster) -> Mapping[str, str]:
    # The mark lets `down` also end the query of a killed `up`.
    return {**os.environ, **cluster.env(), daemons.MARK: str(cluster.folder)}
