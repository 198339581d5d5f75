"""`kit cluster` against a real Slurm: what it offers, and that nothing of it is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from kit import shell
from kit.errors import SlurmError
from kit.slurm import parallel_group_fit
from kit.slurm.embedded import ClusterSize, EmbeddedCluster, down, find, node_links, status, up
from kit.slurm.embedded.free_addresses import choose_ports
from kit.slurm.embedded.paths import EmbeddedPaths

pytestmark = pytest.mark.cluster

SMALL = ClusterSize(nodes=2, gpus_per_node=1, placeholder_gpus=True)
AS_ROOT = os.geteuid() == 0
# `kit cluster`, with any Python.
CLI = "import sys; from kit.cli import main; sys.argv.insert(1, 'cluster'); main()"


def slurm(cluster: EmbeddedCluster, *argv: str) -> str:
    return shell.run(argv, env={**os.environ, **cluster.env()}, timeout=30).stdout


def wait_until(condition: Callable[[], bool], seconds: float = 15) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.05)


def processes_of(folder: Path) -> list[str]:
    """Every living process that has the cluster's folder in its environment or its arguments, but for this one and its kin."""
    spared = {os.getpid(), os.getppid()}
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and int(path.name) not in spared:
            try:
                text = (path / "environ").read_bytes() + (path / "cmdline").read_bytes()
            except OSError:
                continue
            if os.fsencode(folder) in text:
                found.append(f"{path.name} {(path / 'cmdline').read_bytes()!r}")
    return found


def remains(folder: Path) -> list[str]:
    """All that is left of the cluster that lived in `folder`."""
    mounts = [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(folder) in line]
    interface = EmbeddedPaths(folder).interface
    interfaces = [interface] if (Path("/sys/class/net") / interface).exists() else []
    return [*processes_of(folder), *mounts, *interfaces, *([str(folder)] if folder.exists() else [])]


def networks_of(pids: Iterable[int]) -> set[str]:
    """The network namespaces that processes are in, but for this one's."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            found.add(str(Path(f"/proc/{pid}/ns/net").readlink()))
    return found - {str(Path("/proc/self/ns/net").readlink())}


def all_pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


@pytest.fixture
def isolated(cluster: EmbeddedCluster) -> EmbeddedCluster:
    """The session's cluster, where its nodes have namespaces of their own."""
    if not cluster.isolated:
        pytest.skip("the nodes are not isolated here: needs root, and leave to make namespaces")
    return cluster


# What it offers


def test_all_nodes_are_idle(cluster: EmbeddedCluster) -> None:
    rows = [line.split() for line in slurm(cluster, "sinfo", "-hN", "-o", "%N %P").splitlines()]
    assert rows == [[node.name, "main*"] for node in cluster.nodes]
    found = status(cluster.name, folder=cluster.folder)
    assert found.state == "up"
    assert [shown.state for shown in found.nodes] == ["idle", "idle"]


def test_the_record_alone_finds_it(cluster: EmbeddedCluster) -> None:
    assert find(cluster.name, folder=cluster.folder) == cluster
    assert find("nobody", folder=cluster.folder.parent / "nobody") is None


def test_each_node_has_a_name_of_its_own(cluster: EmbeddedCluster) -> None:
    expected = {node.name for node in cluster.nodes}
    assert set(slurm(cluster, "srun", "-N2", "printenv", "SLURMD_NODENAME").split()) == expected
    if cluster.isolated:
        assert set(slurm(cluster, "srun", "-N2", "hostname").split()) == expected


def test_gpus_are_counted_and_handed_out(cluster: EmbeddedCluster) -> None:
    assert slurm(cluster, "sinfo", "-ho", "%G") == "gpu:4"
    shown = slurm(cluster, "srun", "-N2", "--gpus-per-node=2", "printenv", "CUDA_VISIBLE_DEVICES")
    assert shown.split() == ["0,1", "0,1"]
    refused = shell.run(
        ["srun", "--gpus-per-node=5", "true"], check=False, env={**os.environ, **cluster.env()}, timeout=30
    )
    assert refused.returncode != 0
    assert "Requested node configuration is not available" in refused.stderr


def test_jobs_run_beside_each_other(cluster: EmbeddedCluster) -> None:
    jobs = [slurm(cluster, "sbatch", "--parsable", "-N2", "-o", "/dev/null", "--wrap=sleep 60") for _ in range(3)]
    running = ["squeue", "-ht", "R", "-o", "%A"]
    wait_until(lambda: len(slurm(cluster, *running).split()) == 3)
    assert set(slurm(cluster, *running).split()) == set(jobs)
    slurm(cluster, "scancel", *jobs)
    wait_until(lambda: not slurm(cluster, "squeue", "-h"))
    assert all("JobState=CANCELLED" in slurm(cluster, "scontrol", "show", "job", job) for job in jobs)


def test_every_node_resolves_every_name_both_ways(isolated: EmbeddedCluster) -> None:
    for node in isolated.nodes:
        shown = slurm(isolated, "srun", "-N2", "getent", "hosts", node.name, node.address).splitlines()
        assert {tuple(line.split()) for line in shown} == {(node.address, node.name)}
        assert len(shown) == 4
        # c10d asks for the IPv6 form of an IPv4 address, and warns in every rank's log where it has no name.
        look = f"import socket; print(*socket.getnameinfo(('::ffff:{node.address}', 1), socket.NI_NAMEREQD))"
        assert slurm(isolated, "srun", "-N2", sys.executable, "-c", look).split()[::2] == [f"{node.name}.mapped"] * 2
        found = f"import socket; print(*{{one[4][0] for one in socket.getaddrinfo('{node.name}', 1)}})"
        assert slurm(isolated, "srun", "-N2", sys.executable, "-c", found).split() == [node.address] * 2


def test_links_count_what_leaves_a_node_and_can_be_slowed(isolated: EmbeddedCluster) -> None:
    first, second = isolated.nodes[:2]
    before = node_links.sent(isolated)
    code = (
        "import socket; s = socket.socket(type=socket.SOCK_DGRAM)\n"
        f"for _ in range(200): s.sendto(bytes(1000), {(second.address, 9)})"
    )
    shell.run([*isolated.node_exec_argv(first.name), sys.executable, "-c", code])
    assert node_links.sent(isolated) - before >= 200 * 1000
    queue = [*isolated.node_exec_argv(first.name), "tc", "qdisc", "show", "dev", "eth0"]
    node_links.limit(isolated, "100mbit")
    node_links.limit(isolated, "10mbit")
    try:
        assert "rate 10Mbit" in shell.run(queue).stdout
    finally:
        node_links.limit(isolated, None)
    assert "tbf" not in shell.run(queue).stdout


def test_nodes_have_ports_shared_memory_and_processes_of_their_own(isolated: EmbeddedCluster, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    script = tmp_path / "claim.sh"
    script.write_text(
        "#!/bin/bash\n"
        "set -eu\n"
        "mkdir /dev/shm/claimed\n"  # fails where another node has made it
        "ls /proc | grep -c '^[0-9]*$'\n"
        f"{sys.executable} -c \"import socket, time; socket.create_server(('0.0.0.0', 29500)); time.sleep(1)\"\n"
    )
    counts = slurm(isolated, "srun", "-N2", "bash", str(script)).split()
    assert len(counts) == 2
    assert all(int(count) < 20 for count in counts)
    slurm(isolated, "srun", "-N2", "rmdir", "/dev/shm/claimed")


def test_a_network_can_be_cut_and_mended(isolated: EmbeddedCluster) -> None:
    first, second = isolated.nodes
    enter = isolated.node_exec_argv(second.name)

    def reaches() -> bool:
        # /dev/tcp is bash's own: slurmd of the other node answers.
        probe = f"exec 3<>/dev/tcp/{second.address}/{second.port}"
        argv = [*isolated.node_exec_argv(first.name), "timeout", "2", "bash", "-c", probe]
        return shell.run(argv, check=False).returncode == 0

    assert reaches()
    shell.run([*enter, "ip", "link", "set", "eth0", "down"])
    try:
        assert not reaches()
    finally:
        shell.run([*enter, "ip", "link", "set", "eth0", "up"])
    wait_until(reaches)


@pytest.mark.pyxis
def test_pyxis_runs_a_container_on_every_node(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    if not cluster.has_pyxis:
        pytest.skip("the cluster has no Pyxis: it needs the plugin, Enroot and isolated nodes")
    tmp_path.chmod(0o755)
    image = _tiny_image(tmp_path)
    named = ["srun", "-N2", f"--container-name=kit-{os.getpid()}"]
    first = slurm(cluster, *named, f"--container-image={image}", "cat", "/mark", "/etc/hostname")
    assert first.split().count("inside") == 2
    # A container's state is its node's: both made one of the same name, and both still have it.
    assert slurm(cluster, *named, "cat", "/mark").split() == ["inside", "inside"]
    container = f"pyxis_kit-{os.getpid()}"
    assert slurm(cluster, "srun", "-N2", "enroot", "list").split() == [container] * 2
    # The cluster is the session's: later tests look for what their runs leave behind.
    slurm(cluster, "srun", "-N2", "enroot", "remove", "--force", container)
    assert slurm(cluster, "srun", "-N2", "enroot", "list").split() == []


def _tiny_image(folder: Path) -> Path:
    """A squashfs of this machine's own sh and cat with their libraries."""
    root = folder / "root"
    for place in ("bin", "etc", "proc", "sys", "dev", "tmp", "run"):
        (root / place).mkdir(parents=True)
    for program in ("/bin/sh", "/bin/cat"):
        shutil.copy(program, root / "bin")
        for word in shell.run(["ldd", program]).stdout.split():
            if word.startswith("/"):
                target = root / word.lstrip("/")
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(word, target)
    (root / "mark").write_text("inside\n")
    shell.run(["mksquashfs", str(root), str(folder / "tiny.sqsh"), "-noappend", "-all-root", "-quiet"])
    return folder / "tiny.sqsh"


# up


def test_two_starts_at_once_make_one_cluster(own_folder: Path, tmp_path: Path) -> None:
    argv = [sys.executable, "-c", CLI, "up", "--name=own", f"--dir={own_folder}", "--placeholder-gpus"]
    logs = [tmp_path / "first.log", tmp_path / "second.log"]
    for log in logs:
        shell.daemon(argv, log=log)
    wait_until(lambda: all("export SLURM_CONF=" in log.read_text() for log in logs), 30)
    assert sorted("already up" in log.read_text() for log in logs) == [False, True]


def test_a_second_cluster_lives_beside_the_first(cluster: EmbeddedCluster, own_folder: Path) -> None:
    own = up("own", SMALL, folder=own_folder)
    assert set(slurm(own, "sinfo", "-hNo", "%N").split()) == {"own-1", "own-2"}
    assert own.controller_port != cluster.controller_port
    if cluster.isolated:
        assert own.subnet != cluster.subnet
        assert own.layout.interface != cluster.layout.interface
    networks = networks_of(int(line.split()[0]) for line in processes_of(own_folder))
    assert len(networks) == (3 if own.isolated else 0)  # two nodes and the switch between them
    assert len(slurm(cluster, "srun", "-N2", "hostname").split()) == 2
    assert down("own", folder=own_folder)
    assert remains(own_folder) == []
    assert not networks & networks_of(all_pids())
    assert len(slurm(cluster, "srun", "-N2", "hostname").split()) == 2


def test_what_a_site_sets_is_set(own_folder: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    prolog = tmp_path / "prolog"
    prolog.write_text(f'#!/bin/bash\ntouch "{tmp_path}/prolog-of-${{SLURMD_NODENAME}}"\n')
    prolog.chmod(0o755)
    script = tmp_path / "accept.lua"
    script.write_text(
        'function slurm_job_submit(job) job.comment = "seen" return slurm.SUCCESS end\n'
        "function slurm_job_modify() return slurm.SUCCESS end\n"
    )
    conf = {"Prolog": str(prolog), "PrologFlags": "Alloc", "KillWait": "12", "job_submit.lua": str(script)}
    conf["PartitionName"] = "urgent Nodes=ALL PriorityTier=10"
    switches = tmp_path / "topology.conf"
    switches.write_text("SwitchName=one Nodes=own-1\nSwitchName=two Nodes=own-2\nSwitchName=top Switches=one,two\n")
    conf |= {"TopologyPlugin": "topology/tree", "topology.conf": str(switches)}
    own = up("own", SMALL.model_copy(update={"conf": conf}), folder=own_folder)
    job = slurm(own, "sbatch", "--parsable", "-N2", "-purgent", "-o", "/dev/null", "--wrap=sleep 60")
    wait_until(lambda: len(list(tmp_path.glob("prolog-of-*"))) == 2)
    assert "Comment=seen" in slurm(own, "scontrol", "show", "job", job)
    assert parallel_group_fit.ask(env={**os.environ, **own.env()}) == parallel_group_fit.Topology(
        kind="leaf switch", largest=1
    )
    assert "KillWait                = 12 sec" in slurm(own, "scontrol", "show", "config")
    assert down("own", folder=own_folder)
    assert remains(own_folder) == []


def test_up_again_changes_nothing_and_another_shape_is_refused(cluster: EmbeddedCluster) -> None:
    same = ClusterSize(nodes=2, gpus_per_node=4, placeholder_gpus=True)
    said: list[str] = []
    assert up(cluster.name, same, folder=cluster.folder, say=said.append) == cluster
    assert said == [f"cluster {cluster.name} is already up"]
    with pytest.raises(SlurmError, match=r"2 nodes .* asked for: 3 nodes") as caught:
        up(cluster.name, same.model_copy(update={"nodes": 3}), folder=cluster.folder)
    assert caught.value.hint.startswith(f"`kit cluster down --name {cluster.name}`")


def test_a_start_that_fails_says_why_and_leaves_nothing(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = choose_ports(1, seed=str(own_folder), in_use=lambda _: False)[0]
    # Another program takes the port between the probe and the start.
    monkeypatch.setattr("kit.slurm.embedded.free_addresses.port_in_use", lambda _: False)
    with socket.create_server(("0.0.0.0", port)), pytest.raises(SlurmError, match=r"slurmctld died") as caught:
        up("own", SMALL, folder=own_folder)
    assert "Address already in use" in caught.value.message
    assert remains(own_folder) == []


def test_a_folder_with_something_else_in_it_is_not_touched(own_folder: Path) -> None:
    own_folder.mkdir()
    (own_folder / "thesis.tex").write_text("mine")
    for action in (lambda: up("own", SMALL, folder=own_folder), lambda: down("own", folder=own_folder)):
        with pytest.raises(SlurmError, match="nothing was touched"):
            action()
    assert (own_folder / "thesis.tex").read_text() == "mine"
    shutil.rmtree(own_folder)


# down, and what a crash leaves


def test_down_ends_jobs_in_progress_and_leaves_nothing(own_folder: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    own = up("own", SMALL, folder=own_folder)
    stubborn = tmp_path / "job.sh"
    stubborn.write_text(
        "#!/bin/bash\n"
        "trap '' TERM\n"
        "setsid sleep 600 &\n"  # a daemon of the job's own
        f"touch {tmp_path}/runs\n"
        "sleep 600\n"
    )
    slurm(own, "sbatch", "-N2", "-o", "/dev/null", str(stubborn))
    shell.daemon(["srun", "sleep", "600"], log=tmp_path / "srun.log", env={**os.environ, **own.env()})
    wait_until((tmp_path / "runs").exists)
    wait_until(lambda: slurm(own, "squeue", "-ht", "R", "-o", "%A").split() == ["1", "2"])
    assert len(processes_of(own_folder)) > 8

    began = time.monotonic()
    assert down("own", folder=own_folder)
    assert time.monotonic() - began < 15
    assert remains(own_folder) == []
    assert not down("own", folder=own_folder)


def test_a_crash_is_seen_and_mended_by_the_next_up(own_folder: Path) -> None:
    own = up("own", SMALL, folder=own_folder)
    old = _kill_daemons(own_folder)
    assert old >= {"slurmctld", "slurmd"}
    broken = status("own", folder=own_folder)
    assert broken.state == "broken"
    assert set(broken.dead) >= {"slurmctld", "slurmd-own-1", "slurmd-own-2"}
    said: list[str] = []
    again = up("own", SMALL, folder=own_folder, say=said.append)
    assert "removed what an earlier cluster own had left" in said
    assert again.daemons["slurmctld"] != own.daemons["slurmctld"]
    assert len(slurm(again, "srun", "-N2", "hostname").split()) == 2


def _kill_daemons(folder: Path) -> set[str]:
    killed = set()
    for line in processes_of(folder):
        pid = int(line.split()[0])
        name = Path(f"/proc/{pid}/comm").read_text().strip()
        if name in ("slurmctld", "slurmd"):
            os.kill(pid, signal.SIGKILL)
            killed.add(name)
    wait_until(lambda: not any("slurmctld" in line or "slurmd" in line for line in processes_of(folder)))
    return killed


@pytest.mark.parametrize("after", ["munge/munge.socket", "cluster.json"])
def test_a_start_that_was_killed_is_removed(own_folder: Path, after: str, tmp_path: Path) -> None:
    argv = [sys.executable, "-c", CLI, "up", "--name=own", f"--dir={own_folder}", "--placeholder-gpus"]
    pid = shell.daemon(argv, log=tmp_path / "up.log")
    wait_until((own_folder / after).exists)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert remains(own_folder) != []
    assert down("own", folder=own_folder)
    # A query that the killed process had just started may end a moment after it.
    wait_until(lambda: remains(own_folder) == [])


def test_ctrl_c_takes_a_start_back(own_folder: Path, tmp_path: Path) -> None:
    up_argv = [sys.executable, "-c", CLI, "up", "--name=own", f"--dir={own_folder}", "--placeholder-gpus"]
    # Tests that run in the background of a script ignore SIGINT, and what they start would too.
    pid = shell.daemon(["env", "--default-signal=INT", *up_argv], log=tmp_path / "up.log")
    wait_until((own_folder / "munge" / "munge.socket").exists)
    os.kill(pid, signal.SIGINT)
    assert os.waitpid(pid, 0)[1] != 0
    assert remains(own_folder) == []


# An ordinary user


@pytest.fixture(scope="module")
def ordinary() -> Iterator[pwd.struct_passwd]:
    """A real ordinary user; created for the test if no user has this name."""
    if not AS_ROOT:
        pytest.skip("needs root, to become an ordinary user")
    name = "kituser"
    made = name not in {entry.pw_name for entry in pwd.getpwall()}
    if made:
        shell.run(["useradd", "--create-home", name])
    yield pwd.getpwnam(name)
    if made:
        shell.run(["userdel", "--remove", name], check=False)


def _as_user(user: pwd.struct_passwd) -> tuple[list[str], dict[str, str]]:
    """argv prefix and environment of a Python that the user may run and that finds the kit."""
    become = [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--init-groups"]
    search = os.pathsep.join([str(Path(__file__).parents[2]), *(path for path in sys.path if "site-packages" in path)])
    env = {
        "HOME": user.pw_dir,
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "PYTHONPATH": search,
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    for python in (sys.executable, "/usr/bin/python3"):
        argv = ["setpriv", *become, python]
        if shell.run([*argv, "-c", CLI, "--help"], check=False, env=env, cwd=Path("/")).returncode == 0:
            return argv, env
    pytest.skip(f"no Python that {user.pw_name} may run finds the kit in {search}")


def test_an_ordinary_user_has_the_same_commands(ordinary: pwd.struct_passwd, own_folder: Path) -> None:
    python, env = _as_user(ordinary)
    os.chown(own_folder.parent, ordinary.pw_uid, ordinary.pw_gid)

    def kit(*argv: str) -> str:
        return shell.run(
            [*python, "-c", CLI, *argv, "--name=own", f"--dir={own_folder}"], env=env, cwd=Path("/")
        ).stdout

    assert kit("up", "--placeholder-gpus") == f"export SLURM_CONF={own_folder}/slurm.conf"
    data = json.loads(kit("status", "--json"))
    assert [(node["name"], node["state"]) for node in data["nodes"]] == [("own-1", "idle"), ("own-2", "idle")]
    assert data["has_pyxis"] is False
    become = python[:-1]
    ran = _user_job(become, {**env, "SLURM_CONF": f"{own_folder}/slurm.conf"})
    assert ran == {"own-1 0,1", "own-2 0,1"}
    owners = {Path(f"/proc/{line.split()[0]}").stat().st_uid for line in processes_of(own_folder)}
    assert owners == {ordinary.pw_uid}
    kit("down")
    assert remains(own_folder) == []


def _user_job(become: list[str], env: Mapping[str, str]) -> set[str]:
    """Prints of a two-node job with two GPUs each; leaves another one in progress, with a daemon of its own."""
    here = Path("/")
    report = ["bash", "-c", 'echo "$SLURMD_NODENAME $CUDA_VISIBLE_DEVICES"']
    shown = shell.run([*become, "srun", "-N2", "--gpus-per-node=2", *report], env=env, cwd=here, timeout=30).stdout
    stay = "--wrap=setsid sleep 600 & sleep 600"
    shell.run([*become, "sbatch", "-N2", "-o", "/dev/null", stay], env=env, cwd=here, timeout=30)
    running = [*become, "squeue", "-ht", "R"]
    wait_until(lambda: bool(shell.run(running, env=env, cwd=here, timeout=30).stdout))
    return set(shown.splitlines())
