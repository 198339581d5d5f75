"""The plan: layout, runtimes, options; pure, and refused when it does not fit."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from kit import shell
from kit.allocation import minutes
from kit.errors import ConfigError
from kit.planning.plan import Plan
from kit.runtimes.pyxis import image_uri
from tests.support import REPO, make_site, plan_of, write_job

JOB = 'name = "digits"\nlauncher = "ddp"\n[resources]\nnodes = 2\ngpus_per_node = 2\n'


def array(plan: Plan, name: str) -> list[str]:
    """A bash array of batch.sh as a list; elements here need no unquoting."""
    lines = plan.text_of("batch.sh").split(f"readonly -a {name}=(\n")[1].split("\n)")[0].splitlines()
    return [line.strip() for line in lines]


def header(plan: Plan) -> list[str]:
    return [
        line.removeprefix("#SBATCH ") for line in plan.text_of("batch.sh").splitlines() if line.startswith("#SBATCH")
    ]


def test_same_inputs_same_plan(tmp_path: Path) -> None:
    job = write_job(tmp_path, JOB)
    assert plan_of(job) == plan_of(job)


@pytest.mark.parametrize(("containers", "inside"), [(True, "/kit/run"), (False, "/shared/runs/digits-1")])
def test_another_program_of_the_launcher(tmp_path: Path, containers: bool, inside: str) -> None:
    """It is named by its place in the run folder, comes along, and needs what the launcher needs."""
    job = write_job(tmp_path, 'script = "/kit/run/code/train_gpt.py"\n' + JOB)
    made = plan_of(job, site=make_site(containers=containers))
    assert f"    {inside}/code/train_gpt.py\n" in made.text_of("program.sh")
    assert [name for _, name in made.copies] == ["code", "code/lib"]


@pytest.mark.parametrize(("shape", "tasks", "cpus"), [("torchrun", 1, 4), ("srun", 2, 2)])
def test_layout_by_shape(tmp_path: Path, shape: str, tasks: int, cpus: int) -> None:
    made = plan_of(write_job(tmp_path, JOB), overrides=(f"shape={shape}",))
    assert {f"--ntasks-per-node={tasks}", f"--cpus-per-task={cpus}", "--gpus-per-node=2"} <= set(header(made))
    assert {f"--ntasks={2 * tasks}", f"--cpus-per-task={cpus}"} <= set(array(made, "KIT_STEP_0_ARGV"))
    assert made.allocation.world_size == 4


def test_a_warm_process_has_every_node_and_the_cpus_of_its_ranks(tmp_path: Path) -> None:
    """In the container of the ranks, beside them; the death of one ends no other. Without the key there is none."""
    job = f'shape = "srun"\n{JOB}[retry]\nwarm = ["torch"]\nspares = 1\n'
    words = array(plan_of(write_job(tmp_path, job), cluster="pod"), "KIT_WARM_ARGV")
    expected = {
        "--overlap",
        "--mem=0",
        "--nodes=3",
        "--ntasks=3",
        "--cpus-per-task=32",
        "--no-kill",
        "--kill-on-bad-exit=0",
    }
    assert expected <= set(words)
    assert words[-1] == "/kit/run/worker.sh"
    assert "KIT_WARM" not in plan_of(write_job(tmp_path, JOB)).text_of("batch.sh")


def test_every_node_keeps_a_folder_for_checkpoints_in_memory(tmp_path: Path) -> None:
    """The spare, too, outside the container; the step outlives a lost node. Without the key there is none."""
    job = f"{JOB}[retry]\nin_allocation = 1\nspares = 1\n[checkpoint]\nmemory_every = 10\n"
    made = plan_of(write_job(tmp_path, job))
    words = array(made, "KIT_MEMORY_ARGV")
    expected = {"--overlap", "--mem=0", "--nodes=3", "--ntasks=3", "--no-kill", "--kill-on-bad-exit=0"}
    assert expected <= set(words)
    assert words[-1].endswith("/bin/memory.sh")
    assert "KIT_CHECKPOINT_MEMORY_EVERY=10" in made.text_of("program.sh")
    assert "KIT_MEMORY" not in plan_of(write_job(tmp_path, JOB)).text_of("batch.sh")


def test_only_python_programs_are_forked_warm(tmp_path: Path) -> None:
    job = write_job(tmp_path, f'shape = "srun"\ncommand = ["./train"]\n{JOB}[retry]\nwarm = ["torch"]\n')
    with pytest.raises(
        ConfigError, match=r"retry.warm: a warm process runs Python programs, and this job runs './train'"
    ):
        plan_of(job)


def test_what_the_job_asks_of_slurm_is_in_the_header(tmp_path: Path) -> None:
    asked = {"account": "a", "partition": "p", "qos": "q", "mail_user": "u@x", "mail_type": "ALL"}
    overrides = (
        "resources.memory=64G",
        "slurm.requeue=true",
        *(f"slurm.{key}={value}" for key, value in asked.items()),
    )
    made = plan_of(write_job(tmp_path, JOB), overrides=overrides)
    assert {"--mem=64G", "--requeue", *(f"--{key.replace('_', '-')}={v}" for key, v in asked.items())} <= set(
        header(made)
    )


@pytest.mark.parametrize(("requeue", "asked"), [("2", "--requeue=expedite"), ("0", "--no-requeue")])
def test_a_job_that_is_queued_again_starts_at_once_where_the_site_has_that(
    tmp_path: Path, requeue: str, asked: str
) -> None:
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "new.toml").write_text("expedited_requeue = true\n[node]\ncpus = 8\ngpus = 4\n")
    made = plan_of(write_job(tmp_path, JOB), cluster="new", overrides=(f"retry.requeue={requeue}",))
    assert [one for one in header(made) if "requeue" in one] == [asked]


def test_more_nodes_are_all_it_takes(tmp_path: Path) -> None:
    """The same job on eight times the nodes: header, step and world size follow, and nothing else of it."""
    job = write_job(tmp_path, JOB)
    small, large = plan_of(job), plan_of(job, overrides=("resources.nodes=16",))
    assert (small.allocation.world_size, large.allocation.world_size) == (4, 32)
    assert "--nodes=16" in header(large)
    assert {"--nodes=16", "--ntasks=16"} <= set(array(large, "KIT_STEP_0_ARGV"))
    assert "16 nodes x 2 ranks = world size 32" in large.text_of("batch.sh")
    assert small.text_of("program.sh") == large.text_of("program.sh")


def test_a_rendezvous_without_torchrun_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="rendezvous: the start shape 'srun' has no torchrun"):
        plan_of(write_job(tmp_path, JOB), overrides=("rendezvous=c10d", "shape=srun"))


def test_ranks_that_torchrun_restarts_meet_by_c10d(tmp_path: Path) -> None:
    job = write_job(tmp_path, JOB)
    plain, restarts = ("shape=torchrun",), ("shape=torchrun", "torchrun.max_restarts=4")
    for overrides, found in (
        (plain, "static"),
        (restarts, "c10d"),
        (("torchrun.max_restarts=4", "shape=srun"), "static"),
        ((*plain, "rendezvous=c10d"), "c10d"),
    ):
        made = plan_of(job, overrides=overrides)
        assert f"readonly KIT_RENDEZVOUS={found}\n" in made.text_of("worker.sh")
    with pytest.raises(ConfigError, match=r"rendezvous: torchrun's own restarts \(torchrun.max_restarts = 4\) do not"):
        plan_of(job, overrides=(*restarts, "rendezvous=static"))


def test_container_options_stand_on_srun_only(tmp_path: Path) -> None:
    made = plan_of(write_job(tmp_path, JOB), cluster="pod")
    assert not any(option.startswith("--container") for option in header(made))
    step = array(made, "KIT_STEP_0_ARGV")
    for option in ("--container-image=", "--container-mounts=", "--container-workdir=/workspace"):
        assert any(word.startswith(option) for word in step)
    assert {"--no-container-mount-home", "--container-remap-root", "--container-readonly"} <= set(step)
    assert not any(
        word.startswith("--container") for word in array(made, "KIT_MONITOR_ARGV") + array(made, "KIT_PREFLIGHT_ARGV")
    )


def test_no_container_prints_none(tmp_path: Path) -> None:
    made = plan_of(write_job(tmp_path, JOB), cluster="pod", site=make_site(containers=False))
    assert "--container" not in made.text_of("batch.sh")
    assert made.decisions.pin.digest == ""


@pytest.mark.parametrize(
    ("runtime", "pyxis", "chosen"),
    [("auto", True, "pyxis"), ("auto", False, "bubblewrap"), ("bare", True, "bare"), ("enroot", False, "enroot")],
)
def test_runtime_choice(tmp_path: Path, runtime: str, pyxis: bool, chosen: str) -> None:
    made = plan_of(write_job(tmp_path, JOB), overrides=(f"container.runtime={runtime}",), site=make_site(pyxis=pyxis))
    assert made.job.container.runtime == chosen
    assert made.job.container.runtime == chosen, "the run records what 'auto' became"


@pytest.mark.parametrize(
    ("image", "uri"),
    [
        ("/store/x.sqsh", "/store/x.sqsh"),
        ("docker://reg.io/team/img@sha256:ab", "docker://reg.io#team/img@sha256:ab"),
        ("docker://reg.io#team/img@sha256:ab", "docker://reg.io#team/img@sha256:ab"),
        ("docker://user@reg.io/img@sha256:ab", "docker://user@reg.io#img@sha256:ab"),
        ("docker://localhost:5000/img@sha256:ab", "docker://localhost:5000#img@sha256:ab"),
        ("docker://localhost/img@sha256:ab", "docker://localhost#img@sha256:ab"),
        ("docker://team/img@sha256:ab", "docker://team/img@sha256:ab"),
        ("docker://img@sha256:ab", "docker://img@sha256:ab"),
    ],
)
def test_registry_stands_before_a_hash(image: str, uri: str) -> None:
    assert image_uri(image) == uri


def test_mounts_say_target_and_flags(tmp_path: Path) -> None:
    job = write_job(tmp_path, 'mounts = ["data", { source = "in", target = "/in" }]\n' + JOB)
    (mounts,) = [
        w for w in array(plan_of(job, cluster="pod"), "KIT_STEP_0_ARGV") if w.startswith("--container-mounts=")
    ]
    assert mounts.removeprefix("--container-mounts=").split(",") == [
        "/shared/runs/digits-1:/kit/run",
        f"{tmp_path}:/workspace",
        "/tmp/kit-ada:/kit/cache",
        "/datasets:/data:ro",
        f"{tmp_path}/in:/in",
        # C13: what the node itself runs, which a rank could otherwise rewrite.
        "/shared/runs/digits-1/bin:/kit/run/bin:ro",
        "/shared/runs/digits-1/lib:/kit/run/lib:ro",
    ]


@pytest.mark.parametrize(
    ("prolog", "job", "mounted"),
    [
        ("/opt/site/prolog.sh", "", ["/opt/site:/opt/site:ro"]),
        ("/usr/local/bin/prolog", "", ["/usr/local/bin/prolog:/usr/local/bin/prolog:ro"]),
        ("/etc/prolog", "", ["/etc/prolog:/etc/prolog:ro"]),
        ("/opt/site/prolog.sh", 'mounts = [{ source = "/opt", target = "/opt" }]\n', ["/opt:/opt"]),
    ],
)
def test_a_pyxis_container_has_the_sites_task_prolog(prolog: str, job: str, mounted: list[str], tmp_path: Path) -> None:
    (tmp_path / "clusters").mkdir()
    text = (REPO / "clusters/pod.toml").read_text(encoding="utf-8")
    assert "[container]\n" in text
    new = text.replace("[container]\n", f'[container]\ntask_prolog = "{prolog}"\n')
    (tmp_path / "clusters/mine.toml").write_text(new, encoding="utf-8")
    file = write_job(tmp_path, job + JOB)

    def mounts(*overrides: str) -> list[str]:
        words = array(plan_of(file, cluster="mine", overrides=overrides), "KIT_STEP_0_ARGV")
        found = [word.partition("=")[2].split(",") for word in words if word.startswith("--container-mounts=")]
        return [one for mounts in found for one in mounts if not one.split(":")[1].startswith(("/kit/", "/workspace"))]

    assert mounts() == mounted
    assert mounts("container.runtime=bubblewrap") == []


def test_what_a_task_prolog_sets_and_a_container_lacks_is_left_out(tmp_path: Path) -> None:
    made = plan_of(write_job(tmp_path, JOB), cluster="pod")
    (tmp_path / "image-env.sh").write_text(made.text_of("image-env.sh"))
    (tmp_path / "there.so").touch()

    def kept(**env: str) -> str:
        script = f'set -euo pipefail; source {tmp_path}/image-env.sh; echo "${{TMPDIR:-none}} ${{LD_PRELOAD:-none}}"'
        return shell.run(["bash", "-c", script], env={"PATH": os.environ["PATH"], **env}).stdout.strip()

    there = str(tmp_path / "there.so")
    assert kept() == "none none"
    assert kept(TMPDIR="/local/job-7", LD_PRELOAD="/opt/nothere.so") == "none none"
    assert kept(TMPDIR=str(tmp_path), LD_PRELOAD=there) == f"{tmp_path} {there}"
    assert kept(LD_PRELOAD=f"{there}:/opt/nothere.so") == "none none"
    bare = plan_of(write_job(tmp_path, JOB), cluster="pod", site=make_site(containers=False))
    assert "TMPDIR" not in bare.text_of("image-env.sh")


@pytest.mark.parametrize(
    ("override", "key", "reason"),
    [
        ("resources.gpus_per_node=9", "resources.gpus_per_node", "has: 8 GPUs"),
        ("resources.cpus_per_node=97", "resources.cpus_per_node", "cpus_per_node = 96"),
        ("resources.ranks_per_node=200", "resources.ranks_per_node", "has 96 on each node"),
        ("resources.memory=2T", "resources.memory", 'memory = "900G"'),
        ("resources.nodes=33", "resources.nodes", "more than QOS 'normal' allows"),
        ("resources.time=3-00:00:00", "resources.time", "more than QOS 'normal' allows"),
    ],
)
def test_what_the_cluster_cannot_give(tmp_path: Path, override: str, key: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_of(write_job(tmp_path, JOB), cluster="infiniband", overrides=(override,))
    (fault,) = caught.value.faults
    assert fault.key == key
    assert reason in fault.problem


RULES = """
default_qos = "tight"
[node]
cpus = 64
gpus = 8
memory = "512G"
[qos.tight]
account = "a"
max_nodes = 4
max_gpus_per_node = 2
cpus_per_node = 16
memory = "128G"
time = "01:00:00"
"""


@pytest.mark.parametrize(
    ("rule", "override", "key"),
    [
        ("max_nodes", "resources.nodes=5", "resources.nodes"),
        ("max_nodes", "retry.spares=3", "resources.nodes"),
        ("max_gpus_per_node", "resources.gpus_per_node=3", "resources.gpus_per_node"),
        ("cpus_per_node", "resources.cpus_per_node=17", "resources.cpus_per_node"),
        ("cpus_per_node", "slurm.exclusive=true", "slurm.exclusive"),
        ("memory", "resources.memory=129G", "resources.memory"),
        ("memory", "resources.memory=0", "resources.memory"),
        ("time", "resources.time=01:00:01", "resources.time"),
        ("time", "resources.time=0", "resources.time"),
    ],
)
def test_each_rule_of_a_qos_row_is_named_when_it_is_broken(tmp_path: Path, rule: str, override: str, key: str) -> None:
    job = write_job(tmp_path, JOB)
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "tight.toml").write_text(RULES)
    assert plan_of(job, cluster="tight").allocation.nodes == 2, "the job itself fits"
    with pytest.raises(ConfigError) as caught:
        plan_of(job, cluster="tight", overrides=(override,))
    (fault,) = caught.value.faults
    assert fault.key == key
    assert f"QOS 'tight' allows{':' if fault.key != 'slurm.exclusive' else ''} {rule} = " in fault.problem
    assert fault.hint


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("qos=tght", "no row 'tght'; did you mean 'tight'?"),
        ("qos=['tight']", "no row ['tight']"),
        ("qos=1", "no row 1"),
    ],
)
def test_a_qos_row_that_is_not_there(tmp_path: Path, override: str, problem: str) -> None:
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "tight.toml").write_text(RULES)
    with pytest.raises(ConfigError) as caught:
        plan_of(write_job(tmp_path, JOB), cluster="tight", overrides=(override,))
    (fault,) = caught.value.faults
    assert (fault.file, fault.key, fault.allowed, fault.hint) == ("--set", "qos", "tight", "--set qos=tight")
    assert problem in fault.problem


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--nodes=64", "[resources]\n       nodes = 64"),
        ("--tim=9-0", '[resources]\n       time = "9-0"'),
        ("--mem=0", '[resources]\n       memory = "0"'),
        ("--time=9-0", '[resources]\n       time = "9-0"'),
        ("--gres=gpu:8", "[resources]\n       gpus_per_node = 8"),
        ("--qos=high", '[slurm]\n       qos = "high"'),
        ("--part=x", '[slurm]\n       partition = "x"'),
        ("--mail-user=x", '[slurm]\n       mail_user = "x"'),
        ("--array=0-9", "is set by the kit"),
        ("--container-image=x", "would put the batch script itself into a container"),
        ("--nice = 3", "without blanks"),
    ],
)
def test_further_options_pass_no_rule_by(tmp_path: Path, option: str, said: str) -> None:
    job = write_job(tmp_path, f"{JOB}[slurm]\nextra = ['--nice=3', '--gres=nvme:1', '{option}']\n")
    with pytest.raises(ConfigError) as caught:
        plan_of(job)
    (fault,) = caught.value.faults
    assert fault.key == "slurm.extra[2]"
    assert said in str(fault)


def test_a_silent_job_gets_what_its_qos_row_gives(tmp_path: Path) -> None:
    job = write_job(tmp_path, 'name = "digits"\nlauncher = "ddp"\n')
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "tight.toml").write_text(RULES)
    made = plan_of(job, cluster="tight")
    assert (made.allocation.gpus_per_node, made.allocation.cpus_per_task, made.allocation.memory) == (2, 16, "128G")
    assert "--time=01:00:00" in header(made)


def test_a_mount_may_not_hide_the_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="two mounts share the target /kit/run"):
        plan_of(write_job(tmp_path, 'mounts = [{ source = "/x", target = "/kit/run" }]\n' + JOB))


@pytest.mark.parametrize("name", ["with blank", "per%cent", "ne\nw"])
def test_run_folder_that_sbatch_would_misread(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"paths\.runs"):
        plan_of(write_job(tmp_path, JOB), site=make_site(run_dir=Path("/shared") / name))


@pytest.mark.parametrize("folder", ["a,b", "a:b", "a$b", 'a"b'])
def test_job_folder_that_a_mount_cannot_carry(tmp_path: Path, folder: str) -> None:
    with pytest.raises(ConfigError, match="cannot be mounted: a mounted path cannot hold"):
        plan_of(write_job(tmp_path / folder, JOB))


def test_unknown_placeholder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\{hme\}"):
        plan_of(write_job(tmp_path, 'mounts = [{ source = "{hme}/x", target = "/x" }]\n' + JOB))


def test_image_without_lock_says_the_command(tmp_path: Path) -> None:
    from kit import config
    from kit.planning.plan import plan

    resolved = config.load_job(write_job(tmp_path, JOB), cluster="local")
    with pytest.raises(ConfigError, match="kit build-image train-cpu"):
        plan(resolved, None, make_site())


@pytest.mark.parametrize(
    ("text", "expected"),
    [("30", 30), ("1:30", 1.5), ("2:00:00", 120), ("1-0", 1440), ("1-2:30", 1590), ("0-0:0:30", 0.5)],
)
def test_time_limits(text: str, expected: float) -> None:
    assert minutes(text) == expected


def test_failed_nodes_are_remembered_where_every_submit_looks(tmp_path: Path) -> None:
    """A point of a sweep lies deeper than other runs; the nodes that it fails on are everybody's."""
    site = replace(make_site(run_dir=Path("/shared/runs/sweep-1/points/3")), runs_dir=Path("/shared/runs"))
    assert "readonly KIT_AVOID_DIR=/shared/runs/.avoid\n" in plan_of(write_job(tmp_path, JOB), site=site).text_of(
        "batch.sh"
    )


def test_the_lead_is_shorter_than_the_time_limit(tmp_path: Path) -> None:
    """USR1 would come before the ranks; a default is shortened, what the user wrote is refused."""
    job = write_job(tmp_path, JOB)
    leads = {
        time: [option for option in header(plan_of(job, overrides=(f"resources.time={time}",))) if "signal" in option]
        for time in ("00:02:00", "1", "00:03:00", "0")
    }
    assert leads == {
        "00:02:00": ["--signal=B:USR1@30"],
        "1": ["--signal=B:USR1@15"],
        "00:03:00": ["--signal=B:USR1@120"],
        "0": ["--signal=B:USR1@120"],
    }
    with pytest.raises(
        ConfigError, match=r"slurm.lead: a lead of 180 s is not shorter than the time limit, resources.time = 00:03:00"
    ):
        plan_of(job, overrides=("resources.time=00:03:00", "slurm.lead=180"))


def test_without_a_time_limit_the_lead_is_what_it_is(tmp_path: Path) -> None:
    """Of a cluster that gives jobs none."""
    job = write_job(tmp_path, JOB)
    (tmp_path / "clusters").mkdir()
    local = (REPO / "clusters" / "local.toml").read_text()
    (tmp_path / "clusters" / "local.toml").write_text(local.replace('time = "00:30:00"\n', ""))
    made = plan_of(job)
    assert not any(option.startswith(("--time", "--signal")) for option in header(made))
    assert "readonly KIT_LEAD=120\n" in made.text_of("batch.sh")


def test_a_clusters_stage_holds_for_jobs_that_name_none(tmp_path: Path) -> None:
    clusters = tmp_path / "clusters"
    clusters.mkdir()
    text = (REPO / "clusters" / "pod.toml").read_text()
    (clusters / "mine.toml").write_text(text.replace("[container]\n", '[container]\nstage = "chain"\n'))
    job = write_job(tmp_path, JOB)
    for override, wanted in (
        ("image='train-cpu'", "chain"),
        ("image={name='train-cpu', cap_gb=9}", "chain"),
        ("image={name='train-cpu', stage='shared'}", None),
        ("image={name='train-cpu', stage='node'}", "node"),
    ):
        made = plan_of(job, cluster="mine", overrides=(override,))
        assert (made.job.staged.stage if made.job.staged else None) == wanted, override
        assert ("KIT_CHAINED_IMAGE" in made.text_of("batch.sh")) == (wanted == "chain")
    one = plan_of(job, cluster="mine", overrides=("image='train-cpu'", "resources.nodes=1"))
    assert "KIT_CHAINED_IMAGE" not in one.text_of("batch.sh"), "one node has nobody to send to"


def test_a_shell_comes_after_the_checks_of_a_batch_job(tmp_path: Path) -> None:
    """It started from whatever bytes the node had."""
    job = write_job(tmp_path, JOB + "[preflight]\nenabled = false\n")
    made = plan_of(job, cluster="pod", overrides=('image={name="train-cpu", stage="node"}',))
    stage, check = made.shell_checks
    assert any(word.endswith("/bin/stage.sh") for word in stage)
    pin = made.decisions.pin
    assert pin.lock is not None
    assert pin.lock.sha256 in stage, "stage.sh checks the copy"
    assert check[-2:] == (f"image={pin.image}", "size=4096"), "the store's file is not read by every node"
    shared = plan_of(job, cluster="pod").shell_checks[-1]
    assert shared[-2:] == ("size=4096", f"sha256={pin.lock.sha256}")
    assert f"--nodes={made.allocation.nodes}" in check, "--attach may go to any of them"
    assert not any(word.startswith("--output") for word in check), "what is wrong is shown on the terminal"
    assert plan_of(job, cluster="pod", site=make_site(containers=False)).shell_checks == ()
