"""Reading job, cluster, mounts and launcher files: precedence, overrides, and errors that name file, key and nearest name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import tomli_w

from kit import config, data_folders
from kit.errors import ConfigError
from tests.support import REPO, write_job

JOB = 'name = "digits"\nlauncher = "ddp"\n'


def faults_of(job_file: Path, *, cluster: str = "local", overrides: tuple[str, ...] = ()) -> dict[str, str]:
    """Key -> whole line of each fault."""
    with pytest.raises(ConfigError) as caught:
        config.load_job(job_file, cluster=cluster, overrides=overrides)
    return {fault.key: str(fault) for fault in caught.value.faults}


def test_command_line_over_job_over_cluster_over_launcher(tmp_path: Path) -> None:
    job = write_job(tmp_path, JOB + '[env]\nA = "job"\n[resources]\nnodes = 3\n')
    made = config.load_job(job, cluster="local", overrides=["resources.nodes=4"]).job
    assert made.resources.nodes == 4
    assert made.resources.time == "00:30:00", "from clusters/local.toml [defaults]"
    assert made.image == "train-cpu", "from launchers/ddp [defaults]"
    assert made.env == {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "OMP_NUM_THREADS": "1", "A": "job"}
    job.write_text(JOB + 'image = "other"\n[env]\nOMP_NUM_THREADS = "7"\n')
    made = config.load_job(job, cluster="local").job
    assert (made.image, made.env["OMP_NUM_THREADS"]) == ("other", "7")


def test_qos_row_fills_in_and_the_job_wins(tmp_path: Path) -> None:
    job = write_job(tmp_path, JOB + 'qos = "high"\n[slurm]\naccount = "mine"\n')
    made = config.load_job(job, cluster="infiniband").job
    assert (made.slurm.account, made.slurm.partition, made.slurm.qos) == ("mine", "gpu", "high")
    assert (made.resources.memory, made.resources.time) == ("900G", "12:00:00")
    assert config.load_job(write_job(tmp_path, JOB), cluster="infiniband").job.qos == "normal"


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("resources.nodes=2", "resources.nodes", 2),
        ("resources.time=30", "resources.time", "30"),
        ('args=["a b", "=c"]', "args", ("a b", "=c")),
        ("env.X=a=b c", "env", {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "OMP_NUM_THREADS": "1", "X": "a=b c"}),
        ("env.N=007", "env", {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "OMP_NUM_THREADS": "1", "N": "007"}),
        ("debug=true", "debug", True),
    ],
)
def test_overrides_are_toml_or_text(tmp_path: Path, text: str, key: str, value: object) -> None:
    found: object = config.load_job(write_job(tmp_path, JOB), cluster="local", overrides=[text]).job
    for part in key.split("."):
        found = getattr(found, part)
    assert found == value


@pytest.mark.parametrize("text", ["nodes", "=3", "a..b=1", ""])
def test_override_without_key_or_value(tmp_path: Path, text: str) -> None:
    assert "KEY=VALUE" in next(iter(faults_of(write_job(tmp_path, JOB), overrides=(text,)).values()))


def test_all_faults_of_a_file_at_once(tmp_path: Path) -> None:
    job = write_job(
        tmp_path,
        JOB
        + 'imge = "x"\nargs = 3\n[resources]\nnodez = 2\ngpus_per_node = -1\n[slurm]\naccount = "a b"\n[monitor]\ndelay = 0\n',
    )
    found = faults_of(job)
    assert set(found) == {
        "imge",
        "args",
        "resources.nodez",
        "resources.gpus_per_node",
        "slurm.account",
        "monitor.delay",
    }
    assert all(line.startswith(f"{job}: ") for line in found.values())
    assert "did you mean 'image'?" in found["imge"]
    assert "did you mean 'nodes'?" in found["resources.nodez"]


def test_a_job_builds_on_other_files(tmp_path: Path) -> None:
    """Its own keys win over theirs, those of a later file over those of an earlier one; paths start from the job's own folder."""
    write_job(
        tmp_path / "base", JOB + 'script = "train.py"\nargs = ["--x"]\n[resources]\nnodes = 2\ngpus_per_node = 4\n'
    )
    (tmp_path / "long.toml").write_text('extends = "base/job.toml"\n[resources]\nnodes = 3\ntime = "10:00:00"\n')
    (tmp_path / "quiet.toml").write_text("[monitor]\nenabled = false\n")
    job = write_job(tmp_path / "own", 'extends = ["../long.toml", "../quiet.toml"]\nname = "mine"\nargs = []\n')
    resolved = config.load_job(job, cluster="local", overrides=["resources.nodes=4"])
    made = resolved.job
    assert (made.name, made.launcher, made.args) == ("mine", "ddp", ())
    assert (made.resources.nodes, made.resources.gpus_per_node, made.resources.time) == (4, 4, "10:00:00")
    assert not made.monitor.enabled
    assert resolved.job_dir == tmp_path / "own"
    assert made.extends is None, "the run's own job.toml stands by itself"


@pytest.mark.parametrize(
    ("extends", "said"),
    [
        ('"nowhere.toml"', "nowhere.toml: no such file"),
        ('"job.toml"', "extends: 'job.toml' builds on this file itself"),
        ('"circle.toml"', "circle.toml: extends: 'job.toml' builds on this file itself"),
        ("3", "extends: 3 is not the path of a job file"),
        ('"typo.toml"', "typo.toml: resources.nodez: [resources] has no such key"),
    ],
)
def test_files_that_cannot_be_built_on(tmp_path: Path, extends: str, said: str) -> None:
    (tmp_path / "circle.toml").write_text('extends = "job.toml"\n')
    (tmp_path / "typo.toml").write_text("[resources]\nnodez = 2\n")
    with pytest.raises(ConfigError) as caught:
        config.load_job(write_job(tmp_path, f"extends = {extends}\n" + JOB), cluster="local")
    assert said in str(caught.value)


def test_only_a_job_file_builds_on_others(tmp_path: Path) -> None:
    found = faults_of(write_job(tmp_path, JOB), overrides=("extends=job.toml",))
    assert "only a job file can build on another" in found["extends"]


def test_a_fault_names_the_file_that_holds_it(tmp_path: Path) -> None:
    job = write_job(tmp_path, JOB)
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "mine.toml").write_text("[node]\ncpus = 4\n[defaults.resources]\ntimee = '1'\n")
    lines = list(faults_of(job, cluster="mine", overrides=("resources.nodes=0", "resources.gpu_per_node=1")).values())
    assert any(text.startswith("--set: resources.nodes: ") for text in lines)
    assert any("--set: resources.gpu_per_node: [resources] has no such key" in text for text in lines)
    assert any("mine.toml [defaults]: resources.timee" in text and "did you mean 'time'?" in text for text in lines)


@pytest.mark.parametrize(
    ("file", "text", "key", "near"),
    [
        ("clusters/mine.toml", "[node]\ncpuss = 4\n", "node.cpuss", "cpus"),
        ("clusters/mine.toml", "descripton = 'x'\n[node]\ncpus = 4\n", "descripton", "description"),
        ("clusters/mine.toml", "[node]\ncpus = 4\n[qos.a]\npartitio = 'x'\n", "qos.a.partitio", "partition"),
        ("mounts/mine.toml", "[data]\nsorce = '/x'\ntarget = '/y'\n", "data.sorce", "source"),
        ("launchers/ddp/launcher.toml", "shapes = ['srun']\nscrpt = 'train.py'\n", "scrpt", "script"),
    ],
)
def test_typo_in_any_file(tmp_path: Path, file: str, text: str, key: str, near: str) -> None:
    job = write_job(tmp_path, JOB + 'mounts = ["data"]\n')
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters/mine.toml").write_text("mounts = 'mine'\n[node]\ncpus = 4\n")
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(text)
    found = faults_of(job, cluster="mine")
    assert key in found
    assert f"{file}: " in found[key]
    assert f"did you mean '{near}'?" in found[key]


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("name", "Bad Name", "is not a name"),
        ("slurm.partition", "gpu\n#SBATCH --wrap=evil", "is not a value for sbatch"),
        ("slurm.account", "a#b", "is not a value for sbatch"),
        ("resources.time", "soon", "is not a time limit"),
        ("resources.memory", "64 GB", "is not an amount of memory"),
        ("image", "ubuntu:latest", "kit import-image docker://ubuntu:latest --name ubuntu"),
        ("shape", "torchrn", "did you mean 'torchrun'?"),
        ("container.runtime", "pixis", "did you mean 'pyxis'?"),
        ("env.RANK", "0", "set by the kit"),
        ("env.SLURM_NTASKS", "0", "set by the kit"),
        ("env.BASH_ENV", "x", "read by bash"),
        ("env.GLOO_SOCKET_IFNAME", "^docker0", "only NCCL reads ^ and ="),
        ("rank_args.--rank", "RNK", "did you mean 'RANK'?"),
        ("rank_args.rank", "RANK", "is not an option of the program"),
        ("slurm.extra", ["--container-image=x"], "would put the batch script itself into a container"),
        ("slurm.extra", ["--nice 3"], "without blanks"),
    ],
)
def test_values_that_scripts_cannot_carry(tmp_path: Path, key: str, value: object, reason: str) -> None:
    override = (
        f"{key}={value!r}" if not isinstance(value, str) else f'{key}="{value.encode("unicode_escape").decode()}"'
    )
    lines = " ".join(faults_of(write_job(tmp_path, JOB), overrides=(override,)).values())
    assert reason in lines


@pytest.mark.parametrize("named", ["^docker0", "=eth0"])
def test_gloos_interfaces_of_a_cluster_are_names(tmp_path: Path, named: str) -> None:
    """NCCL knows these; Gloo would look for an interface of that name."""
    job = write_job(tmp_path, JOB)
    (tmp_path / "clusters").mkdir()
    text = f'[node]\ncpus = 4\n[network]\nNCCL_SOCKET_IFNAME = "{named}"\n'
    (tmp_path / "clusters" / "mine.toml").write_text(text)
    assert config.load_job(job, cluster="mine").cluster.network == {"NCCL_SOCKET_IFNAME": named}
    (tmp_path / "clusters" / "mine.toml").write_text(f'{text}GLOO_SOCKET_IFNAME = "{named}"\n')
    assert "only NCCL reads ^ and =" in faults_of(job, cluster="mine")["network.GLOO_SOCKET_IFNAME"]


@pytest.mark.parametrize("bad", ["/a,b", "/a:b", "/a$b", "/a`b", '/a"b', "/a\nb", "/a\\b"])
@pytest.mark.parametrize("side", ["source", "target"])
def test_mount_paths_that_pyxis_has_no_escape_for(tmp_path: Path, bad: str, side: str) -> None:
    mount = {"source": "/x", "target": "/y", side: bad}
    found = faults_of(write_job(tmp_path, JOB + tomli_w.dumps({"mounts": [mount]})))
    assert any(f"mounts[0].{side}" in key for key in found), found
    assert "a mounted path cannot hold" in " ".join(found.values())


@pytest.mark.parametrize("target", ["data", "/a/../b", "/", "//"])
def test_mount_targets(tmp_path: Path, target: str) -> None:
    found = faults_of(write_job(tmp_path, JOB + f'mounts = [{{ source = "/x", target = "{target}" }}]\n'))
    assert "mounts[0].target" in found


def test_unknown_names_list_the_known_ones(tmp_path: Path) -> None:
    job = write_job(tmp_path, JOB + 'mounts = ["dta"]\n')
    assert "scratch, data" in faults_of(job)["mounts[0]"]
    assert "infiniband" in faults_of(job, cluster="infinband")["cluster"]
    assert "did you mean 'infiniband'?" in faults_of(job, cluster="infinband")["cluster"]
    assert "did you mean 'ddp'?" in faults_of(write_job(tmp_path, JOB.replace("ddp", "dpp")))["launcher"]
    said = faults_of(write_job(tmp_path, 'name = "x"\n'))["launcher"]
    assert "the job names no launcher: it says how the ranks start; allowed: accelerate, ddp, " in said


def test_missing_and_broken_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        config.load_job(tmp_path / "job.toml", cluster=None)
    with pytest.raises(ConfigError, match="not valid TOML"):
        config.load_job(write_job(tmp_path, "name = digits\n"), cluster=None)


@pytest.mark.parametrize("kind", ["clusters", "mounts", "launchers"])
def test_every_shipped_file_loads(kind: str) -> None:
    from kit.schema import models

    model = {"clusters": "cluster", "mounts": "mounts", "launchers": "launcher"}[kind]
    names = data_folders.names(kind, project_dir=REPO)
    assert names
    for name in names:
        config.load_model(data_folders.find(kind, name, project_dir=REPO).path, models()[model])


@pytest.mark.parametrize("path", sorted((REPO / "examples").glob("*/job.toml")), ids=lambda p: p.parent.name)
@pytest.mark.parametrize("cluster", ["local", "pod", "aws-efa", "infiniband"])
def test_every_example_loads_on_every_cluster(path: Path, cluster: str) -> None:
    assert config.load_job(path, cluster=cluster).job.name


def test_shipped_toml_files_name_their_schema() -> None:
    shipped = [
        p
        for kind in ("clusters", "mounts", "launchers", "examples", "containers")
        for p in (REPO / kind).rglob("*.toml")
        if p != REPO / "examples/torchtitan-sweep/base.toml"  # TorchTitan's own
    ]
    assert len(shipped) >= 10
    for path in shipped:
        first = path.read_text(encoding="utf-8").splitlines()[0]
        assert first.startswith("#:schema "), path
        assert (path.parent / first.removeprefix("#:schema ")).resolve().is_file(), path


def test_the_layer_that_holds_a_key_is_blamed(tmp_path: Path) -> None:
    """Two mounts on one target were once blamed on --set, with no --set given."""
    twice = 'mounts = [{ source = "/a", target = "/b" }, { source = "/c", target = "/b" }]\n'
    job = write_job(tmp_path, JOB + twice)
    found = faults_of(job, overrides=("resources.nodes=2",))
    assert found["mounts[1].target"].startswith(f"{job}: mounts[1].target: two mounts share the target /b")
    job = write_job(tmp_path, JOB + "[resources]\nnodes = 0\n")
    found = faults_of(job, overrides=("env.RANK=1",))
    assert found["resources.nodes"].startswith(f"{job}: resources.nodes: 0 is too small")
    assert found["env.RANK"] == "--set: env.RANK: RANK is set by the kit for each rank\n  try: drop it from --set"


def test_a_missing_key_is_the_job_files(tmp_path: Path) -> None:
    found = faults_of(write_job(tmp_path, 'launcher = "ddp"\n'), overrides=("seed=1",))
    assert found["name"].startswith(f"{tmp_path}/job.toml: name: nothing sets this key")


@pytest.mark.parametrize("cut", [b"\xef\xbb\xbf", b""])
def test_a_byte_order_mark_is_no_statement(tmp_path: Path, cut: bytes) -> None:
    job = tmp_path / "job.toml"
    job.write_bytes(cut + JOB.encode())
    assert config.load_job(job, cluster="local").job.name == "digits"


def test_files_that_would_never_end(tmp_path: Path) -> None:
    """A FIFO waits for a writer, /dev/zero has no end: neither is opened."""
    os.mkfifo(tmp_path / "fifo")
    for name, what in (("fifo", "not a regular file"), ("/dev/zero", "not a regular file"), (".", "a folder")):
        job = write_job(tmp_path, f'extends = "{name}"\n{JOB}')
        with pytest.raises(ConfigError, match=what):
            config.load_job(job, cluster="local")
    with pytest.raises(ConfigError, match="not a regular file"):
        config.load_job(tmp_path / "fifo", cluster="local")


def test_a_file_that_many_build_on_is_read_once(tmp_path: Path) -> None:
    """Thirty levels of two files that both build on the level below would be read 2^30 times; the later file wins."""
    (tmp_path / "base-0.toml").write_text('seed = 1\nargs = ["base"]\n')
    for level in range(30):
        for side in ("left", "right"):
            text = f'extends = "base-{level}.toml"\nenv.SIDE = "{side} {level}"\n'
            (tmp_path / f"{side}-{level}.toml").write_text(text)
        both = f'extends = ["left-{level}.toml", "right-{level}.toml"]\n'
        (tmp_path / f"base-{level + 1}.toml").write_text(both)
    # Fifty files may build on each other, and each level has two.
    made = config.load_job(write_job(tmp_path, 'extends = "base-20.toml"\n' + JOB), cluster="local").job
    assert (made.seed, made.args, made.env["SIDE"]) == (1, ("base",), "right 19")
    with pytest.raises(ConfigError, match="more than 50 files build on each other"):
        config.load_job(write_job(tmp_path, 'extends = "base-30.toml"\n' + JOB), cluster="local")


def test_what_is_nested_too_deep(tmp_path: Path) -> None:
    for deep in ("args = " + "[" * 3000 + "]" * 3000, "args = " + "[" * 300 + "]" * 300, ".".join("a" * 500) + " = 1"):
        with pytest.raises(ConfigError, match="more than 100 tables and lists inside each other"):
            config.load_job(write_job(tmp_path, JOB + deep + "\n"), cluster="local")
    with pytest.raises(ConfigError, match="--set: nested too deep: more than 100"):
        config.load_job(write_job(tmp_path, JOB), cluster="local", overrides=["args=" + "[" * 3000 + "]" * 3000])
    with pytest.raises(ConfigError, match="--set: nested too deep: more than 100"):
        config.load_job(write_job(tmp_path, JOB), cluster="local", overrides=[".".join("a" * 3000) + "=1"])
