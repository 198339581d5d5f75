"""The preflight: each check fails on purpose, with its message and its node. Most need the script alone, and no cluster."""

from __future__ import annotations

import json
import os
import resource
import time
from pathlib import Path

import pytest

from kit import shell
from kit.shell import Completed
from tests import laid_out
from tests.cluster.image_lab import needs_root, small_disk
from tests.cluster.lab import Lab

SCRIPT = laid_out.BIN / "preflight.sh"
NODE = "node7"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder with what the script writes into."""
    (tmp_path / "run" / "state" / "preflight").mkdir(parents=True)
    return tmp_path / "run"


def check(run: Path, *options: str, limits: tuple[str, ...] = (), path: str = os.environ["PATH"]) -> Completed:
    """preflight.sh with `options`, on a node called NODE. limits: options of prlimit(1)."""
    words = [f"run={run}", f"cache={run.parent}/cache", *options]
    env = {"PATH": path, "SLURMD_NODENAME": NODE}
    return shell.run([*(["prlimit", *limits] if limits else []), str(SCRIPT), *words], env=env, check=False)


def refused(run: Path, *options: str, limits: tuple[str, ...] = (), path: str = os.environ["PATH"]) -> str:
    """What the script says of a node that fails; the same is in its report."""
    done = check(run, *options, limits=limits, path=path)
    assert done.returncode == 1, done
    assert not (run / "state/preflight" / f"{NODE}.preflight.ok").exists()
    assert (run / "state/preflight" / f"{NODE}.preflight.failed").read_text().strip() == done.stdout
    assert all(line.startswith(f"{NODE}: ") for line in done.stdout.splitlines())
    return done.stdout


def image(run: Path, text: bytes = b"image") -> Path:
    path = run.parent / "image.sqsh"
    path.write_bytes(text)
    return path


def test_a_good_node(run: Path) -> None:
    done = check(run, f"image={image(run)}", "size=5", f"source={run}", "interface=lo", "nofile=16")
    assert (done.returncode, done.stdout) == (0, "")
    assert (run / "state/preflight" / f"{NODE}.preflight.ok").exists()


def probe(run: Path) -> Path:
    """A container that needs the cache folder, as every runtime needs the sources of its mounts."""
    path = run.parent / "probe"
    path.write_text(
        f'#!/bin/bash\n[[ -d "{run.parent}/cache" ]] || exit 9\n: >"{run}/state/preflight/{NODE}.probe.ok"\nexit $1\n'
    )
    path.chmod(0o755)
    return path


def test_a18_the_container_starts_when_the_cache_folder_is_there(run: Path) -> None:
    """Where the preflight starts it: beside the other checks, but not before the folder is made."""
    assert check(run, "nofile=1", "--", str(probe(run)), "0").returncode == 0
    assert (run / f"state/preflight/{NODE}.probe.ok").exists()


def test_a_container_that_fails_fails_the_preflight(run: Path) -> None:
    assert check(run, "nofile=1", "--", str(probe(run)), "7").returncode == 7
    assert (run / f"state/preflight/{NODE}.preflight.ok").exists(), "the node itself is good"


def test_no_container_starts_from_other_bytes(run: Path) -> None:
    said = refused(run, f"image={image(run)}", "size=5", f"sha256={'0' * 64}", "--", str(probe(run)), "0")
    assert "has the digest" in said
    assert not (run / f"state/preflight/{NODE}.probe.ok").exists()


def test_what_was_compiled_for_an_image_that_is_not_used_goes(run: Path) -> None:
    """The node keeps it for a month."""
    digest = "6105d6cc76af400325e94d588ce511be5bfdbb73b437dc51eca43917d7a43e3d"
    kept, old, other = (run.parent / "cache/compiled" / name for name in (digest[:12], "old", "other"))
    for folder in (kept, old, other):
        folder.mkdir(parents=True)
        (folder / "kernel.so").touch()
    (run.parent / "cache").chmod(0o700)
    for folder in (kept, old):
        os.utime(folder, (0, 0))
    assert check(run, f"image={image(run)}", "size=5", f"sha256={digest}").returncode == 0
    assert sorted(path.name for path in (run.parent / "cache/compiled").iterdir()) == sorted([kept.name, "other"])
    assert (kept / "kernel.so").exists()


def test_image_missing(run: Path) -> None:
    assert "image /no/such.sqsh is not readable here; the image store must be" in refused(run, "image=/no/such.sqsh")


def test_image_truncated(run: Path) -> None:
    said = refused(run, f"image={image(run)}", "size=4096")
    assert f"image {run.parent}/image.sqsh has 5 bytes here, and its lock says 4096; build it again" in said


def test_image_of_other_bytes(run: Path) -> None:
    """The size is right; only the digest tells."""
    said = refused(run, f"image={image(run)}", "size=5", f"sha256={'0' * 64}")
    assert (
        "has the digest 6105d6cc76af400325e94d588ce511be5bfdbb73b437dc51eca43917d7a43e3d here, and its lock says 0000"
        in said
    )


def test_mount_source_missing(run: Path) -> None:
    assert "mount source /no/such folder does not exist here" in refused(run, "source=/no/such folder")


@needs_root
def test_no_space_for_caches(run: Path) -> None:
    with small_disk(run.parent / "small", "size=1M") as disk:
        said = refused(run, f"cache={disk}", "free_kb=5000")
    assert f"{disk} has 1024 KB free, 5000 are wanted (preflight.free_disk_gb)" in said


def test_cache_cannot_be_made(run: Path) -> None:
    assert "cache folder: /proc/none cannot be made; set paths.cache" in refused(run, "cache=/proc/none")


def test_run_folder_missing(run: Path) -> None:
    done = check(run, "run=/no/such")
    assert "run folder /no/such is not writable here; set paths.runs" in done.stdout
    assert done.returncode == 1


def test_shared_memory_too_small(run: Path) -> None:
    assert "are wanted (preflight.shm_gb)" in refused(run, f"shm_kb={10**12}")


def test_too_few_open_files(run: Path) -> None:
    said = refused(run, "nofile=1024", limits=("--nofile=64:64",))
    assert "ulimit -n is at most 64, 1024 are wanted (preflight.nofile, or the connections of a rank)" in said


def test_memory_cannot_be_pinned(run: Path) -> None:
    said = refused(run, "memlock=unlimited", limits=("--memlock=65536:65536",))
    assert "ulimit -l is 64; RDMA cannot pin memory (set LimitMEMLOCK=infinity for slurmd)" in said
    unlimited = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1] == resource.RLIM_INFINITY
    if unlimited:
        assert check(run, "memlock=unlimited", limits=("--memlock=unlimited",)).returncode == 0


@pytest.mark.parametrize("name", ["ib9", "=l", "=lo0,ib9"])
def test_interface_missing(run: Path, name: str) -> None:
    said = refused(run, f"interface={name}")
    assert f"no network interface {name} here; there are: " in said
    assert "lo" in said


@pytest.mark.parametrize("name", ["lo", "l", "=lo", "^docker0", "ib9,lo"])
def test_interface_there(run: Path, name: str) -> None:
    assert check(run, f"interface={name}").returncode == 0


@pytest.mark.parametrize("offset", [-60, 60])
def test_a3_clock_differs(run: Path, offset: int) -> None:
    """From that of the file system's server; when the node was told to look does not matter, a prolog may take long."""
    programs = run.parent / "programs"
    programs.mkdir()
    (programs / "stat").write_text(
        f'#!/bin/bash\n[[ "$*" == *%.6Y* ]] || exec /usr/bin/stat "$@"\n'
        f'set -- $(/usr/bin/stat "$@")\necho $((${{1%.*}} + {offset})).000000\n'
    )
    (programs / "stat").chmod(0o755)
    said = refused(run, "skew=5", path=f"{programs}:{os.environ['PATH']}")
    assert "s from that of the run folder's file system; at most 5 are allowed" in said
    assert check(run, "skew=100", path=f"{programs}:{os.environ['PATH']}").returncode == 0


def test_a3_the_preflight_is_not_told_when_it_was_started(run: Path) -> None:
    """What lies between the first node's clock and a look at another's is the time that the step took to start."""
    assert check(run, f"now={int(time.time()) - 12}").returncode == 2


def test_all_faults_at_once(run: Path) -> None:
    said = refused(run, "image=/no/such.sqsh", "source=/none", "interface=ib9", f"shm_kb={10**12}")
    assert len(said.splitlines()) == 4


def test_unknown_option(run: Path) -> None:
    done = check(run, "colour=blue")
    assert done.returncode == 2
    assert "unknown option colour=blue" in done.stderr


# ---- on the cluster ----


@pytest.mark.cluster
def test_container_without_python(lab: Lab) -> None:
    lab.write('script = "program.py"\npython = "python9"\n', "print('no')\n")
    run = lab.run()
    assert lab.status(run.folder)["exit_code"] == 72
    for node in lab.cluster.nodes:
        assert f"{node.name}: the container starts, and has no python9 on its PATH" in run.log("batch")
    assert not list((run.folder / "logs").glob("rank-*")), "no rank was started"
    assert lab.settled(run.folder) == []


@pytest.mark.cluster
def test_container_that_does_not_start(lab: Lab) -> None:
    lab.write('script = "program.py"\nworkdir = "/no/such/folder"\n', "print('no')\n")
    run = lab.run()
    assert lab.status(run.folder)["exit_code"] == 72
    assert f"{lab.cluster.nodes[0].name}: probe: the step ended without a report" in run.log("batch")
    assert lab.settled(run.folder) == []


@pytest.mark.cluster
@pytest.mark.parametrize("shape", ["srun", pytest.param("torchrun", marks=pytest.mark.faults)])
def test_all_reduce(lab: Lab, shape: str) -> None:
    lab.write('script = "program.py"\n[preflight]\nall_reduce_s = 120\n', "print('trained')\n")
    run = lab.run("--set", f"shape={shape}")
    assert run.done.returncode == 0, run.log("batch") + run.log("rank-0")
    assert "all-reduce over 4 ranks: as it should be" in run.log("rank-0")
    assert "trained" in run.log("rank-3")


@pytest.mark.cluster
def test_all_reduce_takes_too_long(lab: Lab) -> None:
    """Nobody imports torch and meets in a second."""
    lab.write('script = "program.py"\nshape = "srun"\n[preflight]\nall_reduce_s = 1\n', "print('trained')\n")
    run = lab.run()
    assert lab.status(run.folder)["exit_code"] == 72
    assert "the all-reduce over 4 ranks did not end within 1 s" in run.log("batch")
    assert "trained" not in run.log("rank-0")
    assert lab.settled(run.folder) == []


def avoided(lab: Lab) -> list[dict[str, str]]:
    """The nodes that new jobs avoid.

    `kit nodes` also lists nodes that failed far more runs than others, without a time. Earlier tests on this cluster break a node.
    """
    known: list[dict[str, str]] = json.loads(lab.kit("nodes", "--cluster", lab.cluster.name, "--json").stdout)
    return [one for one in known if one["since"]]


@pytest.mark.cluster
def test_excluded_node(spare_lab: Lab) -> None:
    """One node lacks a mount source: the job continues without it; it is remembered, avoided, and forgotten on request."""
    lab = spare_lab
    bad = lab.cluster.nodes[0].name
    data = lab.project / "everywhere"
    data.mkdir()
    lab.inside(bad, "mount", "-t", "tmpfs", "tmpfs", str(lab.project / "everywhere"))
    (data / "here").mkdir()
    lab.write(
        f'script = "program.py"\nshape = "srun"\nmounts = [{{ source = "{data}/here", target = "/data" }}]\n'
        '[preflight]\non_failure = "exclude"\n',
        "print('trained')\n",
    )
    try:
        run = lab.submit()
        job = lab.wait_end(run)
        assert (job["JobState"], job["Restarts"]) == ("COMPLETED", "1"), (run / "logs/batch.log").read_text()
        assert bad not in lab.slurm("scontrol", "show", "hostnames", job["NodeList"]).split()
        assert f"without {bad}" in (run / "logs/batch.log").read_text()
        (known,) = avoided(lab)
        assert known["node"] == bad
        assert "mount source" in known["reason"]
        assert f"#SBATCH --exclude={bad}\n" in lab.kit("render", "--cluster", lab.cluster.name).stdout
        lab.kit("nodes", "--cluster", lab.cluster.name, "--forget", bad)
        assert avoided(lab) == []
    finally:
        lab.inside(bad, "umount", str(data))
        lab.kit("nodes", "--cluster", lab.cluster.name, "--forget", bad, check=False)
    assert lab.settled(run) == []


@pytest.mark.cluster
@pytest.mark.faults
def test_a4_two_bad_nodes_are_left_one_after_the_other(wide_lab: Lab) -> None:
    """Of three nodes that the user allows: the third start is on the good one, and what the user excluded stays excluded."""
    lab = wide_lab
    first, second, good, excluded = (node.name for node in lab.cluster.nodes)
    data = lab.project / "on-good-nodes"
    (data / "here").mkdir(parents=True)
    lab.write(
        f'script = "program.py"\nshape = "srun"\nmounts = [{{ source = "{data}/here", target = "/data" }}]\n'
        f'[resources]\nnodes = 1\ngpus_per_node = 1\n[slurm]\nexclude = "{excluded}"\n'
        '[preflight]\non_failure = "exclude"\n',
        "print('trained')\n",
    )
    for bad in (first, second):
        lab.inside(bad, "mount", "-t", "tmpfs", "tmpfs", str(data))
    try:
        run = lab.submit()
        job = lab.wait_end(run)
        kept_off = lab.slurm("scontrol", "show", "hostnames", job["ExcNodeList"]).split()
        assert (job["JobState"], job["Restarts"], job["NodeList"]) == ("COMPLETED", "2", good), (
            run / "logs/batch.log"
        ).read_text()
        assert set(kept_off) == {first, second, excluded}
    finally:
        for bad in (first, second):
            lab.inside(bad, "umount", str(data))
            lab.kit("nodes", "--cluster", lab.cluster.name, "--forget", bad, check=False)
    assert lab.settled(run) == []
