"""Image -> .sqsh: the kit beside what a user would pick instead, on one image, in one run.

    python -m benchmarks images [--image train-cpu] [--rounds 3]

Needs the image in a local Docker Engine (`kit build-image train-cpu`). Every row is a whole process, timed from outside; peak
memory is that of its largest process, which the kernel counts.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks._common import ROOT, Goal, report
from kit import data_folders, shell
from kit.images import engine, enroot_layout, lock, squash, store, verify
from kit.images.squash import Options, Tree
from kit.spec.image import Squash

_ENROOT_DEFAULT = "-comp lzo -noD"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One way: wall and CPU in seconds (medians), size of the result and peak memory in MB; None where not measured."""

    name: str
    wall: float
    cpu: float | None
    size: float | None
    memory: float | None


def main(arguments: Sequence[str]) -> int:
    """Print the tables; 1 when a goal is missed."""
    parser = argparse.ArgumentParser(prog="benchmarks images", description=__doc__)
    parser.add_argument("--image", default="train-cpu")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    name = f"kit-image/{options.image}:latest"
    if engine.connect().inspect(name) is None:
        sys.exit(f"the engine does not hold {name}: kit build-image {options.image}")
    # On the disk of the store: a /tmp in memory would flatter every way.
    store.prepare(data_folders.image_store())
    with tempfile.TemporaryDirectory(dir=data_folders.image_store() / "tmp") as folder:
        work = Path(folder)
        rows = _ways(name, work, options.rounds)
        goals = [*_ratios(rows), *_commands(options.image, options.rounds)]
    print("| way | wall s | CPU s | MB | peak MB |\n|---|---|---|---|---|")
    for row in rows.values():
        print(f"| {row.name} | {row.wall:.2f} | {_cell(row.cpu, 2)} | {_cell(row.size)} | {_cell(row.memory)} |")
    print()
    return report(goals)


def _cell(value: float | None, digits: int = 0) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _ways(image: str, work: Path, rounds: int) -> dict[str, Row]:
    with _container(image) as container:
        export = ["docker", "export", container]
        rows = {"export": _measure("docker export >/dev/null", [export], None, rounds)}
    rows["kit"] = _measure("kit import-image dockerd://", [_kit_import(image, work)], _imported(work), rounds)
    if os.geteuid() == 0:
        rows["plain"] = _squash_only(image, work, Squash(compressor="none"), rounds)
        rows["zstd"] = _squash_only(image, work, Squash(), rounds)
    rows["theirs"] = _enroot(image, work)
    return rows


def _ratios(rows: dict[str, Row]) -> list[Goal]:
    kit, theirs = rows["kit"], rows["theirs"]
    assert kit.size and theirs.size and kit.memory
    found = [
        Goal(name=f"{theirs.name} / kit, wall", value=theirs.wall / kit.wall, bound=14, at_least=True),
        Goal(name=f"{theirs.name} / kit, size", value=theirs.size / kit.size, bound=2.4, at_least=True),
        Goal(name="kit's peak memory", value=kit.memory, unit="MB", bound=150),
    ]
    if "plain" in rows:
        found.insert(
            1, Goal(name="kit / docker export >/dev/null, wall", value=kit.wall / rows["export"].wall, bound=1.0)
        )
        found.append(
            Goal(name="squash / uncompressed squash, wall", value=rows["zstd"].wall / rows["plain"].wall, bound=2.2)
        )
    return found


def _commands(image: str, rounds: int) -> list[Goal]:
    kit = [sys.executable, "-m", "kit"]
    rebuild = _measure("rebuild", [[*kit, "build-image", image]], None, rounds, cwd=ROOT)
    locked = lock.read(ROOT / "containers" / image / lock.FILE)
    start = time.perf_counter()
    verify.check(locked, data_folders.image_store(), full=False)
    cheap = (time.perf_counter() - start) * 1000
    return [
        Goal(name="rebuild without changes", value=rebuild.wall, unit="s", bound=0.5),
        Goal(name="cheap verify", value=cheap, unit="ms", bound=20),
    ]


@contextlib.contextmanager
def _container(image: str) -> Iterator[str]:
    """A container of the image, never started."""
    name = shell.run(["docker", "create", image, "true"]).stdout
    try:
        yield name
    finally:
        shell.run(["docker", "rm", name])


def _kit_import(image: str, work: Path) -> list[str]:
    (work / "project/containers").mkdir(parents=True)
    source = ["import-image", f"dockerd://{image}", "--name", "bench", "--store", str(work / "store")]
    return ["env", "-C", str(work / "project"), f"PYTHONPATH={ROOT}", sys.executable, "-m", "kit", *source]


def _imported(work: Path) -> Callable[[], Path]:
    """Forget the import, so that the next one is a first one; give its .sqsh before."""

    def forget() -> Path:
        (image,) = (work / "store/sha256").glob("*.sqsh")
        shutil.move(image, work / "kit.sqsh")
        shutil.rmtree(work / "store")
        shutil.rmtree(work / "project/containers/bench")
        return work / "kit.sqsh"

    return forget


def _squash_only(image: str, work: Path, options: Squash, rounds: int) -> Row:
    """mksquashfs over the overlay mount, without digest, lock and publishing."""
    found = engine.connect().inspect(image)
    assert found is not None
    edit = enroot_layout.edit(found.config, provenance="benchmark")
    walls, size = [], 0
    for number in range(rounds):
        folder = work / f"squash-{options.compressor}-{number}"
        folder.mkdir()
        start = time.perf_counter()
        squash.write(Tree(layers=found.layers), edit, folder / "image.sqsh", Options(squash=options))
        walls.append(time.perf_counter() - start)
        size = (folder / "image.sqsh").stat().st_size
        shutil.rmtree(folder)
    name = f"squash alone, {options.compressor}"
    return Row(name=name, wall=statistics.median(walls), cpu=None, size=size / 1e6, memory=None)


def _enroot(image: str, work: Path) -> Row:
    """Enroot's own import where it is installed; else its steps by hand, with its default options."""
    (work / "temp").mkdir()
    target = work / "theirs.sqsh"
    if shell.which("enroot"):
        env = os.environ | {f"ENROOT_{name}_PATH": str(work / "temp") for name in ("TEMP", "CACHE", "DATA", "RUNTIME")}
        env["ENROOT_SQUASH_OPTIONS"] = _ENROOT_DEFAULT  # whatever this machine's enroot.conf says
        steps = [["enroot", "import", "-o", str(target), f"dockerd://{image}"]]
        return _measure("enroot import dockerd://", steps, lambda: target, 1, env=env)
    tar, tree_ = work / "theirs.tar", work / "temp/tree"
    tree_.mkdir()
    with _container(image) as container:
        steps = [
            ["docker", "export", "-o", str(tar), container],
            ["tar", "-xpf", str(tar), "-C", str(tree_), "--exclude=dev/*"],
            ["mksquashfs", str(tree_), str(target), "-all-root", "-no-progress", *_ENROOT_DEFAULT.split()],
        ]
        return _measure("Enroot's steps by hand", steps, lambda: target, 1)


def _measure(
    name: str,
    steps: Sequence[Sequence[str]],
    result: Callable[[], Path] | None,
    rounds: int,
    *,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
) -> Row:
    walls, cpus, memory, size = [], [], 0.0, None
    for _ in range(rounds):
        wall = cpu = 0.0
        for step in steps:
            start = time.perf_counter()
            process = subprocess.Popen(list(step), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=env, cwd=cwd)
            said = process.stderr.read() if process.stderr else b""
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode != 0:
                sys.exit(f"{' '.join(step)}: failed: {said.decode(errors='replace')}")
            wall += time.perf_counter() - start
            cpu += usage.ru_utime + usage.ru_stime
            memory = max(memory, usage.ru_maxrss / 1024)
        walls.append(wall)
        cpus.append(cpu)
        if result is not None:
            size = result().stat().st_size / 1e6
    return Row(name=name, wall=statistics.median(walls), cpu=statistics.median(cpus), size=size, memory=memory)
