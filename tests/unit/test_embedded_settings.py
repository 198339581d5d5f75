"""`kit cluster up --conf`: what it changes in slurm.conf, and what it refuses."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kit.errors import UsageError
from kit.slurm.embedded import accounting, conf, settings
from tests.soak import site
from tests.unit.test_embedded_conf import cluster, lines_with


def text_with(given: dict[str, str]) -> str:
    return conf.slurm_conf(cluster(isolated=True).model_copy(update={"conf": given}), user="root")


def test_a_setting_takes_the_place_of_the_kits_own_line() -> None:
    text = text_with({"slurmdtimeout": "60", "KillWait": "30"})
    assert lines_with(text, "slurmdtimeout=") == ["slurmdtimeout=60"]
    assert lines_with(text, "SlurmdTimeout=") == []
    assert lines_with(text, "KillWait=") == ["KillWait=30"]


def test_a_new_setting_comes_at_the_end() -> None:
    text = text_with({"PrologFlags": "Alloc", "PreemptMode": "REQUEUE"})
    assert text.splitlines()[-3:] == ["# --conf", "PrologFlags=Alloc", "PreemptMode=REQUEUE"]


def test_a_partition_is_added_and_the_default_one_stays() -> None:
    text = text_with({"PartitionName": "urgent Nodes=ALL PriorityTier=10"})
    assert [line.split()[0] for line in lines_with(text, "PartitionName=")] == [
        "PartitionName=main",
        "PartitionName=urgent",
    ]


def test_without_settings_nothing_changes() -> None:
    assert "--conf" not in text_with({})


def test_a_script_for_submitted_jobs_is_loaded(tmp_path: Path) -> None:
    script = tmp_path / "mine.lua"
    script.touch()
    given = settings.parse([f"job_submit.lua={script}"])
    assert given == {"job_submit.lua": str(script)}
    assert lines_with(text_with(given), "JobSubmitPlugins=") == ["JobSubmitPlugins=lua"]


def test_a_topology_is_a_file_beside_slurm_conf_and_no_line_of_it(tmp_path: Path) -> None:
    file = tmp_path / "topology.conf"
    file.touch()
    given = settings.parse(["TopologyPlugin=topology/tree", f"topology.conf={file}"])
    assert "topology.conf" in settings.COPIED
    assert text_with(given).splitlines()[-2:] == ["# --conf", "TopologyPlugin=topology/tree"]


def test_programs_are_named_by_their_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "prolog.sh"
    program.touch(mode=0o755)
    assert settings.parse(["Prolog=prolog.sh"]) == {"Prolog": str(program)}
    program.chmod(0o644)
    with pytest.raises(UsageError, match="not executable"):
        settings.parse(["Prolog=prolog.sh"])
    with pytest.raises(UsageError, match="no such file"):
        settings.parse(["TaskProlog=nothing.sh"])


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("ClusterName=mine", "--name"),
        ("slurmctldport=6817", "free ports"),
        ("StateSaveLocation=/var/spool", "the cluster's folder"),
        ("AuthType=auth/none", "a munge of its own"),
        ("ProctrackType=proctrack/cgroup", "--cgroups"),
        ("AccountingStorageType=accounting_storage/slurmdbd", "--accounting"),
        ("SelectType=select/linear", "GPUs"),
        ("NodeName=more CPUs=1", "--nodes"),
        ("Include=/etc/slurm/more.conf", "a --conf each"),
        ("SlurmdParameters=l3cache_as_socket", "without config_overrides"),
        ("PartitionName=main Nodes=ALL", "a partition main"),
        ("JobSubmitPlugins=lua", "job_submit.lua=FILE"),
        ("SlurmdTimeout", "no '='"),
        ("SlurmdTimeout=", "not a line"),
        ("KillWait=30 # long", "not a line"),
        ("KillWait=30\nSlurmUser=ada", "not a line"),
        ("KillWait=30\\", "not a line"),
        ("Kill Wait=30", "not a line"),
    ],
)
def test_what_would_break_the_cluster_is_refused(given: str, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        settings.parse([given])
    assert why in f"{caught.value.message} {caught.value.hint}"


def test_a_key_is_given_once() -> None:
    with pytest.raises(UsageError, match="given twice"):
        settings.parse(["KillWait=30", "killwait=40"])


def test_the_shape_names_the_settings_so_that_another_up_is_refused() -> None:
    with_one = cluster(isolated=True).model_copy(update={"conf": {"KillWait": "30"}})
    assert with_one.shape == cluster(isolated=True).shape + ", KillWait=30"


def test_a_machine_that_has_only_some_programs_of_accounting_is_a_site_without_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The soak drew accounting there, and ended with a traceback before its first run."""
    monkeypatch.setattr("kit.shell.which", lambda program, **_: None if program == "mariadb" else f"/usr/bin/{program}")
    assert accounting.missing_programs() == ["mariadb"]
    assert not any(site(random.Random(seed), tmp_path)[1] for seed in range(20))
    monkeypatch.setattr("kit.shell.which", lambda program, **_: f"/usr/bin/{program}")
    assert any(site(random.Random(seed), tmp_path)[1] for seed in range(20))
