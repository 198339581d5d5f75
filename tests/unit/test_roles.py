"""[roles]: who runs where, and what is refused."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from kit import config
from kit.errors import ConfigError
from kit.planning.plan import Plan
from tests.support import REPO, make_site, plan_of, write_job

HEAD = 'name = "rl"\nlauncher = "roles"\nimage = "train-cpu"\n'
SERVER = '[roles.server]\ncommand = ["serve"]\nports = ["http"]\npolicy = "service"\nready = { tcp = "http" }\n'
TRAINER = '[roles.trainer]\nscript = "train.py"\nafter = ["server"]\n'


def plan_roles(folder: Path, text: str) -> Plan:
    return plan_of(write_job(folder, HEAD + text), site=make_site())


def facts(plan: Plan, name: str) -> dict[str, str]:
    """A role's constants in batch.sh."""
    text = next(t for t in plan.text_of("batch.sh").split("readonly -A KIT_STEP_")[1:] if f"[name]={name}\n" in t)
    lines = text.split("=(\n", 1)[1].split("\n)", 1)[0].splitlines()
    pairs = (line.strip().split("=", 1) for line in lines)
    return {
        key.strip("[]"): "".join(shlex.split(value)) if " " not in value else shlex.split(value)[0]
        for key, value in pairs
    }


def test_each_role_gets_nodes_of_its_own_in_the_order_of_the_file(tmp_path: Path) -> None:
    made = plan_roles(tmp_path, SERVER + "nodes = 2\n" + TRAINER + 'nodes = 3\nshape = "torchrun"\ngpus = [0, 1]\n')
    assert [(r.name, r.first, r.nodes, r.ranks_per_node, r.tasks_per_node) for r in made.roles] == [
        ("server", 0, 2, 1, 1),
        ("trainer", 2, 3, 2, 1),
    ]
    assert made.allocation.nodes == 5
    assert made.world_sizes == {"trainer": 6}, "the service has none"
    assert "#SBATCH --nodes=5" in made.text_of("batch.sh")
    assert not any(role.shared for role in made.roles)


def test_the_rest_is_what_no_other_role_has(tmp_path: Path) -> None:
    made = plan_roles(tmp_path, "[resources]\nnodes = 8\n" + SERVER + TRAINER + 'nodes = "rest"\n')
    assert [(r.first, r.nodes) for r in made.roles] == [(0, 1), (1, 7)]


def test_another_number_of_nodes_than_the_roles_come_to_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        plan_roles(tmp_path, "[resources]\nnodes = 4\n" + SERVER + TRAINER)
    assert "resources.nodes: 4 contradicts [roles], which needs 2" in str(error.value.faults[0])
    job_file = write_job(tmp_path, HEAD + SERVER + TRAINER)
    assert plan_of(job_file, overrides=("resources.nodes=2",)).allocation.nodes == 2
    with pytest.raises(ConfigError, match="3 contradicts"):
        plan_of(job_file, overrides=("resources.nodes=3",))


def test_a_default_number_of_nodes_gives_way_to_the_roles(tmp_path: Path) -> None:
    job_file = write_job(tmp_path, HEAD + SERVER + TRAINER)
    text = (REPO / "clusters" / "local.toml").read_text()
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "eight.toml").write_text(
        text.replace("[defaults.resources]\n", "[defaults.resources]\nnodes = 8\n")
    )
    assert config.load_job(job_file, cluster="eight").job.resources.nodes == 8
    assert plan_of(job_file, cluster="eight").allocation.nodes == 2


def test_roles_that_share_nodes_share_their_cpus(tmp_path: Path) -> None:
    made = plan_roles(tmp_path, TRAINER + "nodes = 2\nranks_per_node = 3\n" + SERVER + 'shares = "trainer"\n')
    server = next(r for r in made.roles if r.name == "server")
    trainer = next(r for r in made.roles if r.name == "trainer")
    assert (server.first, server.nodes) == (0, 2)
    assert server.shared
    assert server.cpus_per_rank == trainer.cpus_per_rank == made.allocation.cpus_per_node // 4
    step = made.text_of("batch.sh").split("KIT_STEP_0_ARGV=(")[1].split("\n)")[0]
    assert "--overlap" in step


@pytest.mark.parametrize(("shape", "tasks", "of_task"), [("srun", 2, 4), ("torchrun", 1, 8)])
def test_the_cpus_of_a_node_go_to_a_roles_tasks_and_ranks(tmp_path: Path, shape: str, tasks: int, of_task: int) -> None:
    (role,) = plan_roles(tmp_path, f'{TRAINER.replace("after", "#")}shape = "{shape}"\nranks_per_node = 2\n').roles
    assert (role.ranks_per_node, role.tasks_per_node) == (2, tasks)
    assert (role.cpus_per_task, role.cpus_per_rank) == (of_task, 4)


def test_a_rank_has_a_cpu_though_there_are_more_ranks(tmp_path: Path) -> None:
    text = f'{TRAINER.replace("after", "#")}shape = "torchrun"\ngpus = [0, 1]\n[resources]\ncpus_per_node = 1\nranks_per_node = 1\n'
    (role,) = plan_roles(tmp_path, text).roles
    assert (role.ranks_per_node, role.cpus_per_rank) == (2, 1)


def test_a_task_has_a_cpu_though_there_are_more_tasks(tmp_path: Path) -> None:
    text = f'{TRAINER.replace("after", "#")}shape = "srun"\nranks_per_node = 3\n'
    text += "[resources]\ncpus_per_node = 2\nranks_per_node = 1\n"
    (role,) = plan_roles(tmp_path, text).roles
    assert (role.tasks_per_node, role.cpus_per_task, role.cpus_per_rank) == (3, 1, 1)


def test_torchrun_without_gpus_starts_one_rank_on_a_node(tmp_path: Path) -> None:
    text = f'{TRAINER.replace("after", "#")}shape = "torchrun"\n[resources]\ngpus_per_node = 0\nnodes = 2\n'
    (role,) = plan_roles(tmp_path, text.replace("[resources]", "nodes = 2\n[resources]")).roles
    assert (role.ranks_per_node, role.tasks_per_node, role.world_size) == (1, 1, 2)


def test_rank_args_are_for_a_role_without_a_program_of_its_own(tmp_path: Path) -> None:
    args, own = '[rank_args]\n--rank = "RANK"\n', '[roles.one]\ncommand = ["x"]\n[roles.two]\nscript = "y.py"\n'
    with pytest.raises(ConfigError, match="rank_args: no role starts the job's program"):
        plan_roles(tmp_path, args + own)
    with pytest.raises(ConfigError) as error:
        plan_roles(tmp_path, args + own + "[roles.three]\ngpus = [0, 9]\n")
    assert [fault.key for fault in error.value.faults] == ["roles.three.gpus"], "and no word of rank_args"


def test_a_role_may_share_some_nodes_of_another(tmp_path: Path) -> None:
    made = plan_roles(tmp_path, TRAINER + "nodes = 3\n" + SERVER + 'shares = "trainer"\nnodes = 1\n')
    assert [(r.name, r.first, r.nodes, r.shared) for r in made.roles] == [
        ("trainer", 0, 3, True),
        ("server", 0, 1, True),
    ]
    assert made.allocation.nodes == 3
    too_many = TRAINER + "nodes = 3\n" + SERVER + 'shares = "trainer"\nnodes = 4\n'
    with pytest.raises(ConfigError, match=r"roles.server.nodes: 4 is more than role 'trainer' has: 3"):
        plan_roles(tmp_path, too_many)


def test_what_the_batch_script_knows_of_a_role(tmp_path: Path) -> None:
    text = SERVER.replace('{ tcp = "http" }', '{ http = "http", path = "/health", timeout_s = 7, health = true }')
    made = plan_roles(tmp_path, text + "restart = 4\n" + TRAINER)
    known = facts(made, "server")
    assert known["ready"] == "http http /health"
    assert (known["policy"], known["restart"], known["ready_timeout"], known["health"]) == ("service", "4", "7", "1")
    assert facts(made, "trainer")["after"] == "server"
    assert "KIT_SERVICE=1" in made.text_of("batch.sh")
    assert {"roles/server/worker.sh", "roles/trainer/program.sh", "roles/server/image-env.sh"} <= {
        f.name for f in made.files
    }
    assert {"logs/server", "logs/trainer"} <= set(made.folders)


def test_roles_that_differ_in_their_place_alone_share_their_scripts(tmp_path: Path) -> None:
    text = "".join(
        f'[roles.worker-{i}]\ncommand = ["work", "{{self.index}}"]\ngpus = [{i}]\npolicy = "replica"\n'
        + ('shares = "worker-0"\n' if i else "")
        for i in range(3)
    )
    made = plan_roles(tmp_path, text + '[roles.other]\ncommand = ["work"]\nshares = "worker-0"\n')
    assert [(r.name, r.scripts, r.index) for r in made.roles] == [
        ("worker-0", "worker-0", 0),
        ("worker-1", "worker-0", 1),
        ("worker-2", "worker-0", 2),
        ("other", "other", 0),
    ]
    assert [f.name for f in made.files if f.name.endswith("worker.sh")] == [
        "roles/worker-0/worker.sh",
        "roles/other/worker.sh",
    ]
    assert "make_step_0 2 worker-2 0 2 2\n" in made.text_of("batch.sh")


def test_roles_with_fewer_cpus_count_with_those_of_their_program(tmp_path: Path) -> None:
    """A rank beside other roles has fewer CPUs, so other scripts; `{self.index}` stays one of a kind."""
    worker = 'command = ["work", "{self.index}"]\npolicy = "replica"\n'
    text = f'[roles.a]\n{worker}[roles.b]\n{worker}[roles.other]\ncommand = ["rest"]\nshares = "a"\n'
    made = plan_roles(tmp_path, text)
    assert [(r.name, r.scripts, r.index) for r in made.roles] == [("a", "a", 0), ("b", "b", 1), ("other", "other", 0)]


def test_a_role_has_its_own_program_arguments_and_environment(tmp_path: Path) -> None:
    text = '[roles.one]\ncommand = ["tool", "{run}/x", "{workspace}/y"]\nargs = ["a b"]\nenv = { A = "1" }\n'
    program = plan_roles(tmp_path, 'env = { A = "0", B = "2" }\n' + text).text_of("roles/one/program.sh")
    assert "KIT_PROGRAM=(\n    tool\n    /kit/run/x\n    /workspace/y\n    'a b'\n)" in program
    assert "A=1\n" in program
    assert "B=2\n" in program


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TRAINER, r"roles.trainer.after: there is no other role 'server'"),
        (SERVER + TRAINER.replace('"server"', '"sever"'), r"after = \[\"server\"\]"),
        (SERVER + TRAINER + 'shares = "serve"\n', r"roles.trainer.shares: there is no other role 'serve'"),
        (SERVER + 'after = ["trainer"]\n' + TRAINER, r"server -> trainer -> server|trainer -> server -> trainer"),
        (SERVER, r"this job would never be done"),
        (SERVER + TRAINER + "gpus = [0, 9]\n", r"roles.trainer.gpus"),
        (SERVER + TRAINER + 'args = ["{server.port.grpc}"]\n', r"a port that role 'server' does not have"),
        (SERVER + TRAINER + 'nodes = "rest"\n', r"no node is left for nodes = 'rest'"),
        (SERVER + TRAINER + 'nodes = "rest"\nshares = "server"\n', r"a number of the other role's nodes"),
        (TRAINER.replace('after = ["server"]', 'ready = { http = "web" }'), r"the role has no port 'web'"),
        (TRAINER.replace('after = ["server"]', "ready = { }"), r"one of tcp, http and file"),
        ('[roles.self]\ncommand = ["x"]\n', r"the name is taken"),
        ('[roles.kit-monitor]\ncommand = ["x"]\n', r"kit's own steps"),
        ('[roles.one]\ncommand = ["x"]\nscript = "y.py"\n', r"a script or a command, not both"),
        ('[roles.one]\ncommand = ["x"]\nimage = "absent"\n', r"absent"),
        ('[roles.one]\ncomand = ["x"]\n', r"command"),
        (
            '[rank_args]\n--rank = "RANK"\n[roles.one]\ncommand = ["x"]\n',
            r"rank_args: no role starts the job.s program",
        ),
    ],
)
def test_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        plan_roles(tmp_path, text)


@pytest.mark.parametrize(("asked", "hint"), [("trainr", "trainer"), ("zzz", "server")])
def test_a_role_that_is_not_there_has_the_nearest_as_a_hint_or_the_first(tmp_path: Path, asked: str, hint: str) -> None:
    third = f'[roles.third]\ncommand = ["x"]\nshares = "{asked}"\nnodes = 1\n'
    with pytest.raises(ConfigError) as error:
        plan_roles(tmp_path, SERVER + TRAINER + third)
    (fault,) = error.value.faults
    assert (fault.key, fault.hint) == ("roles.third.shares", f'shares = "{hint}"')


def test_what_only_looks_like_a_placeholder_is_left(tmp_path: Path) -> None:
    words = ["{nobody.port.web}", "{server.nodes}", "{server.port.http}"]
    plan = plan_roles(tmp_path, SERVER + TRAINER + f"args = {json.dumps(words)}\n")
    written = "".join(file.text for file in plan.files)
    assert [word for word in words if word not in written] == []


def test_a_role_may_share_all_nodes_of_another_and_no_more(tmp_path: Path) -> None:
    shared = TRAINER + 'shares = "server"\nnodes = '
    made = plan_roles(tmp_path, SERVER + "nodes = 2\n" + shared + "2\n")
    assert [(role.first, role.nodes) for role in made.roles] == [(0, 2), (0, 2)]
    with pytest.raises(ConfigError, match="3 is more than role 'server' has: 2"):
        plan_roles(tmp_path, SERVER + "nodes = 2\n" + shared + "3\n")
