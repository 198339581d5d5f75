"""A submit says that no node of the partition can run the image; where lock or Slurm do not tell, it says nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kit.planning.plan import Plan
from kit.slurm.tolerant_reader import MARK
from kit.submission.warnings import warn_of_architecture
from tests.support import make_lock, make_site, plan_of, write_job

JOB = 'name = "digits"\nlauncher = "ddp"\n'


def planned(work: Path, platform: str | None, more: str = "") -> Plan:
    made = plan_of(write_job(work, JOB + more), site=make_site(run_dir=work / "runs/digits-1"))
    pins = made.decisions.pins
    own = replace(pins.own, lock=make_lock().model_copy(update={"platform": platform}))
    return replace(made, decisions=replace(made.decisions, pins=replace(pins, own=own)))


def slurm_of(folder: Path, nodes: dict[str, str]) -> dict[str, str]:
    """A PATH with a Slurm whose partition `grace` has these nodes: name -> architecture, empty where it has not registered."""
    rows = "".join(f"{MARK}{name}|idle|grace*\n" for name in nodes)
    lines = "".join(f"NodeName={name}{f' Arch={arch}' * bool(arch)} CPUTot=4\n" for name, arch in nodes.items())
    (folder / "nodes").write_text(lines)
    asked = 'for name in ${4//,/ }; do grep "^NodeName=$name " nodes; done\n'
    programs = {"sinfo": f"cat <<'END'\n{rows}END\n", "scontrol": f'cd {folder}; echo "$*" >>asked\n{asked}'}
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}")
        (folder / name).chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


def test_an_image_for_another_architecture_than_all_nodes_is_named(tmp_path: Path) -> None:
    """The ranks ended with "exec format error" after they had waited in the queue."""
    made = planned(tmp_path, "linux/arm64", '[slurm]\npartition = "grace"\n')
    (one,) = warn_of_architecture(made, env=slurm_of(tmp_path, {"n1": "x86_64", "n2": "x86_64"}))
    assert (one.file, one.key) == (str(tmp_path / "job.toml"), "image")
    assert one.problem == "image train-cpu is for linux/arm64, and the nodes of partition grace are x86_64"
    (one,) = warn_of_architecture(planned(tmp_path, "linux/amd64"), env=slurm_of(tmp_path, {"n1": "aarch64", "n2": ""}))
    assert one.problem == "image train-cpu is for linux/amd64, and the nodes of the default partition are aarch64"


@pytest.mark.parametrize(
    ("platform", "nodes"),
    [
        ("linux/arm64", {"n1": "aarch64"}),
        ("linux/arm64/v8", {"n1": "x86_64", "n2": "aarch64"}),
        ("linux/arm64", {"n1": ""}),
        ("linux/arm64", {}),
        ("linux/386", {"n1": "x86_64"}),
        (None, {"n1": "x86_64"}),
    ],
    ids=["the same", "mixed", "not registered", "no node", "another name", "no platform"],
)
def test_what_can_run_or_is_not_known_is_not_warned_of(
    tmp_path: Path, platform: str | None, nodes: dict[str, str]
) -> None:
    assert warn_of_architecture(planned(tmp_path, platform), env=slurm_of(tmp_path, nodes)) == []


def test_one_node_is_asked_for_where_it_can_run_the_image(tmp_path: Path) -> None:
    env = slurm_of(tmp_path, {"n1": "aarch64", "n2": "aarch64"})
    assert warn_of_architecture(planned(tmp_path, "linux/arm64"), env=env) == []
    assert (tmp_path / "asked").read_text() == "show node --oneliner n1\n"


def test_without_slurm_nothing_is_said(tmp_path: Path) -> None:
    assert warn_of_architecture(planned(tmp_path, "linux/arm64"), env={"PATH": str(tmp_path)}) == []
