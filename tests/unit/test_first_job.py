"""A first job of a folder: what `kit init` writes runs, and its next lines work; what a submit offers when something is missing."""

from __future__ import annotations

import os
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kit import config, data_folders, shell
from kit.cli import init, offers
from kit.errors import EngineError, LostBaseError, NotBuiltError, UsageError
from kit.images import image_lock
from kit.images.build import build
from kit.slurm import embedded
from kit.slurm.embedded import gpus
from kit.workflow import first_job, own_packages, what_is_missing
from tests.support import REPO
from tests.terminal import terminal

LOCK = REPO / "containers" / "train-cpu" / "image.lock"


@pytest.fixture(autouse=True)
def _own_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No cluster is up, and the store is empty."""
    for name in ("CONFIG", "DATA", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / "user" / name.lower()))
    monkeypatch.delenv("KIT_STORE", raising=False)
    monkeypatch.delenv("KIT_CLUSTER", raising=False)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a program and a data folder."""
    folder = tmp_path / "My_Model"
    (folder / "data").mkdir(parents=True)
    (folder / "train.py").write_text("print(1)\n")
    return folder


def kit(*words: str, cwd: Path) -> shell.Completed:
    return shell.run([sys.executable, "-m", "kit", *words], cwd=cwd, check=False)


def job_of(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "job.toml").read_text())


def test_a_first_job_has_the_folders_program_data_and_limits(project: Path) -> None:
    (project / ".gitignore").write_text("*.pt\n/runs")
    done = kit("init", cwd=project)
    assert done.returncode == 0, done.stderr
    job = job_of(project)
    assert (job["name"], job["script"], job["image"]) == ("my-model", "train.py", "train-cpu")
    assert job["mounts"] == [{"source": "data", "target": "/workspace/data", "flags": ["ro"]}]
    assert job["resources"] == {"nodes": 2, "gpus_per_node": 2, "time": "00:30:00"}
    assert (project / ".gitignore").read_text() == "*.pt\n/runs\nreports/\n"
    assert kit("init", "--force", cwd=project).stderr.count(".gitignore") == 0, "the lines are there"
    # What a container sees at this place is the folder itself: the snapshot has no copy of it.
    made = config.load_job(project / "job.toml", cluster=None)
    assert made.mounts[0].target == "/workspace/data"


@pytest.mark.parametrize(
    ("files", "found"),
    [
        (("train.py", "main.py", "model.py"), "train.py"),
        (("main.py", "model.py"), "main.py"),
        (("fit.py",), "fit.py"),
        (("a.py", "b.py"), None),
        ((), None),
    ],
)
def test_the_program_of_a_folder(tmp_path: Path, files: tuple[str, ...], found: str | None) -> None:
    for name in files:
        (tmp_path / name).touch()
    assert first_job.own_program(tmp_path) == (Path(found) if found else None)


# The lock of train-cpu names numpy and torch, at these versions.
def held(name: str) -> str:
    return image_lock.read_lock(LOCK).packages.pip[name].partition("+")[0]


@pytest.mark.parametrize(
    ("lines", "image"),
    [
        ("numpy>=1.26\ntorch\n", "train-cpu"),
        ("# nothing\n\n", "train-cpu"),
        ("numpy==1.0.0\n", "my-model"),
        ("einops\n", "my-model"),
    ],
)
def test_packages_that_the_base_lacks_become_an_image(project: Path, lines: str, image: str) -> None:
    (project / "requirements.txt").write_text(lines)
    done = kit("init", cwd=project)
    assert done.returncode == 0, done.stderr
    assert job_of(project)["image"] == image
    folder = project / "containers" / "my-model"
    assert folder.exists() == (image == "my-model")
    if folder.exists():
        assert (folder / "requirements.txt").read_text() == lines
        assert "kit build-image my-model" in done.stderr


def test_the_version_that_the_base_has_is_no_reason_for_an_image(project: Path) -> None:
    (project / "requirements.txt").write_text(f"torch=={held('torch')}\nnumpy=={held('numpy')}\n")
    assert kit("init", cwd=project).returncode == 0
    assert job_of(project)["image"] == "train-cpu"


def test_a_pyproject_names_packages_and_what_is_left_out_is_said(project: Path) -> None:
    (project / "pyproject.toml").write_text('[project]\ndependencies = ["einops>=0.7", "numpy"]\n')
    needs = own_packages.read_needs(project)
    assert needs is not None
    assert (needs.source, needs.lines) == ("pyproject.toml", ("einops>=0.7", "numpy"))
    (project / "requirements.txt").write_text("einops  # of tensors\n-e .\ngit+https://x/y\n--hash=sha256:00\n")
    done = kit("init", cwd=project)
    assert (project / "containers/my-model/requirements.txt").read_text() == "einops\n"
    assert done.stderr.count("is not in the image") == 3
    (project / "pyproject.toml").write_text("[project\n")
    (project / "requirements.txt").unlink()
    with pytest.raises(UsageError, match=r"pyproject\.toml"):
        own_packages.read_needs(project)


def test_an_image_that_was_named_is_not_made(project: Path) -> None:
    (project / "requirements.txt").write_text("einops\n")
    done = kit("init", "--image", "train-cup", cwd=project)
    assert (done.returncode, "did you mean 'train-cpu'?" in done.stderr) == (3, True)
    assert not (project / "containers").exists()


def test_a_refused_job_leaves_no_image(project: Path) -> None:
    (project / "requirements.txt").write_text("einops\n")
    (project / "clusters").mkdir()
    (project / "clusters" / "odd.toml").write_text("[node]\ncpus = 0\n")
    assert kit("init", "-c", "odd", cwd=project).returncode == 3
    assert sorted(path.name for path in project.iterdir()) == ["clusters", "data", "requirements.txt", "train.py"]


@pytest.mark.parametrize(("real", "shape"), [(0, (2, 2)), (1, (1, 1)), (2, (2, 1)), (8, (2, 4))])
def test_the_gpus_of_this_machine(
    project: Path, monkeypatch: pytest.MonkeyPatch, real: int, shape: tuple[int, int]
) -> None:
    monkeypatch.setattr(gpus, "real_devices", lambda: tuple(Path(f"/dev/nvidia{n}") for n in range(real)))
    made = first_job.table(_asked(project, "local"))["resources"]
    assert (made["nodes"], made["gpus_per_node"]) == shape


def _asked(folder: Path, cluster: str, *, containers: bool = True) -> first_job.FirstJob:
    return first_job.FirstJob(
        containers=containers,
        folder=folder,
        script=Path("train.py"),
        launcher=data_folders.find("launchers", "ddp", project_dir=folder),
        image="train-cpu",
        cluster=config.cluster_entry(cluster, folder),
    )


def test_the_shape_and_the_limit_of_a_cluster(project: Path) -> None:
    (project / "clusters").mkdir()
    (project / "clusters" / "pod2.toml").write_text(
        'default_qos = "short"\n[node]\ncpus = 8\ngpus = 8\n[qos.short]\ntime = "00:10:00"\nmax_gpus_per_node = 4\n'
    )
    assert first_job.table(_asked(project, "pod2", containers=False))["resources"] == {
        "nodes": 1,
        "gpus_per_node": 4,
        "time": "00:10:00",
    }
    assert first_job.table(_asked(project, "pod", containers=False))["resources"]["gpus_per_node"] == 8


def test_an_image_with_torch_for_cpus_asks_for_no_gpus(project: Path) -> None:
    """The job would be refused. The GPUs of the embedded cluster are placeholders, so they are asked for."""
    assert first_job.table(_asked(project, "pod"))["resources"]["gpus_per_node"] == 0
    assert first_job.table(_asked(project, "local"))["resources"]["gpus_per_node"] == 2
    done = kit("init", "--cluster", "pod", cwd=project)
    assert done.returncode == 0, done.stderr
    assert "the job asks for no GPUs: train-cpu has torch for CPUs" in done.stderr
    assert job_of(project)["resources"]["gpus_per_node"] == 0


def test_the_next_lines_build_an_image_that_has_a_lock_and_no_file(project: Path) -> None:
    """The lock of train-cpu comes with the kit, so that the lock alone does not tell whether the image is there."""
    steps = init._next_steps(project, "train-cpu", "local")
    assert steps == ["kit cluster up", "kit build-image train-cpu", f"kit submit {project} --follow"]
    stored = data_folders.image_store() / "sha256" / f"{image_lock.read_lock(LOCK).sha256}.sqsh"
    stored.parent.mkdir(parents=True)
    stored.touch()
    assert "kit build-image train-cpu" not in init._next_steps(project, "train-cpu", "local")


def test_a_submit_asks_on_a_terminal_and_goes_on_without_what_is_refused(project: Path) -> None:
    assert kit("init", cwd=project).returncode == 0
    with terminal([sys.executable, "-m", "kit", "submit"], cwd=project, env={**os.environ}) as screen:
        screen.expect("cluster 'local' is not up. Start it")
        screen.type("n\n")
        screen.expect("Image 'train-cpu' is not built. Build it")
        screen.type("n\n")
        screen.expect("cluster 'local' is not up\r?\n.*try: run 'kit cluster up'")
        assert screen.code() == 6
    done = kit("submit", cwd=project)
    assert (done.returncode, "Start it" in done.stderr) == (6, False), "without a terminal nothing is asked"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was built and started, in this order."""
    found: list[str] = []

    def built(order: build.BuildOrder, report: object) -> None:
        found.append(order.name)

    monkeypatch.setattr(build, "build", built)
    monkeypatch.setattr(embedded, "up", lambda name, say: found.append(f"cluster {name}"))
    return found


def test_yes_starts_the_cluster_before_the_plan_and_builds_each_image_once(project: Path, made: list[str]) -> None:
    """A cluster that is started decides the runtime, so the plan comes after it; an image without a lock comes before it."""
    place = what_is_missing.JobPlace(None, project)
    jobs: Any = ()

    def plan() -> Any:
        made.append("plan")
        if made.count("plan") == 1:
            error = NotBuiltError("no lock")
            error.image = "own"
            raise error
        return jobs

    assert offers.made_ready(plan, place, yes=True) is jobs
    assert made == ["cluster local", "plan", "own", "plan"]


def test_without_consent_nothing_is_made(project: Path, made: list[str]) -> None:
    with pytest.raises(NotBuiltError):
        offers.made_ready(_unbuilt, what_is_missing.JobPlace(None, project), yes=False)
    assert made == []


def test_an_image_that_is_still_not_built_ends_the_command(project: Path, made: list[str]) -> None:
    with pytest.raises(NotBuiltError):
        offers.made_ready(_unbuilt, what_is_missing.JobPlace("pod", project), yes=True)
    assert made == ["own"]


@pytest.mark.parametrize(("yes", "agreed"), [(False, True), (False, False), (True, None)])
def test_a_lock_whose_base_is_lost_is_written_anew_only_after_a_question(
    project: Path, monkeypatch: pytest.MonkeyPatch, yes: bool, agreed: bool | None
) -> None:
    """Debian's mirror drops a version after each point release: no newcomer could build the kit's own images."""
    tried, asked = list[tuple[str, bool]](), list[str]()

    def built(order: build.BuildOrder, report: object) -> None:
        tried.append((order.name, order.relock))
        if ("train-cpu", True) not in tried:
            raise LostBaseError("train-cpu", "the mirror no longer has bash 5.2", hint="kit build-image --relock")

    def confirm(question: str, **_: object) -> bool:
        asked.append(question)
        return "Build it, which" in question or bool(agreed)

    monkeypatch.setattr(build, "build", built)
    monkeypatch.setattr(offers, "on_terminal", lambda: agreed is not None)
    monkeypatch.setattr("typer.confirm", confirm)
    place = what_is_missing.JobPlace("pod", project)
    with pytest.raises(NotBuiltError if agreed else LostBaseError):
        offers.made_ready(_unbuilt, place, yes=yes)
    assert tried == [("own", False), ("train-cpu", True), ("own", False)][: 3 if agreed else 1]
    written = project / "containers/train-cpu/image.lock"
    assert asked[1:] == ([] if yes else [f"Build it with what there is today, and write {written}?"])


def test_without_an_engine_the_line_without_a_container_is_named(
    project: Path, monkeypatch: pytest.MonkeyPatch, made: list[str]
) -> None:
    def refused(*_: object) -> None:
        raise EngineError("no container engine answers", hint="start Docker")

    monkeypatch.setattr(build, "build", refused)
    monkeypatch.setattr(sys, "argv", ["kit", "run", "train.py", "--yes", "--", "--lr", "0.1"])
    with pytest.raises(EngineError) as caught:
        offers.made_ready(_unbuilt, what_is_missing.JobPlace("pod", project), yes=True)
    line = "kit run --no-container --set python=/path/to/venv/bin/python train.py --yes -- --lr 0.1"
    assert caught.value.hint.startswith("start Docker; or ")
    assert caught.value.hint.endswith(line)
    assert made == []


def _unbuilt() -> Any:
    error = NotBuiltError("no lock")
    error.image = "own"
    raise error


def test_images_without_a_file_are_those_of_builds(tmp_path: Path) -> None:
    lock = image_lock.read_lock(LOCK)
    imported = lock.model_copy(update={"source": "docker://x", "name": "other", "sha256": "0" * 64})
    pins = [SimpleNamespace(stored=f"{tmp_path}/sha256/x.sqsh", lock=one) for one in (lock, imported, None)]
    plan = SimpleNamespace(decisions=SimpleNamespace(pins=SimpleNamespace(distinct=pins)))
    here: Any = SimpleNamespace(plan=plan, host=SimpleNamespace(shares_files=True), earlier=None)
    there: Any = SimpleNamespace(plan=plan, host=SimpleNamespace(shares_files=False), earlier=None)
    assert what_is_missing.images([here, there]) == {"train-cpu": tmp_path}
