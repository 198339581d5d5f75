"""Imports torch in COUNT processes at once, from an image that this program mounts. `benchmarks start` runs it, as root.

    unshare --mount --propagation private python -m benchmarks._mounted_import IMAGE FOLDER WAY COUNT STATE [LEARN]

FOLDER: empty, for the mount. WAY: one of WAYS. STATE: `warm` imports once before, from the same mount; `again` mounts anew while
the file is in memory, as a next job does; `cold` first drops the file from memory; `ahead` also reads the hot pages ahead. LEARN:
a list of hot pages to write after the import. Prints one line: seconds, CPU seconds of ranks and FUSE daemon.
"""

from __future__ import annotations

import importlib
import os
import resource
import sys
import time
from pathlib import Path

from benchmarks._common import ROOT
from kit import shell

LIBRARY = ROOT / "templates/parts/image_mount/lib"
# What the kit does is measured by its own functions, so a change of them is a change here.
WAYS = {
    "kernel": 'image_mount::by_kernel "$1" "$2"',
    "squashfuse": 'squashfuse "$1" "$2"',
    "kit, as root in the container": 'image_mount::choose_fuse && "${image_mount_fuse[@]}" "$1" "$2"',
    "kit, as another user there": 'image_mount::use_cached && "${image_mount_fuse[@]}" "$1" "$2"',
}


def main() -> None:
    """Mount, import, and print the figures. The mount ends with this process's namespace."""
    image, folder, way, count, state = sys.argv[1:6]
    if state in {"cold", "ahead"}:
        drop(image)
    script = Path(folder).parent / "mount.sh"
    script.write_text(f"source {LIBRARY}/image_mount.sh\n{WAYS[way]}\n")
    root = Path(folder)
    if state == "ahead":
        # As bubblewrap.sh and bin/fuse/squashfuse do it, at the mount.
        shell.daemon([str(root.parent / "runs/run/bin/read-ahead.sh"), image], log=root.parent / "ahead.log")
    shell.run(["bash", str(script), image, folder])
    try:
        if state == "warm":
            imports(root, 1)
        took = imports(root, int(count))
        if len(sys.argv) > 6:
            learn(image, folder, sys.argv[6])
    finally:
        shell.run(["umount", "--lazy", folder])
    print(*took)


def drop(image: str) -> None:
    """Drop the file's pages from memory: only its own, not those of other programs."""
    number = os.open(image, os.O_RDONLY)
    os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(number)


def imports(root: Path, count: int) -> tuple[float, float]:
    """Seconds until the last of `count` processes has imported torch, and CPU seconds of them and of the daemon."""
    argv = ["bwrap", "--ro-bind", str(root), "/", "--dev-bind", "/dev", "/dev", "--dev-bind", "/proc", "/proc"]
    argv += ["--tmpfs", "/tmp", "--setenv", "OMP_NUM_THREADS", "1", "/opt/venv/bin/python", "-c", "import torch"]
    before, daemon = resource.getrusage(resource.RUSAGE_CHILDREN), daemon_cpu(root)
    began = time.monotonic()
    children = [os.posix_spawnp(argv[0], argv, os.environ) for _ in range(count)]
    for child in children:
        if os.waitpid(child, 0)[1]:
            raise SystemExit("an import failed")
    took = time.monotonic() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return took, cpu + daemon_cpu(root) - daemon


def daemon_cpu(root: Path) -> float:
    """CPU seconds of the FUSE daemon of a mount; 0 for a mount by the kernel."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
            fields = (process / "stat").read_text().rpartition(") ")[2].split()
        except OSError:
            continue
        if b"squashfuse" in words[0] and words[-1] == os.fsencode(root):
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def learn(image: str, root: str, path: str) -> None:
    """Write the list of hot pages, as the kit does during a run."""
    sys.path.insert(0, str(ROOT / "templates/kit_node"))
    hot_pages = importlib.import_module("hot_pages")
    vars(hot_pages)["rank_root"] = lambda _job: root
    hot_pages.main(image, path, "0", "60")


if __name__ == "__main__":
    main()
