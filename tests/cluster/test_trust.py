"""Isolation by a container, and submits that run side by side or are killed half-way, on a real cluster."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kit import shell
from kit.runtimes.base import Container
from kit.runtimes.bubblewrap import runtime as bubblewrap
from kit.schema.mount import Mount
from kit.schema.resources_slurm_container import ContainerOptions
from tests import laid_out
from tests.cluster.lab import TIMEOUT_S, Lab
from tests.support import REPO

pytestmark = [pytest.mark.cluster, pytest.mark.root]

# What a process finds in its reach. A canary lies on the host where no mount shows it.
PROBE = """
import json, os, pathlib, socket, stat, sys
canary, out = sys.argv[1:]
def can_open(path):
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True
lines = [path.read_bytes() for path in pathlib.Path("/proc").glob("[0-9]*/cmdline") if can_open(path)]
def administers():
    # What a capability inside a user namespace of the container's own does not allow.
    try:
        socket.sethostname(socket.gethostname())
    except OSError:
        return False
    return True
blocks = [path for path in pathlib.Path("/dev").iterdir() if path.exists() and stat.S_ISBLK(path.stat().st_mode)]
status = dict(line.split(":\\t", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines() if ":\\t" in line)
whole = pathlib.Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]
roots = ["", *(f"/proc/{pid}/root" for pid in os.listdir("/proc") if pid.isdigit())]
def can_change(folder):
    # What the node runs itself: the next start would run it outside of the container.
    file = pathlib.Path(folder, "of-a-rank")
    try:
        file.touch()
        file.unlink()
    except OSError:
        try:
            os.rename(folder, f"{folder}.old")
            os.rename(f"{folder}.old", folder)
        except OSError:
            return False
    return True
run = os.environ.get("KIT_RUN_DIR")
found = {
    "own scripts": any([can_change(f"{run}/{name}") for name in ("bin", "lib")]) if run else None,
    "host files": any(can_open(root + canary) for root in roots),
    "other processes": any(b"slurmstepd" in line for line in lines),
    "disks": any(can_open(path) for path in blocks),
    "network": sorted(os.listdir("/sys/class/net")) != ["lo"],
    "capabilities": administers() or (whole and int(status["CapEff"], 16) != 0),
}
pathlib.Path(out).write_text(json.dumps(found))
"""
# A cell of the table in docs/concepts/trust.md, and what the probe finds where it holds; None where the node's permissions decide.
MEANS: dict[str, bool | None] = {
    "what is mounted": False,
    "all that you can": True,
    "its own": False,
    "yours on the node": None,
    "all on the node": True,
    "none": False,
    "none on the host": False,
    "by your permissions": None,
    "all": True,
    "the node's": True,
    "yours": None,
    "read-only": False,
    "yours to change": True,
}
ROWS = {
    "scripts of the run": "own scripts",
    "files": "host files",
    "processes": "other processes",
    "disks": "disks",
    "network": "network",
    "capabilities": "capabilities",
}


def table() -> dict[str, dict[str, str]]:
    """The table of docs/concepts/trust.md: column -> row -> cell."""
    text = (
        (REPO / "docs/concepts/trust.md")
        .read_text()
        .partition("## What a process in a container can reach")[2]
        .partition("\n## ")[0]
    )
    head, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"(?m)^\|.*\|$", text)
    ]
    return {column: {row[0]: row[place] for row in rows} for place, column in enumerate(head) if place}


def check_against(found: dict[str, bool], column: str) -> None:
    claims = table()[column]
    assert set(claims) == set(ROWS)
    for row, cell in claims.items():
        expected = MEANS[cell]
        assert expected is None or found[ROWS[row]] in {expected, None}, (
            f"{column}, {row}: {cell!r}, and the probe finds {found}"
        )


def test_the_table_is_true_of_a_rank_of_root(
    lab: Lab, runtime: str, runtime_of: Callable[[str], list[str]], tmp_path: Path
) -> None:
    canary = tmp_path / "canary"
    canary.write_text("of the host")
    lab.write(
        f'script = "program.py"\nshape = "srun"\npython = "/usr/bin/python3"\nargs = ["{canary}", "found.json"]\n'
        "[resources]\nnodes = 1\ngpus_per_node = 0\n",
        f"import os\nos.chdir(os.environ['KIT_RUN_DIR'])\n{PROBE}",
    )
    run = lab.run(*runtime_of(runtime))
    assert run.done.returncode == 0, run.log("batch") + run.log("rank-0")
    check_against(
        run.result("found.json"),
        {"bubblewrap": "bubblewrap, root", "bare": "no container"}.get(runtime, "Pyxis, Enroot, root"),
    )


def test_the_table_is_true_of_an_ordinary_user_in_bubblewrap(train_cpu: Path, tmp_path: Path) -> None:
    from kit.images import check_against_lock, image_lock

    if shell.which("bwrap") is None or shell.which("squashfuse") is None:
        pytest.skip("bubblewrap or squashfuse is not installed: make setup")
    place = Path(shell.run(["mktemp", "-d", "/tmp/kit-probe-XXXXXX"]).stdout.strip())
    try:
        image = check_against_lock.check(
            image_lock.read_lock(REPO / "containers/train-cpu/image.lock"), train_cpu, full=False
        )
        for name in ("work", "bin", "lib"):
            (place / name).mkdir()
        shell.run(["cp", "-r", str(laid_out.BIN), str(laid_out.LIB), str(place)])
        shell.run(["cp", str(image), str(place / "image.sqsh")])
        (place / "canary").write_text("of the host")
        (place / "work" / "probe.py").write_text(PROBE)
        container = Container(
            image=str(place / "image.sqsh"),
            mounts=(
                Mount(source=str(place / "bin"), target="/kit/run/bin", flags=("ro",)),
                Mount(source=str(place / "work"), target="/kit/work"),
            ),
            workdir="/kit/work",
            options=ContainerOptions(),
            bin=place / "bin",
            home="/",
        )
        program = ["/usr/bin/python3", "probe.py", str(place / "canary"), "found.json"]
        shell.run(["chown", "-R", "65534:65534", str(place)])
        shell.run(["chmod", "755", str(place)])
        # Machines differ in who may open /dev/fuse: here is one that everybody may.
        fuse = f"mknod -m 666 {place}/fuse c 10 229 && mount --bind {place}/fuse /dev/fuse"
        become = 'exec setpriv --reuid=65534 --regid=65534 --clear-groups "$@"'
        argv = bubblewrap.wrap([], program, container)
        shell.run(["unshare", "--mount", "bash", "-c", f"{fuse} && {become}", "-", *argv], cwd=place, timeout=120)
        check_against(json.loads((place / "work" / "found.json").read_text()), "bubblewrap, user")
    finally:
        shell.run(["rm", "-rf", str(place)])


def test_submits_from_several_namespaces_at_once(lab: Lab) -> None:
    """Two login nodes, and two containers on one: pids say nothing to each other. No run is lost, no folder shared."""
    lab.write('script = "program.py"\n[slurm]\nextra = ["--hold"]\n', "print('never')\n")
    kit = [sys.executable, "-m", "kit", "submit", "--cluster", lab.cluster.name, "--no-container"]
    apart = ["unshare", "--pid", "--fork", "--mount-proc"]
    ways = [
        kit,
        [*apart, *kit],
        [*apart, *kit],
        [*apart, "--uts", "bash", "-c", 'hostname login-2 && exec "$@"', "-", *kit],
    ]
    # All at once; kit.shell waits for each.
    started = [
        subprocess.Popen(
            argv,
            cwd=lab.project,
            env={**os.environ, **lab.env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for argv in ways * 2
    ]
    ended = [one.communicate(timeout=TIMEOUT_S) for one in started]
    assert [one.returncode for one in started] == [0] * len(started), [stderr for _, stderr in ended]
    runs = [Path(stdout.splitlines()[0]) for stdout, _ in ended]
    assert len(set(runs)) == len(runs)
    numbers = [json.loads((run / "manifest.json").read_text())["job_id"] for run in runs]
    queued = dict(line.split(maxsplit=1) for line in lab.slurm("squeue", "--noheader", "--format=%i %o").splitlines())
    assert {queued[str(number)] for number in numbers} == {str(run / "batch.sh") for run in runs}, (
        "each job has its own run's script"
    )
    assert not [*runs[0].parent.glob(".partial-*")]
    lab.kit("cancel", *(run.name for run in runs), check=False)
    lab.slurm("scancel", *map(str, numbers), check=False)


def test_a_sweep_killed_behind_sbatch_is_found_again(lab: Lab, tmp_path: Path) -> None:
    """C10: Slurm has the array, and nobody had noted its number."""
    lab.write(
        'script = "program.py"\n[slurm]\nextra = ["--hold"]\n[sweep.grid]\nargs.--lr = [1, 2, 3, 4, 5]\n',
        "print('never')\n",
    )
    killer = tmp_path / "bin" / "sbatch"
    killer.parent.mkdir()
    # The caller of the real submission is killed before it hears the number.
    killer.write_text(
        f'#!/bin/bash\n"{shell.which("sbatch")}" "$@" || exit\n'
        '[[ " $* " != *" --parsable "* || " $* " == *" --test-only "* ]] || kill -KILL "$PPID"\n'
    )
    killer.chmod(0o755)
    before = set((lab.project / "runs").iterdir()) if (lab.project / "runs").is_dir() else set()
    env = {"PATH": f"{killer.parent}:{os.environ['PATH']}"}
    done = lab.kit("sweep", "--cluster", lab.cluster.name, "--no-container", check=False, env=env)
    assert done.returncode == -9
    (sweep,) = (path for path in set((lab.project / "runs").iterdir()) - before if (path / "sweep.json").exists())
    assert [array["job_id"] for array in json.loads((sweep / "sweep.json").read_text())["arrays"]] == [0], (
        "not known yet"
    )
    (number,) = {
        line.partition("_")[0] for line in lab.slurm("squeue", "-h", "-o", "%i %o").splitlines() if sweep.name in line
    }
    rows = {row["run"]: row for row in json.loads(lab.kit("runs", "--json").stdout)}
    assert {str(rows[f"{sweep.name}.{place}"]["job_id"]).partition("_")[0] for place in range(5)} == {number}
    lab.kit("cancel", sweep.name)
    lab.wait(lambda: number not in lab.slurm("squeue", "-h", "-o", "%F").split(), sweep / "points" / f"{sweep.name}.0")
