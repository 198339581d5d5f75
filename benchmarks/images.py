"""Compares ways from an image to a .sqsh: the kit and the tools that a user would choose instead, on one image, in one run.

    python -m benchmarks images [--image train-cpu] [--rounds 3] [--only engine|layers]

Needs the image in a local Docker Engine (`kit build-image train-cpu`). Every row is a whole process, timed from outside. Peak
memory is that of its largest process, as the kernel counts it. Disk is the most that its working folders held, measured ten times
a second. `layers` starts from an OCI layout of the same image, with gzip layers.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks._common import ROOT, Goal, report
from kit import data_folders, shell
from kit.images import check_against_lock, image_lock, store
from kit.images.sources import compressed_tars, engine, oci, tree_stream
from kit.images.squash import enroot_layout, squash
from kit.images.squash.squash import Options, Tree
from kit.schema.image import Squash

_ENROOT_DEFAULT = "-comp lzo -noD"
_ZSTD_1 = ["-comp", "zstd", "-Xcompression-level", "1", "-b", "128K"]
_MANY = 400_000
_EVERY_S = 0.1

# Runs `kit` in this process and prints its own peak memory, without its children mksquashfs and unsquashfs.
_OWN = """
import resource, sys
from pathlib import Path
from kit.cli import app
place = Path(sys.argv.pop(1))
try:
    app()
finally:
    place.write_text(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))
"""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One tool: wall and CPU in seconds (medians), size of the result, peak memory and disk in MB; None where not measured."""

    name: str
    wall: float
    cpu: float | None
    size: float | None
    memory: float | None
    disk: float | None = None


def main(arguments: Sequence[str]) -> int:
    """Print the tables. Returns 1 when a goal is missed."""
    parser = argparse.ArgumentParser(prog="benchmarks images", description=__doc__)
    parser.add_argument("--image", default="train-cpu")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["engine", "layers"])
    options = parser.parse_args(arguments)
    name = f"kit-image/{options.image}:latest"
    if engine.connect().inspect(name) is None:
        sys.exit(f"the engine does not hold {name}: kit build-image {options.image}")
    # On the disk of the store, because a /tmp in memory would flatter every tool.
    store.prepare_store(data_folders.image_store())
    with tempfile.TemporaryDirectory(dir=data_folders.image_store() / "tmp") as folder:
        work = Path(folder)
        rows: dict[str, Row] = {}
        goals: list[Goal] = []
        if options.only != "layers":
            rows |= _ways(name, work, options.rounds)
            goals += [*_ratios(rows), *_commands(options.image, options.rounds)]
        if options.only != "engine":
            made, found = _layers(name, work, options.rounds)
            rows |= made
            goals += found
    print("| way | wall s | CPU s | MB | peak MB | disk MB |\n|---|---|---|---|---|---|")
    for row in rows.values():
        cells = [f"{row.wall:.2f}", _cell(row.cpu, 2), _cell(row.size), _cell(row.memory), _cell(row.disk)]
        print(f"| {row.name} | {' | '.join(cells)} |")
    print()
    return report(goals)


def _cell(value: float | None, digits: int = 0) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _ways(image: str, work: Path, rounds: int) -> dict[str, Row]:
    with _container(image) as container:
        export = ["docker", "export", container]
        rows = {"export": _measure("docker export >/dev/null", [export], None, rounds)}
    rows["kit"] = _measure(
        "kit import-image dockerd://", [_kit_import(f"dockerd://{image}", work)], _imported(work), rounds
    )
    if os.geteuid() == 0:
        rows["plain"] = _squash_only(image, work, Squash(compressor="none"), rounds)
        rows["zstd"] = _squash_only(image, work, Squash(), rounds)
    rows["theirs"] = _enroot(image, work)
    return rows


def _layers(image: str, work: Path, rounds: int) -> tuple[dict[str, Row], list[Goal]]:
    """Compare the merge of layers with tools that unpack them, in turn, and import a layer of 400,000 files."""
    layout, tree_, target = work / "layout", work / "tree", work / "layers.sqsh"
    shell.run(["skopeo", "copy", "--quiet", f"docker-daemon:{image}", f"oci:{layout}:latest"])
    squashed = [
        "mksquashfs",
        str(tree_),
        str(target),
        "-all-root",
        "-no-progress",
        "-quiet",
        "-mem",
        "64M",
        "-noappend",
    ]
    umoci = [["umoci", "raw", "unpack", "--image", f"{layout}:latest", str(tree_)], [*squashed, *_ZSTD_1]]
    loaded = "kit-bench/layers:latest"
    enroot = [["skopeo", "copy", "--quiet", f"oci:{layout}:latest", f"docker-daemon:{loaded}"]]
    enroot += [["enroot", "import", "-o", str(target), f"dockerd://{loaded}"]]
    env = os.environ | {f"ENROOT_{name}_PATH": str(work / "temp") for name in ("TEMP", "CACHE", "DATA", "RUNTIME")}
    (work / "temp").mkdir(exist_ok=True)

    def result() -> Path:
        shutil.rmtree(tree_, ignore_errors=True)
        return target.rename(work / "result.sqsh")

    pairs: list[tuple[Row, Row]] = []
    for _ in range(rounds):
        kit = _measure(
            "kit import-image LAYOUT", [_kit_import(str(layout), work)], _imported(work), 1, disk=work / "store"
        )
        pairs.append((kit, _measure("umoci unpack + mksquashfs", umoci, result, 1, disk=tree_)))
    rows = {"merge": _median([kit for kit, _ in pairs]), "umoci": _median([other for _, other in pairs])}
    if shell.which("enroot"):
        rows["skopeo"] = _measure("skopeo copy + enroot import", enroot, result, 1, env=env, disk=work / "temp")
        shell.run(["docker", "rmi", loaded])
    many = _many(work)
    rows["many"] = many
    largest = _largest_layer(layout) / 1e6
    merge, own = rows["merge"], float((work / "own").read_text()) / 1024
    assert merge.disk and merge.size and many.memory
    return rows, [
        Goal(
            name="kit / umoci + mksquashfs, wall, median of pairs",
            value=statistics.median(kit.wall / other.wall for kit, other in pairs),
            bound=0.55,
        ),
        Goal(name="kit's temporary space / largest layer", value=(merge.disk - merge.size) / largest, bound=1.05),
        Goal(name="400,000 files: kit's own memory", value=own, unit="MB", bound=150),
        Goal(name="400,000 files: mksquashfs's memory", value=many.memory, unit="MB"),
    ]


def _median(rows: Sequence[Row]) -> Row:
    return sorted(rows, key=lambda row: row.wall)[len(rows) // 2]


def _largest_layer(layout: Path) -> int:
    """Bytes of the largest layer's tar; the layout has one image."""
    with tempfile.TemporaryDirectory(dir=layout) as work:
        layers = oci.read_image(layout, Path(work)).layers
        return max(sum(map(len, compressed_tars.chunks(layer, Path(work)))) for layer in layers)


def _many(work: Path) -> Row:
    """Import a tar of 400,000 small files. The process writes its own peak memory, in kB, to `own`."""
    tar = work / "many.tar"
    with tar.open("wb") as out:
        for number in range(_MANY):
            member = tarfile.TarInfo(
                f"opt/lib/package_{number // 1000:04}/module_{number // 10:05}/file_{number:06}.py"
            )
            member.size = 4
            out.write(b"".join(tree_stream.encoded(member, io.BytesIO(f"{number % 9999:04}".encode()))))
        out.write(bytes(1024))
    argv = _kit_import(str(tar), work)
    own = [*argv[:5], "-c", _OWN, str(work / "own"), *argv[7:]]
    try:
        return _measure("kit import-image, 400,000 files", [own], _imported(work), 1, disk=work / "store")
    finally:
        tar.unlink()


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
    locked = image_lock.read_lock(ROOT / "containers" / image / image_lock.FILE)
    start = time.perf_counter()
    check_against_lock.check(locked, data_folders.image_store(), full=False)
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
    (work / "project/containers").mkdir(parents=True, exist_ok=True)
    source = ["import-image", image, "--name", "bench", "--store", str(work / "store")]
    return ["env", "-C", str(work / "project"), f"PYTHONPATH={ROOT}", sys.executable, "-m", "kit", *source]


def _imported(work: Path) -> Callable[[], Path]:
    """A function that undoes the import, so that the next one is a first one. Before that it returns the .sqsh."""

    def forget() -> Path:
        (image,) = (work / "store/sha256").glob("*.sqsh")
        shutil.move(image, work / "kit.sqsh")
        shutil.rmtree(work / "store")
        shutil.rmtree(work / "project/containers/bench")
        return work / "kit.sqsh"

    return forget


def _squash_only(image: str, work: Path, options: Squash, rounds: int) -> Row:
    """Time mksquashfs over the overlay mount, without digest, lock and publishing."""
    found = engine.connect().inspect(image)
    assert found is not None
    edit = enroot_layout.edit(found.config, provenance="benchmark")
    walls, size = [], 0
    for number in range(rounds):
        folder = work / f"squash-{options.compressor}-{number}"
        folder.mkdir()
        start = time.perf_counter()
        squash.write_squashfs(Tree(layers=found.layers), edit, folder / "image.sqsh", Options(squash=options))
        walls.append(time.perf_counter() - start)
        size = (folder / "image.sqsh").stat().st_size
        shutil.rmtree(folder)
    name = f"squash alone, {options.compressor}"
    return Row(name=name, wall=statistics.median(walls), cpu=None, size=size / 1e6, memory=None)


def _enroot(image: str, work: Path) -> Row:
    """Enroot's own import if it is installed; else its steps by hand, with its default options."""
    (work / "temp").mkdir()
    target = work / "theirs.sqsh"
    if shell.which("enroot"):
        env = os.environ | {f"ENROOT_{name}_PATH": str(work / "temp") for name in ("TEMP", "CACHE", "DATA", "RUNTIME")}
        env["ENROOT_SQUASH_OPTIONS"] = _ENROOT_DEFAULT  # overrides this machine's enroot.conf
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
    disk: Path | None = None,
) -> Row:
    walls, cpus, memory, size = [], [], 0.0, None
    used = _Used(disk)
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
        used.end()
        if result is not None:
            size = result().stat().st_size / 1e6
    return Row(
        name=name, wall=statistics.median(walls), cpu=statistics.median(cpus), size=size, memory=memory, disk=used.most
    )


class _Used:
    """Measures repeatedly how much a folder holds. most: the largest value, in MB."""

    def __init__(self, folder: Path | None) -> None:
        self.most: float | None = None
        self._folder, self._ended = folder, threading.Event()
        self._looking = threading.Thread(target=self._look, daemon=True)
        self._looking.start()

    def end(self) -> None:
        """Stop measuring."""
        self._ended.set()
        self._looking.join()

    def _look(self) -> None:
        while self._folder is not None and not self._ended.wait(_EVERY_S):
            total = 0
            for place, _, names in os.walk(self._folder):
                for name in names:
                    with contextlib.suppress(OSError):
                        total += os.lstat(f"{place}/{name}").st_blocks * 512
            self.most = max(self.most or 0.0, total / 1e6)
