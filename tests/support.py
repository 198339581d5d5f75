"""Helpers of several tests: a lock, a site, and a project folder with a job in it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from kit import config, render
from kit.planning.plan import Plan, plan
from kit.planning.plan_inputs import Site
from kit.schema.image import ImageConfig, ImageLock, LockedBase, LockedTools, Packages, Squash

SHA = "c0ffee" + "0" * 58
REPO = Path(__file__).parent.parent

# The Python that runs beside ranks.
NODE = REPO / "templates" / "kit_node"
# scripts/own_python.sh names the oldest that it promises.
NODE_PYTHON = os.environ.get("KIT_NODE_PYTHON", sys.executable)


def write_libraries(run_dir: Path) -> None:
    """Write lib/ of a run folder, with the libraries of all parts."""
    (run_dir / "lib").mkdir()
    for name in render.library_names():
        (run_dir / name).write_text(render.plain(name), encoding="utf-8")


def make_lock(name: str = "train-cpu") -> ImageLock:
    """A lock as `kit build-image` writes it, of bytes that do not exist."""
    return ImageLock(
        schema_version=1,
        name=name,
        sha256=SHA,
        size=4096,
        source="build",
        inputs="1" * 64,
        base=LockedBase(kind="bootstrap", reference="bookworm", digest="sha256:" + "2" * 64),
        squash=Squash(),
        config=ImageConfig(env={"PATH": "/usr/bin"}),
        tools=LockedTools(kit="0.1.0", mksquashfs="4.5.1"),
        packages=Packages(pip={"torch": "2.13.0"}),
    )


def make_site(*, run_dir: Path = Path("/shared/runs/digits-1"), pyxis: bool = False, containers: bool = True) -> Site:
    """A site that is the same on every machine."""
    return Site(
        run_id=run_dir.name,
        run_dir=run_dir,
        runs_dir=run_dir.parent,
        user="ada",
        home="/home/ada",
        data="/home/ada/.local/share/kit",
        store="/home/ada/.local/share/kit/images",
        seed=1234,
        pyxis=pyxis,
        containers=containers,
    )


def write_job(folder: Path, text: str) -> Path:
    """A job file in `folder`, which becomes a project of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".git").mkdir(exist_ok=True)
    path = folder / "job.toml"
    path.write_text(text, encoding="utf-8")
    return path


def plan_of(
    job_file: Path, *, cluster: str = "local", overrides: tuple[str, ...] = (), site: Site | None = None
) -> Plan:
    """The plan of a job file at `make_site()`, with a lock."""
    resolved = config.load_job(job_file, cluster=cluster, overrides=overrides)
    return plan(resolved, make_lock(), site or make_site())
