"""Every command line that the kit writes for TorchTitan, given to the parsers of its releases: the values are what was meant.

TORCHTITAN=<checkout>:<checkout> adds the configurations that checkouts publish: pip's packages have none of v0.1 and v0.2.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kit.errors import ConfigError
from kit.submission.single_sbatch_file import Asked, single_file
from kit.sweeps.prepare import prepare_sweep
from tests.foreign.conftest import PYTHON as FOREIGN_PYTHON
from tests.foreign.conftest import Judge, released
from tests.support import REPO
from tests.unit.test_generate import CLUSTER, embedded, job_arguments

RELEASES = released("torchtitan")
CHECKOUTS = [Path(place) for place in os.environ.get("TORCHTITAN", "").split(":") if place]
TOML = [place for place in RELEASES if not place.name.endswith("-0.3.0")]
DILOCO = [place for place in TOML if not place.name.endswith("-0.1.0")]
PYTHON = [place for place in RELEASES if place.name.endswith("-0.3.0")]
EXAMPLE = REPO / "examples" / "torchtitan-sweep"

pytestmark = pytest.mark.skipif(not RELEASES, reason="no release of TorchTitan is here: make foreign")
Ask = Callable[..., dict[str, Any]]
Original = Callable[[Path, list[str]], dict[str, Any]]


def launcher() -> ModuleType:
    """launchers/torchtitan/run.py."""
    spec = importlib.util.spec_from_file_location("titan_run", REPO / "launchers" / "torchtitan" / "run.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["titan_run"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def ask(judges: dict[Path, Judge], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """What a release understands of words and of what run.py adds to them in such an environment."""
    monkeypatch.setenv("KIT_RUN_DIR", str(tmp_path))

    def put(place: Path, words: list[str], **env: str) -> dict[str, Any]:
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        run = launcher()
        found = run.release_of(place / "torchtitan")
        if place not in judges:
            judges[place] = Judge("torchtitan.py", "check", str(place))
        answer: dict[str, Any] = judges[place].ask([*run.added(found, words), *words])
        return answer

    return put


@pytest.fixture
def original(judges: dict[Path, Judge]) -> Original:
    """What a release makes of words that the kit has no part in."""

    def put(place: Path, words: list[str]) -> dict[str, Any]:
        if place not in judges:
            judges[place] = Judge("torchtitan.py", "check", str(place))
        return values(judges[place].ask(words))

    return put


def values(answer: dict[str, Any]) -> dict[str, Any]:
    assert "refused" not in answer, answer
    found: dict[str, Any] = answer["values"]
    return found


def written(text: str, folder: Path, program: str) -> list[str]:
    """The words of a single file's program, whose configuration is now in the run folder."""
    (folder / "config.toml").write_text(embedded(text, "config.toml"), encoding="utf-8")
    return [word.strip("'") for word in job_arguments(text, program)]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / ".git").mkdir()
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "here.toml").write_text(CLUSTER)
    monkeypatch.chdir(tmp_path)
    return tmp_path


FILE = '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nsteps = 70\nlocal_batch_size = 2\n'


@pytest.mark.parametrize("place", TOML, ids=lambda place: place.name)
@pytest.mark.parametrize(
    "case",
    [
        (
            {"use_ddp": True, "nodes": 4, "extra_args": "--training.steps 9"},
            "program.sh",
            {},
            {"training.steps": 9, "parallelism.data_parallel_replicate_degree": 16}
            | {"parallelism.data_parallel_shard_degree": 1, "model.flavor": "8B", "training.local_batch_size": 2},
        ),
        (
            {"nodes": 2, "replicas_per_node": 2},
            "roles/replica-0/program.sh",
            {"REPLICA_GROUP_ID": "1", "NUM_REPLICA_GROUPS": "4"},
            {"fault_tolerance.enable": True, "fault_tolerance.replica_id": 1, "fault_tolerance.group_size": 4}
            | {"fault_tolerance.min_replica_size": 2, "training.steps": 70},
        ),
        (
            {"nodes": 4, "nodes_per_replica": 2},
            "roles/replica-0/program.sh",
            {"REPLICA_GROUP_ID": "0", "NUM_REPLICA_GROUPS": "2"},
            {"fault_tolerance.enable": True, "fault_tolerance.replica_id": 0, "fault_tolerance.group_size": 2},
        ),
    ],
    ids=["ddp", "groups in nodes", "groups over nodes"],
)
def test_generate(
    place: Path, case: tuple[dict[str, Any], str, dict[str, str], dict[str, Any]], project: Path, ask: Ask
) -> None:
    options, program, env, meant = case
    (project / "llama3.toml").write_text(FILE)
    text = single_file(Asked(config_file=Path("llama3.toml"), **options), cluster="here", containers=False)
    found = values(ask(place, written(text, project, program), KIT_SEED="77", **env))
    seed = "debug.seed" if place.name[-5:] in {"0.2.1", "0.2.2"} else "training.seed"
    meant = {**meant, seed: 77, "job.dump_folder": str(project / "outputs")}
    assert {key: found[key] for key in meant} == meant


@pytest.mark.parametrize("place", DILOCO, ids=lambda place: place.name)
def test_every_point_of_the_sweep(place: Path, ask: Ask) -> None:
    """v0.1.0 and v0.2.2 refused all of them, and no point had its model."""
    made = prepare_sweep(EXAMPLE / "job.toml", cluster="infiniband", containers=False)
    assert len(made.runs) == 18
    for point, run in zip(made.points, made.runs, strict=True):
        words = [word.replace("/workspace/", f"{EXAMPLE}/") for word in run.plan.job.args]
        found = values(ask(place, words, REPLICA_GROUP_ID="3", NUM_REPLICA_GROUPS="4"))
        given = dict(pairwise(words))
        assert found["model.flavor"] == point.values["var.model"]
        assert found["training.global_batch_size"] == point.values["var.global_batch"]
        assert found["fault_tolerance.semi_sync_method"] == "diloco"
        assert found["fault_tolerance.should_quantize"] is (point.name == "quantised")
        assert found["fault_tolerance.num_fragments"] == (4 if point.name == "streaming" else 1)
        assert found["fault_tolerance.replica_id"] == 3
        for option in ("training.steps", "checkpoint.interval", "optimizer.weight_decay", "training.local_batch_size"):
            assert found[option] == pytest.approx(float(given[f"--{option}"])), option


@pytest.mark.parametrize("place", DILOCO, ids=lambda place: place.name)
def test_the_sweeps_models_are_flavours(place: Path) -> None:
    program = (
        "import sys; sys.path[:0] = sys.argv[1:]\nimport ladder\nfrom torchtitan.models.llama3 import llama3_args as known\n"
        "print(*sorted(set(ladder.SHAPES) & set(known)), known['1b'].dim)"
    )
    argv = [FOREIGN_PYTHON, "-c", program, str(place), str(EXAMPLE)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1:] == ["160m 1b 6.9b 2048"], done.stderr[-2000:]


@pytest.mark.parametrize("place", RELEASES, ids=lambda place: place.name)
@pytest.mark.parametrize("option", ["--training.stps=3", "--parallelism.tensor_paralel_degree=2", "--training.seeed=1"])
def test_what_the_parser_refuses_the_kit_refuses_first(place: Path, option: str, ask: Ask, project: Path) -> None:
    named = ["--module", "llama3", "--config", "llama3_debugmodel"] if place in PYTHON else []
    (project / "config.toml").write_text(FILE)
    assert "refused" in ask(place, [*named, option])
    (project / "job.toml").write_text(
        f'name = "x"\nlauncher = "torchtitan"\nargs = ["{option}"]\n[env]\nPROGRAM_RELEASE = "{place.name[-5:]}"\n'
        "[resources]\nnodes = 1\n"
    )
    from kit.submission import prepare_run

    with pytest.raises(ConfigError, match="did you mean '--"):
        prepare_run.prepare_job(project / "job.toml", cluster="here", overrides=[], containers=False)


# Of each model that 0.3.0 publishes a configuration for, as its class makes it on a machine without GPUs.
PUBLISHED = {
    # llama3_405b imports torchao as it is made.
    "llama3": ["llama3_debugmodel", "llama3_8b", "llama3_70b"],
    "qwen3": ["qwen3_debugmodel", "qwen3_0_6b", "qwen3_1_7b", "qwen3_14b", "qwen3_32b"],
    "deepseek_v3": ["deepseek_v3_debugmodel", "deepseek_v3_16b", "deepseek_v3_671b"],
    "torchft.llama3": ["llama3_torchft_debugmodel"],
}


# What the kit sets: the run's folder and seed, the group's number and the count of groups, the place of the file.
OF_THE_KIT = {"job.config_file", "job.dump_folder", "dump_folder", "training.seed", "debug.seed"}
OF_GROUPS = {f"fault_tolerance.{key}" for key in ("enable", "replica_id", "group_size", "min_replica_size")}


def differing(theirs: dict[str, Any], ours: dict[str, Any]) -> set[str]:
    """Options with another value."""
    return {option for option in theirs.keys() | ours.keys() if theirs.get(option) != ours.get(option)}


@pytest.mark.parametrize("place", PYTHON, ids=lambda place: place.name)
@pytest.mark.parametrize("published", [f"{module} {name}" for module, names in PUBLISHED.items() for name in names])
def test_published_python_configurations(
    place: Path, published: str, ask: Ask, original: Original, project: Path
) -> None:
    """As a job of the launcher: every option has the value that the configuration gives it, but those of the run."""
    module, name = published.split()
    env = {"REPLICA_GROUP_ID": "1", "NUM_REPLICA_GROUPS": "2"} if "torchft" in module else {}
    words = ["--module", module, "--config", name]
    (project / "job.toml").write_text(
        f'name = "x"\nlauncher = "torchtitan"\nseed = 5\nargs = {words}\n[env]\nPROGRAM_RELEASE = "0.3.0"\n'
    )
    found = values(ask(place, job_words(project), KIT_SEED="5", **env))
    meant = {"debug.seed": 5, "dump_folder": str(project / "outputs")}
    meant |= {"fault_tolerance.replica_id": 1, "fault_tolerance.group_size": 2} if env else {}
    assert {key: found[key] for key in meant} == meant
    assert len(found) > 100
    assert differing(original(place, words), found) <= OF_THE_KIT | (OF_GROUPS if env else set())


def job_words(project: Path) -> list[str]:
    """What the program of the folder's job is started with, after its own path."""
    from kit.submission import prepare_run

    made = prepare_run.prepare_job(project / "job.toml", cluster="here", overrides=[], containers=False)
    program = made.plan.text_of("program.sh").partition("KIT_PROGRAM=(\n")[2].partition("\n)\n")[0]
    return [word for line in program.splitlines() for word in shlex.split(line)][2:]


FILES = [path for place in CHECKOUTS for path in sorted(place.glob("torchtitan/models/*/train_configs/*.toml"))]
of_a_checkout = pytest.mark.skipif(
    not FILES, reason="TORCHTITAN names no checkout: pip's packages hold no configurations of v0.2"
)


def release_of(path: Path) -> Path:
    """The release whose checkout holds a file."""
    return next(place for place in RELEASES if place.name[-5:] in path.parts[-6])


def module_of(path: Path) -> list[str]:
    """The module that trains such a model, where it has one: torchtitan.train takes its options and does not read them."""
    return ["torchtitan.models.flux.train"] if "flux" in path.parts else []


@of_a_checkout
@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parts[-6]}-{path.parts[-3]}-{path.stem}")
def test_published_files_as_jobs(path: Path, ask: Ask, original: Original, project: Path) -> None:
    """One training, as launcher torchtitan starts it: every option has the value that the file gives it, but those of the run."""
    release = release_of(path)
    (project / "theirs.toml").write_bytes(path.read_bytes())
    own = module_of(path)
    (project / "job.toml").write_text(
        'name = "x"\nlauncher = "torchtitan"\nseed = 5\nargs = ["--job.config_file", "theirs.toml"]\n'
        f'[env]\nPROGRAM_RELEASE = "{release.name[-5:]}"\n' + "".join(f'TORCHTITAN_MODULE = "{name}"\n' for name in own)
    )
    words = [word.replace("theirs.toml", str(project / "theirs.toml")) for word in job_words(project)]
    found = values(ask(release, words, KIT_SEED="5"))
    assert len(found) > 80
    assert differing(original(release, ["--job.config_file", str(path)]), found) <= OF_THE_KIT
    assert 5 in {found.get("debug.seed"), found.get("training.seed")}


@of_a_checkout
@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parts[-6]}-{path.parts[-3]}-{path.stem}")
def test_published_files(path: Path, ask: Ask, original: Original, project: Path) -> None:
    """With the settings for parallelism of its own: a file for 256 GPUs is asked for as many."""
    titan = tomllib.loads(path.read_text(encoding="utf-8"))
    split = titan.get("parallelism", {})
    known = {"tensor_parallel_degree", "pipeline_parallel_degree", "context_parallel_degree"}
    width = 1
    for key in known | {"data_parallel_replicate_degree", "data_parallel_shard_degree"}:
        width *= max(1, split.get(key, 1))
    (project / "clusters" / "here.toml").write_text(
        CLUSTER.replace("gpus = 4", "gpus = 8").replace("max_nodes = 8", "")
    )
    # Groups twice as wide as what is not sharded: TorchTitan averages them where it shards.
    each = max(1, width // 8) * (2 if split.get("data_parallel_shard_degree", -1) == -1 else 1)
    asked = Asked(config_file=path, nodes=2 * each, nodes_per_replica=each)
    env = [f"env.TORCHTITAN_MODULE={name}" for name in module_of(path)]
    release = release_of(path)
    text = single_file(
        asked, cluster="here", containers=False, overrides=[*env, f"env.PROGRAM_RELEASE={release.name[-5:]}"]
    )
    words = written(text, project, "roles/replica-0/program.sh")
    found = values(ask(release, words, REPLICA_GROUP_ID="1", NUM_REPLICA_GROUPS="2", KIT_SEED="5"))
    theirs = original(release, ["--job.config_file", str(path)])
    assert differing(theirs, found) <= OF_THE_KIT | OF_GROUPS
    assert found["fault_tolerance.group_size"] == 2


def test_the_options_are_those_of_the_parsers() -> None:
    if len(RELEASES) < 5:
        pytest.skip("not every release is here")
    argv = [FOREIGN_PYTHON, str(Path(__file__).with_name("torchtitan.py")), "options", *map(str, RELEASES)]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert (REPO / "kit" / "frameworks" / "torchtitan-options.toml").read_text(encoding="utf-8") == said
