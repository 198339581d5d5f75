"""A site's own parts: read from the folder that the cluster's file names, and copied into each run."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from kit import config
from kit.config.site_parts import PHASES, SitePart, read_site_parts
from kit.errors import ConfigError
from kit.planning import parts
from kit.schema.cluster import Cluster
from tests import laid_out
from tests.golden.cases import CASES, planned
from tests.support import REPO

SCRIPT = "drain::before_ranks() {\n    helper\n}\nhelper() { :; }\nfunction drain::end { true; }\n"


def read(folder: Path, named: str = "parts") -> tuple[SitePart, ...]:
    cluster = Cluster.model_validate({"node": {"cpus": 1}, "parts": {"folder": named}})
    return read_site_parts(cluster, folder / "pod.toml", "clusters/pod.toml")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "parts").mkdir(mode=0o755)
    (tmp_path / "parts").chmod(0o755)
    return tmp_path


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / "parts" / name
    path.write_text(text)
    path.chmod(0o644)
    return path


def test_parts_come_in_the_order_of_their_names_with_their_phases(folder: Path) -> None:
    write(folder, "movers.sh", "movers::begun() { :; }\n")
    write(folder, "drain.sh", SCRIPT)
    write(folder, "README.md", "what they are\n")
    found = read(folder)
    assert [(part.name, part.phases) for part in found] == [("drain", ("before_ranks", "end")), ("movers", ("begun",))]
    assert found[0].text == SCRIPT
    assert read(folder, str(folder / "parts")) == found


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("Drain.sh", SCRIPT, "mv .*/Drain.sh .*/drain.sh"),
        ("drain.sh", "drain::end() { if; }\n", "is not valid bash: bash: line 1: syntax error"),
        ("drain.sh", "begun() { :; }\n", r"has no function drain::PHASE\n  try: drain::before_ranks\(\)"),
        ("drain.sh", "drain::before_rank() { :; }\n", "did you mean 'before_ranks'"),
        ("drain.txt", SCRIPT, r"has no file \*\.sh"),
    ],
)
def test_a_script_that_would_do_nothing_is_refused(folder: Path, name: str, text: str, problem: str) -> None:
    write(folder, name, text)
    with pytest.raises(ConfigError, match=f"clusters/pod.toml: parts.folder: (.|\n)*{problem}"):
        read(folder)


def test_what_another_user_can_change_is_refused(folder: Path) -> None:
    path = write(folder, "drain.sh", SCRIPT)
    path.chmod(0o646)
    with pytest.raises(
        ConfigError, match=r"drain\.sh can be changed by everybody, and would run as you\n  try: .*chmod go-w"
    ):
        read(folder)
    path.chmod(0o644)
    (folder / "parts").chmod(0o777)
    with pytest.raises(ConfigError, match="parts can be changed by everybody"):
        read(folder)
    (folder / "parts").chmod(0o755)
    if os.geteuid() == 0:
        os.chown(path, 4711, -1)
        with pytest.raises(ConfigError, match=r"drain\.sh can be changed by 4711"):
            read(folder)


def test_what_cannot_be_read_is_named(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"no/parts cannot be read: .*\n  try: mkdir -p .*/no/parts"):
        read(folder, "no/parts")
    os.mkfifo(folder / "parts" / "drain.sh", 0o644)
    with pytest.raises(ConfigError, match=r"drain\.sh cannot be read: not a regular file"):
        read(folder)


def test_a_run_of_the_cluster_has_the_parts(folder: Path) -> None:
    """In the digest of its code, too: what was submitted is what runs."""
    write(folder, "drain.sh", SCRIPT)
    case = next(case for case in CASES if case.name == "local-bare")
    plain = planned(case)
    clusters = folder / "clusters"
    clusters.mkdir()
    text = (REPO / "clusters" / "local.toml").read_text() + '\n[parts]\nfolder = "../parts"\ntimeout_s = 90\n'
    (clusters / "own.toml").write_text(text)
    (folder / "job.toml").write_text('name = "x"\nlauncher = "ddp"\nscript = "train.py"\nimage = "train-cpu"\n')
    resolved = config.load_job(folder / "job.toml", cluster="own", project=folder)
    assert [part.name for part in resolved.site_parts] == ["drain"]
    assert not plain.decisions.resolved.site_parts
    assert "site_parts" not in plain.text_of("batch.sh")
    assert set(PHASES) == phases_that_are_called()
    made = replace(plain.decisions, resolved=replace(plain.decisions.resolved, site_parts=resolved.site_parts))
    texts = parts.texts(made)
    assert texts["lib/site/drain.sh"] == SCRIPT
    assert "lib/site_parts.sh" in texts
    assert "lib/site_parts.sh" not in parts.texts(plain.decisions)
    assert (
        parts.code_digest(made)
        == hashlib.sha256(
            "".join(f"{hashlib.sha256(t.encode()).hexdigest()}  {n}\n" for n, t in sorted(texts.items())).encode()
        ).hexdigest()
    )


def phases_that_are_called() -> set[str]:
    """Those of the library that calls them."""
    text = (laid_out.LIB / "site_parts.sh").read_text()
    return set(re.findall(r"^site_parts::(\w+)\(\)", text, re.MULTILINE)) - {"call", "run"}
