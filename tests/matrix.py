"""The cluster tests and those of images on another Debian suite, its Slurm and Python:
`python -m tests.matrix trixie [--short] [--workers N] [pytest's options]`, or random faults there: `… trixie --soak N`.

A root file system is made once for each suite, by mmdebstrap from this machine's own mirror, in the user's cache. The tests run in
it with the repository and the image store bound in (tests/in_root.sh); what they write there is thrown away. Root only.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import annotated_doc
import pip
import platformdirs
import typer

from kit import data_folders, shell
from kit.errors import KitError, ToolError
from kit.images.build import host_apt_sources
from kit.version import __version__
from tests.support import REPO

SUITES = ("trixie", "sid")
# What the kit imports, as its pyproject says. Debian names a package of Python's `python3-` and the name.
REQUIRED = tuple(
    re.split(r"[^A-Za-z0-9.-]", requirement)[0]
    for requirement in tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
)
# Slurm and what the embedded cluster needs, the container runtime that needs no plugin, the kit's own Python packages and pytest.
PACKAGES = (
    "slurmctld", "slurmd", "slurm-client", "slurmdbd", "mariadb-server-core", "mariadb-client-core", "munge", "iproute2",
    "util-linux", "mount", "procps", "squashfs-tools", "squashfuse", "fuse3", "bubblewrap", "git", "tmux", "ca-certificates",
    "python3", *(f"python3-{name}" for name in REQUIRED), "python3-pytest", "python3-pytest-timeout",
    "python3-pytest-xdist", "python3-hypothesis", "e2fsprogs",
)  # fmt: skip
# The main job in both shapes, cancel, the lead signal, requeue, an array, roles.
SHORT = (
    "tests/cluster/test_runs.py::test_ddp_on_two_nodes_in_the_container[bubblewrap-torchrun]",
    "tests/cluster/test_runs.py::test_ddp_on_two_nodes_in_the_container[bubblewrap-srun]",
    "tests/cluster/test_runs.py::test_cancel_leaves_nothing[bubblewrap]",
    "tests/cluster/test_faults.py::test_fault[lead-signal-torchrun-bubblewrap]",
    "tests/cluster/test_faults.py::test_the_lead_signal_by_slurm_itself_requeues_up_to_the_cap",
    "tests/cluster/test_sweeps.py::test_one_array_then_only_the_failed_points_again",
    "tests/cluster/test_roles.py::test_roles_find_each_other_and_the_service_stops_when_the_main_one_has_ended[bubblewrap]",
)
# The oldest Python that the kit promises runs them in scripts/own_python.sh; here are the newest two.
IMAGES = tuple(sorted(str(path.relative_to(REPO)) for path in (REPO / "tests/unit").glob("test_image_*.py")))
_MAKE_S = 600.0
_NAMESPACES = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation=private")


def main() -> int:
    """The command's own code; 0 with `--skip` where the root cannot be made, which is then said by name."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("--short", action="store_true", help="seven tests of tests/cluster instead of all")
    parser.add_argument("--make", action="store_true", help="make the root, and run nothing")
    parser.add_argument("--skip", action="store_true", help="a root that cannot be made is not a failure")
    parser.add_argument("--workers", type=int, default=3, help="so many tests at a time; 0: one after the other")
    parser.add_argument(
        "--soak", type=int, metavar="N", help="N runs with random faults (tests/soak.py) instead of tests"
    )
    asked, options = parser.parse_known_args()
    try:
        root = made(asked.suite)
    except (KitError, OSError) as error:
        print(f"matrix: {asked.suite}: {'SKIPPED' if asked.skip else 'FAILED'}: {error}", flush=True)
        return 0 if asked.skip else 1
    if asked.make:
        print(root)
        return 0
    code = run(root, command(asked, options))
    print(f"matrix: {asked.suite}: {'passed' if code == 0 else f'FAILED with {code}'}", flush=True)
    return code


def command(asked: argparse.Namespace, options: list[str]) -> list[str]:
    """What runs in the root: pytest on what the options name, else on all, or random faults with the options of tests/soak.py."""
    if asked.soak is not None:
        return ["python3", "-m", "tests.soak", "--runs", str(asked.soak), *options]
    argv = ["python3", "-m", "pytest", "-p", "no:cacheprovider", "-m", "faults or not faults"]
    argv += ["--numprocesses", str(asked.workers), "--dist", "loadfile"] if asked.workers else []
    if not any(one.startswith("tests/") for one in options):
        argv += [*(["-m", "not slow", *SHORT] if asked.short else ["tests/cluster"]), *IMAGES]
    return [*argv, *options]


def made(suite: str) -> Path:
    """The suite's root, made when it is not there. ToolError where this machine cannot make it.

    It appears under its name when it is whole; what an interrupted start left is removed by the next one.
    """
    if os.geteuid() != 0:
        raise ToolError("a root file system is made, and entered, by root")
    if shell.run([*_NAMESPACES, "true"], check=False).returncode != 0:
        raise ToolError("this machine lets root make no namespaces, as in most containers")
    recipe = hashlib.sha256("\n".join([suite, *PACKAGES]).encode()).hexdigest()[:12]
    folder = platformdirs.user_cache_path("kit") / "roots"
    folder.mkdir(parents=True, exist_ok=True)
    root = folder / f"{suite}-{recipe}"
    with locked(folder / f"{suite}.lock"):
        if not root.is_dir():
            shell.require("mmdebstrap", hint="apt-get install mmdebstrap")
            partial = folder / f"{suite}.partial"
            if partial.exists():
                shutil.rmtree(partial)
            print(f"matrix: making {root}, about two minutes", flush=True)
            bootstrap(suite, partial)
            partial.rename(root)
    return root


def bootstrap(suite: str, root: Path) -> None:
    """mmdebstrap's work. Packages come from the mirror that this machine's own apt has."""
    argv = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(PACKAGES)}"]
    # A mirror that is a snapshot keeps a release file whose date is over.
    argv += ['--aptopt=Acquire::Check-Valid-Until "false"', suite, str(root), mirror(suite)]
    shell.run(argv, timeout=_MAKE_S, env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"})


def mirror(suite: str) -> str:
    """A one-line source of the suite, from this machine's entry for it or, without one, for its own suite."""
    own = re.search(r"(?m)^VERSION_CODENAME=(\S+)", Path("/etc/os-release").read_text(encoding="utf-8"))
    for known in (suite, own[1] if own else ""):
        for line in host_apt_sources.lines(known, ["main"]):
            if f" {known} " in line:
                return line.replace(f" {known} ", f" {suite} ")
    raise ToolError(f"no mirror in /etc/apt offers {suite}")


def run(root: Path, argv_inside: list[str]) -> int:
    """A command in the root. The namespaces end with it, and every process in them."""
    store = data_folders.user_data() / "images"
    store.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kit-matrix-") as scratch:
        # importlib.metadata looks for the kit's version: it is not installed in the root.
        metadata = Path(scratch) / f"slurm_kit-{__version__}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: slurm-kit\nVersion: {__version__}\n")
        # trixie's typer knows no Literal; the kit's own is pure Python, and so are what it needs and pip.
        for package in (typer, annotated_doc, pip):
            shutil.copytree(Path(package.__path__[0]), Path(scratch) / package.__name__)
        env = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(Path.home()),
            "LANG": "C.UTF-8",
            "PYTHONPATH": f"{REPO}:{scratch}",
            "PYTHONPYCACHEPREFIX": "/tmp/pycache",
            **{name: os.environ[name] for name in ("XDG_DATA_HOME", "TERM") if name in os.environ},
        }
        # unshare takes no TERM while it waits, and would continue when this process is ended.
        argv = [
            "setpriv",
            "--pdeathsig=KILL",
            *_NAMESPACES,
            "bash",
            str(REPO / "tests/in_root.sh"),
            str(root),
            str(REPO),
            str(store),
            scratch,
            "--",
            *argv_inside,
        ]
        return subprocess.run(argv, env=env, cwd=REPO, check=False).returncode


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One maker at a time; the lock ends with its holder."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.exit(main())
