"""The embedded cluster's configuration text, and its choice of ports, subnet and devices."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest

from kit.errors import SlurmError, UsageError
from kit.slurm.embedded import conf, gpus, pyxis
from kit.slurm.embedded.cluster_record import EmbeddedCluster, ProcessId, VirtualNode
from kit.slurm.embedded.free_addresses import PORTS, choose_ports, choose_subnet
from kit.slurm.embedded.nodes import node_address
from kit.slurm.embedded.paths import EmbeddedPaths, checked_name, node_names
from kit.slurm.embedded.process import identify, is_alive

FOLDER = Path("/data/clusters/lab")


def cluster(*, isolated: bool, gpus_each: int = 2) -> EmbeddedCluster:
    devices = gpus.placeholders(FOLDER / "gpus", gpus_each)
    nodes = tuple(
        VirtualNode(
            name=name,
            address=f"10.9.8.{11 + index}" if isolated else "127.0.0.1",
            port=20001 if isolated else 20001 + index,
            gpus=devices,
            init=ProcessId(pid=70 + index, start=1) if isolated else None,
        )
        for index, name in enumerate(node_names("lab", 2))
    )
    return EmbeddedCluster(
        name="lab",
        folder=FOLDER,
        phase="up",
        boot_id="boot",
        cpus_per_node=8,
        gpus_per_node=gpus_each,
        memory_mb=16000,
        controller_host="desk",
        controller_address="10.9.8.1" if isolated else "127.0.0.1",
        controller_port=20000,
        subnet="10.9.8.0/24" if isolated else None,
        nodes=nodes,
        pyxis=None,
    )


def lines_with(text: str, start: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(start)]


def test_isolated_nodes_share_a_port_and_have_their_own_host_names() -> None:
    text = conf.slurm_conf(cluster(isolated=True), user="root")
    tail = "Sockets=1 CoresPerSocket=8 ThreadsPerCore=1 RealMemory=16000 Gres=gpu:2 State=UNKNOWN"
    assert lines_with(text, "NodeName=") == [
        f"NodeName=lab-1 NodeHostname=lab-1 NodeAddr=10.9.8.11 Port=20001 {tail}",
        f"NodeName=lab-2 NodeHostname=lab-2 NodeAddr=10.9.8.12 Port=20001 {tail}",
    ]
    assert lines_with(text, "SlurmctldHost=") == ["SlurmctldHost=desk(10.9.8.1)"]


def test_nodes_without_isolation_are_the_machine_on_ports_of_their_own() -> None:
    text = conf.slurm_conf(cluster(isolated=False), user="ada")
    places = [line.split(" Sockets")[0] for line in lines_with(text, "NodeName=")]
    assert places == [
        "NodeName=lab-1 NodeHostname=desk NodeAddr=127.0.0.1 Port=20001",
        "NodeName=lab-2 NodeHostname=desk NodeAddr=127.0.0.1 Port=20002",
    ]
    assert lines_with(text, "SlurmUser=") == ["SlurmUser=ada"]
    assert lines_with(text, "SlurmdUser=") == ["SlurmdUser=ada"]


def test_every_path_of_slurm_conf_is_in_the_clusters_folder() -> None:
    text = conf.slurm_conf(cluster(isolated=True), user="root")
    values = [line.partition("=")[2] for line in text.splitlines() if "=/" in line and not line.startswith("#")]
    assert len(values) >= 8
    assert all(value.removeprefix("socket=").startswith(f"{FOLDER}/") for value in values)


def test_memory_is_shared_out_by_cpu_so_that_several_jobs_fit() -> None:
    assert lines_with(conf.slurm_conf(cluster(isolated=True), user="root"), "DefMemPerCPU=") == ["DefMemPerCPU=2000"]


def test_gres_conf_names_one_file_per_device() -> None:
    assert conf.gres_conf(cluster(isolated=True)).splitlines() == [
        "AutoDetect=off",
        *(f"NodeName=lab-{node} Name=gpu File={FOLDER}/gpus/gpu{gpu}" for node in (1, 2) for gpu in (0, 1)),
    ]


def test_without_gpus_no_gres_is_claimed() -> None:
    bare = cluster(isolated=True, gpus_each=0)
    assert conf.gres_conf(bare) == "AutoDetect=off\n"
    assert "Gres=" not in conf.slurm_conf(bare, user="root")


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        ("slurm-wlm 22.05.8", "CgroupPlugin=cgroup/v1\n"),
        ("slurm-wlm 23.11.4", "CgroupPlugin=cgroup/v1\n"),
        ("slurm 24.05.0", "CgroupPlugin=disabled\n"),
        ("slurm 25.11.1", "CgroupPlugin=disabled\n"),
    ],
)
def test_cgroups_are_left_alone_in_every_version(shown: str, expected: str) -> None:
    assert conf.cgroup_conf(conf.parse_version(shown), cgroups=False) == expected
    assert conf.cgroup_conf(conf.parse_version(shown), cgroups=True) == "CgroupPlugin=cgroup/v2\nIgnoreSystemd=yes\n"


def test_a_version_that_cannot_be_read_is_an_error() -> None:
    with pytest.raises(SlurmError, match="no version"):
        conf.parse_version("command not found")


def test_hosts_name_every_address_once() -> None:
    rows = [line.split() for line in conf.hosts(cluster(isolated=True)).splitlines()]
    machines = [["10.9.8.1", "desk"], ["10.9.8.11", "lab-1"], ["10.9.8.12", "lab-2"]]
    mapped = [[f"::ffff:{address}", f"{name}.mapped"] for address, name in machines]
    assert rows == [["127.0.0.1", "localhost"], *machines, *mapped]


def test_ports_in_use_are_passed_over() -> None:
    first = choose_ports(3, seed="a", in_use=lambda _: False)
    second = choose_ports(3, seed="a", in_use=lambda port: port in first)
    assert len(set(first + second)) == 6
    assert all(port in PORTS for port in first + second)
    assert choose_ports(3, seed="b", in_use=lambda _: False) != first


def test_the_search_for_ports_wraps_and_ends() -> None:
    free = {PORTS.start, PORTS.stop - 1}
    assert set(choose_ports(2, seed="a", in_use=lambda port: port not in free)) == free
    with pytest.raises(SlurmError, match="fewer than 3 free ports"):
        choose_ports(3, seed="a", in_use=lambda port: port not in free)


def test_a_subnet_overlaps_no_route() -> None:
    first = choose_subnet(seed="a", taken=[])
    assert first.prefixlen == 24
    assert first.is_private
    second = choose_subnet(seed="a", taken=[IPv4Network(f"{first[7]}/32")])
    assert not second.overlaps(first)


def test_a_network_that_holds_a_whole_pool_moves_the_search_to_the_next() -> None:
    everything_in_10 = IPv4Network("10.0.0.0/8")
    assert not choose_subnet(seed="a", taken=[everything_in_10]).overlaps(everything_in_10)
    with pytest.raises(SlurmError, match="every private subnet"):
        choose_subnet(seed="a", taken=[IPv4Network("0.0.0.0/0")])


@pytest.mark.parametrize(("nodes", "prefix"), [(2, 24), (244, 24), (245, 23), (256, 23), (1000, 22)])
def test_a_subnet_has_an_address_for_every_node(nodes: int, prefix: int) -> None:
    subnet = choose_subnet(seed="a", taken=[], nodes=nodes)
    assert subnet.prefixlen == prefix
    assert IPv4Address(node_address(subnet, nodes - 1)) < subnet.broadcast_address


def test_real_gpus_are_dealt_out_in_turn() -> None:
    cards = [Path(f"/dev/nvidia{number}") for number in range(4)]
    assert gpus.deal(cards, nodes=2, per_node=None) == (tuple(cards[:2]), tuple(cards[2:]))
    assert gpus.deal(cards, nodes=2, per_node=1) == ((cards[0],), (cards[1],))


def test_too_few_real_gpus_are_shared_between_nodes_but_never_twice_in_one() -> None:
    cards = [Path("/dev/nvidia0"), Path("/dev/nvidia1"), Path("/dev/nvidia2")]
    shares = gpus.deal(cards, nodes=2, per_node=2)
    assert shares == ((cards[0], cards[1]), (cards[0], cards[2]))
    assert gpus.shared(shares)
    assert gpus.deal(cards[:1], nodes=2, per_node=None) == ((cards[0],), (cards[0],))
    with pytest.raises(UsageError, match="this machine has 3 GPU"):
        gpus.deal(cards, nodes=2, per_node=4)


def test_real_gpus_are_found_in_the_drivers_order(tmp_path: Path) -> None:
    for name in ("nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert [path.name for path in gpus.real_devices(tmp_path)] == ["nvidia2", "nvidia10"]


@pytest.mark.parametrize("name", ["Lab", "a b", "", "1st", "under_score", "x" * 41, "../up"])
def test_names_that_cannot_start_a_host_name_are_refused(name: str) -> None:
    with pytest.raises(UsageError):
        checked_name(name)


@pytest.mark.parametrize("folder", ["/tmp/with blank", "/tmp/per%cent", "/tmp/a,b", "/tmp/hash#", "/tmp/" + "x" * 90])
def test_folders_that_slurm_cannot_work_in_are_refused(folder: str) -> None:
    with pytest.raises(UsageError):
        EmbeddedPaths.check_folder(Path(folder), node="lab-1")


def test_interface_names_fit_and_differ() -> None:
    names = {EmbeddedPaths(Path(f"/tmp/{number}")).interface for number in range(50)}
    assert len(names) == 50
    assert all(len(name) <= 15 for name in names)


def test_a_record_that_cannot_be_read_is_no_cluster(tmp_path: Path) -> None:
    layout = EmbeddedPaths(tmp_path)
    assert EmbeddedCluster.load(layout) is None
    layout.record.write_text('{"name": "lab", "of": "another version"}')
    assert EmbeddedCluster.load(layout) is None
    saved = cluster(isolated=True).model_copy(update={"folder": tmp_path})
    saved.save()
    assert EmbeddedCluster.load(layout) == saved


def test_a_reused_pid_is_another_process() -> None:
    me = identify(1)
    assert me is not None
    assert is_alive(me)
    assert not is_alive(ProcessId(pid=me.pid, start=me.start + 1))


def test_only_isolated_nodes_can_be_entered() -> None:
    assert "--target=71" in cluster(isolated=True).node_exec_argv("lab-2")
    with pytest.raises(SlurmError, match="no namespaces"):
        cluster(isolated=False).node_exec_argv("lab-2")
    with pytest.raises(SlurmError, match="no node 'lab-9'"):
        cluster(isolated=True).node_exec_argv("lab-9")


def test_a_pyxis_that_does_not_exist_or_would_be_shared_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        pyxis.choose(str(tmp_path / "spank_pyxis.so"), isolated=True)
    assert pyxis.choose("none", isolated=True) is None
    assert pyxis.choose("auto", isolated=False) is None


def test_pyxis_keeps_its_state_in_the_node(tmp_path: Path) -> None:
    plugin = tmp_path / "spank_pyxis.so"
    plugin.write_bytes(b"an old one")
    found = pyxis.PyxisPlugin(plugin=plugin, enroot=Path("/usr/bin/enroot"))
    assert (
        pyxis.plugstack_conf(found, EmbeddedPaths(FOLDER))
        == f"required {plugin} runtime_path={FOLDER}/node/run/pyxis\n"
    )
    assert pyxis.plugstack_conf(None, EmbeddedPaths(FOLDER)).startswith("#")
