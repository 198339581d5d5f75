"""Accounting of the embedded cluster: slurmdbd with its own MariaDB, an account, the user who starts it, and QOS with limits.

The database listens only on this machine, on its own port. It is in the cluster's folder and is removed with it.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from kit import shell
from kit.errors import SlurmError
from kit.slurm.embedded import daemons, process
from kit.slurm.embedded.cluster_record import Accounting, EmbeddedCluster, ProcessId
from kit.slurm.embedded.paths import EmbeddedPaths

ACCOUNT = "research"
# QOS in addition to Slurm's own `normal`, which has no limit. A job that exceeds a limit is refused (DenyOnLimit) or waits.
QOS: Mapping[str, tuple[str, ...]] = {
    "short": ("MaxWall=00:15:00", "MaxJobsPerUser=2", "Flags=DenyOnLimit"),
    "single": ("MaxTRESPerJob=node=1", "Flags=DenyOnLimit"),
}

_PROGRAMS = ("mariadbd", "mariadb-install-db", "mariadb", "slurmdbd", "sacctmgr")
_HINT = "apt-get install slurmdbd mariadb-server-core mariadb-client-core; or leave out --accounting"
_USER, _DATABASE = "slurm", "slurm_acct_db"
_START_S = 60.0
_POLL_S = 0.1
# sacctmgr waits for slurmdbd's answer for up to MessageTimeout.
_SACCTMGR_S = 60.0


def missing_programs() -> list[str]:
    """The programs that accounting needs and this machine lacks."""
    return [name for name in _PROGRAMS if shell.which(name) is None]


def require_programs() -> None:
    """ToolError that names every missing program and the packages that contain them."""
    if missing := missing_programs():
        shell.require(", ".join(missing), hint=_HINT)


def start(cluster: EmbeddedCluster, env: Mapping[str, str]) -> dict[str, ProcessId]:
    """Start the database and slurmdbd, and add the account, the user and the QOS.

    munged must run already; slurmctld starts later.
    """
    layout, ports = cluster.layout, cluster.accounting
    assert ports is not None
    password = secrets.token_hex(16)
    database = _start_database(layout, ports, password, env)
    conf = layout.folder / "slurmdbd.conf"
    # slurmdbd refuses a file that others may read.
    conf.touch(mode=0o600)
    conf.write_text(slurmdbd_conf(cluster, user=daemons.user(), password=password))
    slurmdbd = daemons.start(layout, "slurmdbd", [daemons.program("slurmdbd"), "-D"], env)
    log = layout.log("slurmdbd")
    _wait("slurmdbd", slurmdbd, layout, lambda: log.exists() and "slurmdbd version" in log.read_text(errors="replace"))
    _add_associations(cluster, env)
    return {"mariadbd": database, "slurmdbd": slurmdbd}


def slurmdbd_conf(cluster: EmbeddedCluster, *, user: str, password: str) -> str:
    """The text of slurmdbd.conf. user: the daemon's user. password: of the database."""
    layout, ports = cluster.layout, cluster.accounting
    assert ports is not None
    return f"""\
# Written by `kit cluster up --accounting`; `kit cluster down` removes it. Changes are lost.
DbdHost={cluster.controller_host}
DbdAddr={cluster.controller_address}
DbdPort={ports.port}
SlurmUser={user}
AuthType=auth/munge
AuthInfo=socket={layout.munge_socket}
LogFile={layout.log("slurmdbd")}
PidFile={layout.folder}/slurmdbd.pid
DebugLevel=info
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={ports.database_port}
StorageUser={_USER}
StoragePass={password}
StorageLoc={_DATABASE}
"""


def settings(cluster: EmbeddedCluster) -> str:
    """The lines of slurm.conf for accounting. jobacct_gather/linux reads /proc and makes no cgroup.

    AccountingStoragePass is munge's socket: Slurm's commands do not read AuthInfo when they ask slurmdbd.
    """
    if cluster.accounting is None:
        return "JobAcctGatherType=jobacct_gather/none\n"
    return f"""\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost={cluster.controller_address}
AccountingStoragePort={cluster.accounting.port}
AccountingStoragePass={cluster.layout.munge_socket}
AccountingStorageEnforce=associations,limits,qos
AccountingStorageTRES=gres/gpu
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
"""


def _start_database(layout: EmbeddedPaths, ports: Accounting, password: str, env: Mapping[str, str]) -> ProcessId:
    """A MariaDB with only slurmdbd's user and its empty database."""
    data = layout.folder / "database"
    data.mkdir(mode=0o700)
    as_root = ["--user=root"] if os.geteuid() == 0 else []
    # Ignore the configuration of a MariaDB server that this machine may also have.
    install = ["--no-defaults", f"--datadir={data}", "--skip-test-db", "--auth-root-authentication-method=normal"]
    shell.run([daemons.program("mariadb-install-db"), *install, *as_root], env=env, cwd=layout.folder)
    socket = data / "socket"
    argv = [daemons.program("mariadbd"), "--no-defaults", f"--datadir={data}", f"--socket={socket}", *as_root]
    argv += ["--bind-address=127.0.0.1", f"--port={ports.database_port}", f"--pid-file={data / 'pid'}"]
    argv += ["--innodb-buffer-pool-size=64M", "--innodb-lock-wait-timeout=900", "--skip-name-resolve", "--skip-log-bin"]
    started = daemons.start(layout, "mariadbd", argv, env)
    _wait("mariadbd", started, layout, socket.exists)
    # slurmdbd would create the database only after a failed first connection. From libmariadb 11.8.9 on, the same handle then
    # accepts no results.
    _sql(socket, f"CREATE DATABASE {_DATABASE}", env)
    _sql(socket, f"CREATE USER '{_USER}'@'127.0.0.1' IDENTIFIED BY '{password}'", env)
    _sql(socket, f"GRANT ALL ON {_DATABASE}.* TO '{_USER}'@'127.0.0.1'", env)
    return started


def _sql(socket: Path, statement: str, env: Mapping[str, str]) -> None:
    argv = [daemons.program("mariadb"), "--no-defaults", f"--socket={socket}", "--user=root"]
    shell.run(argv, input=statement, env=env)


def _add_associations(cluster: EmbeddedCluster, env: Mapping[str, str]) -> None:
    def add(*words: str) -> None:
        shell.run([daemons.program("sacctmgr"), "--immediate", *words], env=env, timeout=_SACCTMGR_S)

    add("add", "cluster", cluster.name)
    add("add", "account", ACCOUNT, f"Cluster={cluster.name}", "Description=kit", "Organization=kit")
    for name, limits in QOS.items():
        add("add", "qos", name, *limits)
    names = ",".join(["normal", *QOS])
    # root has an association from the start. A user may have several accounts; this one is the default.
    add("add", "user", daemons.user(), f"Account={ACCOUNT}", f"DefaultAccount={ACCOUNT}")
    add("modify", "account", ACCOUNT, "set", f"QOS={names}", "DefaultQOS=normal")


def _wait(name: str, started: ProcessId, layout: EmbeddedPaths, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _START_S
    while not condition():
        if not process.is_alive(started) or time.monotonic() > deadline:
            raise SlurmError(f"{name} did not start\n{daemons.tail(layout, name)}")
        time.sleep(_POLL_S)
