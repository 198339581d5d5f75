"""`kit diff`: run folders that are made here, and what is said of the two."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from kit.cli.diff import recorded
from kit.comparison import as_text, metric_divergence
from kit.comparison.compare import compare
from kit.record.manifest import Git, Manifest, Workspace
from kit.schema.comparison import Comparison
from kit.schema.image import Packages
from kit.schema.set_by import SetBy
from kit.slurm import embedded
from kit.snapshots import tree_listing
from kit.snapshots.store import FOLDER, Store
from kit.snapshots.tree_listing import ListedFile
from tests.support import make_lock

JOB = {"name": "digits", "seed": 1, "args": ["--lr", "0.1"], "resources": {"nodes": 1}}
PROGRAM = "import torch\nlr = 0.1\nprint(lr)\n"
WHEN = datetime(2026, 11, 22, tzinfo=UTC)


@dataclass(frozen=True)
class Made:
    """Runs in one folder of runs."""

    runs: Path

    def run(
        self,
        name: str,
        *,
        job: Mapping[str, Any] | None = JOB,
        files: Mapping[str, bytes] | None = None,
        records: Sequence[Mapping[str, Any]] = (),
        code: int = 0,
        nodes: str = "n1",
        set_by: tuple[SetBy, ...] = (SetBy(kind="file", name="job.toml", keys=("args", "resources.nodes")),),
        **manifest: Any,
    ) -> Path:
        name = f"digits-20261122-120000-{name}"
        folder = self.runs / name
        (folder / "state").mkdir(parents=True)
        tree = self.snapshot(files if files is not None else {"train.py": PROGRAM.encode()})
        facts: dict[str, Any] = {
            "run_id": name, "job_name": "digits", "launcher": "ddp", "shape": "srun", "cluster": "nowhere",
            "runtime": "bare", "image": "", "image_name": None, "image_digest": "", "nodes": 1, "world_sizes": {"train": 1},
            "seed": 1, "job_file": "/p/job.toml", "argv": ("sbatch", f"{folder}/batch.sh"), "submitted_at": WHEN,
            "user": "ada", "git": Git(commit="c" * 40, branch="main", dirty=False), "set_by": set_by, "job_id": 7,
            "versions": {"kit": "0.1.0", "python": "3.11.7"}, "workspace": Workspace(folder="/p", tree=tree),
        }  # fmt: skip
        Manifest(**{**facts, **manifest}).write(folder / "manifest.json")
        if job is not None:
            (folder / "job.toml").write_text(tomli_w.dumps(job))
        live = manifest.get("workspace", tree) is None
        for table in () if live else ("cluster", "launcher"):
            (folder / f"{table}.toml").write_text('description = "as it was"\n')
        (folder / "batch.sh").write_text(
            f"readonly KIT_RUN_DIR={folder}\nreadonly KIT_TREE={'TREE' if live else tree}\nid={name}\n"
        )
        if records:
            (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in records))
        events = [
            {"event": "start", "job_id": "7", "restart": "0", "nodes": nodes},
            {"event": "end", "job_id": "7", "exit_code": str(code)},
        ]
        (folder / "state/events.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in events))
        return folder

    @property
    def store(self) -> Store:
        return Store(self.runs / f"{FOLDER}-0")

    def snapshot(self, files: Mapping[str, bytes]) -> str:
        source = self.runs / ".source"
        shutil.rmtree(source, ignore_errors=True)
        for path, content in files.items():
            (source / path).parent.mkdir(parents=True, exist_ok=True)
            (source / path).write_bytes(content)
        digests = [ListedFile(p, "file", hashlib.sha256(content).hexdigest()) for p, content in files.items()]
        tree = tree_listing.make_listing(digests)
        self.store.put_folder(tree, source)
        return tree.hash


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    monkeypatch.setattr(embedded, "find", lambda name: None)
    (tmp_path / "runs").mkdir()
    return Made(tmp_path / "runs")


def diff(a: Path, b: Path) -> Comparison:
    return compare(recorded(a), recorded(b))


def text(found: Comparison, *, full: bool = False) -> str:
    return "\n".join(as_text.lines(found, full=full))


def steps(losses: Sequence[float], **more: Any) -> list[dict[str, Any]]:
    return [
        {"kind": "step", "time": f"t{n}", "restart": 0, "step": n, "loss": loss, "tokens_per_second": 100 + n, **more}
        for n, loss in enumerate(losses, 1)
    ]


def test_equal_runs_differ_in_nothing(made: Made) -> None:
    found = diff(*(made.run(name, records=steps([3.0, 2.0])) for name in ("a", "b")))
    assert found.conclusion == "nothing that is recorded differs"
    assert not (found.outcome or found.keys or found.code.files or found.scripts or found.nodes or found.environment)
    assert found.metrics.parted == ()
    assert found.metrics.equal == ("loss",)


def test_a_changed_key_names_the_layer_that_set_it(made: Made) -> None:
    b = {**JOB, "args": ["--lr", "0.3"], "resources": {"nodes": 2, "cpus_per_rank": 4}, "seed": 2}
    by = (SetBy(kind="set", name="--set", keys=("args",)), SetBy(kind="cluster", name="pod", keys=("resources.nodes",)))
    found = diff(made.run("a"), made.run("b", job=b, set_by=by))
    # A user's own words stand before what follows from them.
    assert [one.key for one in found.keys] == ["args", "resources.nodes", "resources.cpus_per_rank", "seed"]
    args, nodes, cpus, seed = found.keys
    assert (args.a, args.b, args.set_by_a, args.set_by_b) == (["--lr", "0.1"], ["--lr", "0.3"], "job.toml", "--set")
    assert (nodes.set_by_a, nodes.set_by_b) == ("job.toml", "cluster pod")
    assert (cpus.a, cpus.b, cpus.set_by_b) == (None, 4, "the kit")
    assert (seed.set_by_a, seed.set_by_b) == ("the kit", "the kit")
    assert 'args: ["--lr", "0.1"] -> ["--lr", "0.3"]  (A: job.toml, B: --set)' in text(found)
    assert found.conclusion.startswith("4 keys differ")


def test_a_number_and_its_text_are_not_the_same_key(made: Made) -> None:
    found = diff(made.run("a", job={**JOB, "debug": True}), made.run("b", job={**JOB, "debug": 1}))
    assert [one.key for one in found.keys] == ["debug"]


def test_code_is_a_unified_diff(made: Made) -> None:
    a = made.run("a", files={"train.py": PROGRAM.encode(), "gone.py": b"x = 1\n", "same.py": b"y\n"})
    b = made.run("b", files={"train.py": PROGRAM.replace("0.1", "0.3").encode(), "new.py": b"z", "same.py": b"y\n"})
    found = diff(a, b)
    assert [(one.path, one.change) for one in found.code.files] == [
        ("gone.py", "removed"),
        ("new.py", "added"),
        ("train.py", "changed"),
    ]
    assert "\n-lr = 0.1\n+lr = 0.3\n" in found.code.files[2].patch
    assert found.code.files[1].patch == "--- /dev/null\n+++ b/new.py\n@@ -0,0 +1 @@\n+z\n\\ No newline at end of file\n"
    assert "train.py: changed (+1 -1)" in text(found)


def test_what_has_no_patch_has_a_word(made: Made) -> None:
    a = made.run("a", files={"big.txt": b"a\n" * 600_000, "model.bin": b"\0\1", "latin.txt": b"\xe9\n"})
    b = made.run("b", files={"big.txt": b"b\n" * 600_001, "model.bin": b"\0\2\3", "latin.txt": b"\xe8\n"})
    found = {one.path: one for one in diff(a, b).code.files}
    assert found["big.txt"].note == "too large to show, 1200000 and 1200002 bytes"
    assert found["model.bin"].note == "binary, 2 and 3 bytes"
    assert not found["big.txt"].patch and not found["model.bin"].patch
    assert "-\\xe9\n+\\xe8\n" in found["latin.txt"].patch


def test_modes_and_links(made: Made) -> None:
    before = [ListedFile("run.sh", "file", "1" * 64), ListedFile("data", "link", "old")]
    after = [ListedFile("run.sh", "program", "1" * 64), ListedFile("data", "link", "new")]
    from kit.comparison import text_diffs

    def no_reading(path: str) -> bytes:
        raise AssertionError(path)

    held = [text_diffs.of_tree(tree_listing.make_listing(entries), no_reading) for entries in (before, after)]
    data, run = text_diffs.between(*held)
    assert "-old" in data.patch and "+new" in data.patch
    assert (run.note, run.patch) == ("a file becomes a program", "")


def test_a_pruned_snapshot_is_said_and_not_guessed(made: Made) -> None:
    a, b = made.run("a"), made.run("b", files={"train.py": b"other\n"})
    tree = json.loads((a / "manifest.json").read_text())["workspace"]["tree"]
    shutil.rmtree(made.store.tree(tree))
    found = diff(a, b)
    assert found.code.files == ()
    assert f"A: its snapshot {tree[:12]} is not there any more: it was pruned" in found.unknown
    assert found.conclusion.startswith("the code differs")
    assert "not known\n  A: its snapshot" in text(found)


def test_an_old_run_says_what_it_does_not_know(made: Made) -> None:
    old = made.run("old", job=None, set_by=(), workspace=None, nodes="")
    found = diff(old, made.run("new"))
    said = [line for line in found.unknown if line.startswith("A: ")]
    assert "A: its job.toml is not recorded" in said
    assert "A: which layer set its keys is not recorded" in said
    assert f"A: its code is not recorded, since it ran in the live folder: its commit was {'c' * 12}" in said
    assert "A: its nodes are not recorded" in said
    assert (found.keys, found.code.files, found.nodes) == ((), (), ())
    assert found.conclusion == "nothing that is recorded differs, and not all is recorded"


def test_packages_of_the_images(made: Made) -> None:
    runs = []
    for name, pip in (("a", {"torch": "2.6", "six": "1.0"}), ("b", {"torch": "2.7", "rich": "13.0"})):
        lock = make_lock().model_copy(update={"packages": Packages(pip=pip), "sha256": name * 64})
        run = made.run(name, runtime="pyxis", image="/s/x.sqsh", image_name="train-cpu", image_digest=lock.digest)
        (run / "locks").mkdir()
        dumped = lock.model_dump(mode="json", by_alias=True, exclude_none=True)
        (run / "locks" / "train-cpu.lock").write_text(tomli_w.dumps(dumped))
        runs.append(run)
    found = diff(*runs)
    assert found.image.packages == ("+ pip:rich 13.0", "- pip:six 1.0", "~ pip:torch 2.6 -> 2.7")
    assert found.conclusion.startswith("the image differs")
    shutil.rmtree(runs[0] / "locks")
    found = diff(*runs)
    assert found.image.packages == ()
    assert any("what is in its image" in line for line in found.unknown)
    assert found.conclusion.startswith("the image differs")


def test_losses_part_and_nothing_recorded_differs(made: Made) -> None:
    records = [[{**one, "rank": rank} for rank in range(4) for one in steps([3.0, 2.0, 1.0])] for _ in "ab"]
    records[1][7]["loss"] += 2**-30  # rank 2, step 2
    records[1][11]["loss"] = 0.5  # rank 3, step 3
    found = diff(*(made.run(name, records=one) for name, one in zip("ab", records, strict=True)))
    (parted,) = found.metrics.parted
    assert (parted.metric, parted.step, parted.rank, parted.equal_steps) == ("loss", 2, 2, 1)
    assert parted.by == 2**-30
    said = "nothing that is recorded differs, and yet loss diverges at step 2 on rank 2, by 9.31e-10"
    assert found.conclusion == said
    assert said in text(found)


def test_only_the_nodes_differ(made: Made) -> None:
    a, b = made.run("a", records=steps([3.0])), made.run("b", records=steps([3.1]), nodes="n2,n3")
    found = diff(a, b)
    assert [(one.a, one.b) for one in found.nodes] == [("n1", "n2 n3")]
    assert found.conclusion == "the nodes differ; loss diverges at step 1, by 0.1"


def test_the_outcome_comes_first(made: Made) -> None:
    found = diff(made.run("a"), made.run("b", code=3, files={"train.py": b"exit(3)\n"}))
    assert [(one.name, one.a, one.b) for one in found.outcome][:2] == [
        ("state", "COMPLETED", "FAILED"),
        ("exit code", "0", "3"),
    ]
    assert found.conclusion == "a file of the code differs; A ended COMPLETED, B FAILED"
    headings = [line for line in text(found).split("\n")[3:] if line and not line.startswith(" ")]
    assert headings == ["outcome", "metrics", "code"]


def test_scripts_are_compared_without_the_runs_own_names(made: Made) -> None:
    a, b = made.run("a"), made.run("b")
    (b / "batch.sh").write_text((b / "batch.sh").read_text() + "sleep 1\n")
    (b / "said.json").write_text("an output of the program")
    (found,) = diff(a, b).scripts
    assert (found.path, found.change) == ("batch.sh", "changed")
    assert found.patch.count("\n+") == 2  # the header and the line
    assert diff(a, b).conclusion.startswith("the rendered scripts differ")


def test_versions_and_what_the_program_says_of_itself(made: Made) -> None:
    start = {"kind": "start", "time": "t", "restart": 0, "device": "cpu", "world_size": 1, "seed": 1}
    a = made.run("a", records=[start], versions={"kit": "0.1.0", "python": "3.11.7"})
    b = made.run("b", records=[{**start, "device": "H200"}], versions={"kit": "0.2.0", "python": "3.12.1"})
    found = diff(a, b)
    assert [(one.a, one.b) for one in found.kit] == [("0.1.0", "0.2.0")]
    assert {one.name: one.b for one in found.environment} == {"python": "3.12.1", "device": "H200"}


def test_the_cluster_as_it_was(made: Made) -> None:
    a, b = made.run("a"), made.run("b")
    for run, cpus in ((a, 8), (b, 16)):
        (run / "cluster.toml").write_text(f'description = "as it was"\n[node]\ncpus = {cpus}\n')
    assert [(one.name, one.a, one.b) for one in diff(a, b).cluster] == [("cluster: node.cpus", "8", "16")]


def test_a_point_of_a_sweep_finds_its_snapshot(made: Made) -> None:
    point = made.runs / "sweep" / "points" / "sweep.0"
    point.parent.mkdir(parents=True)
    made.run("p").rename(point)
    found = diff(point, made.run("b", files={"train.py": b"other\n"}))
    assert [one.path for one in found.code.files] == ["train.py"]


def test_a_long_patch_is_cut_and_full_shows_it(made: Made) -> None:
    a = made.run("a", files={"train.py": b"".join(b"%d\n" % n for n in range(200))})
    found = diff(a, made.run("b", files={"train.py": b"".join(b"-%d\n" % n for n in range(200))}))
    assert "more lines: --full shows them" in text(found)
    assert "+-199" in text(found, full=True)
    assert "more lines" not in text(found, full=True)


def test_steps_that_were_done_twice_count_as_done_last() -> None:
    first = steps([3.0, 2.0, 1.0])
    again = [*steps([3.0, 9.0]), *steps([3.0, 2.0, 1.0])[1:]]
    assert metric_divergence.between(first, again).parted == ()


def test_what_is_no_number_is_no_metric() -> None:
    odd: list[dict[str, Any]] = [
        {"step": 1, "loss": "nan"},
        {"step": True, "loss": 1.0},
        {"loss": 2.0},
        {"step": 1, "ok": True},
    ]
    assert metric_divergence.series(odd) == {}
    assert (
        metric_divergence.between([{"step": 1, "loss": float("nan")}], [{"step": 1, "loss": float("nan")}]).parted == ()
    )


@given(
    st.dictionaries(st.integers(0, 50), st.sampled_from([0.0, 1.0, 2.5]), min_size=1),
    st.dictionaries(st.integers(0, 50), st.sampled_from([0.0, 1.0, 2.5]), min_size=1),
)
def test_the_first_step_that_differs(a: dict[int, float], b: dict[int, float]) -> None:
    records = [[{"step": step, "loss": value} for step, value in one.items()] for one in (a, b)]
    found = metric_divergence.between(*records).parted
    common = sorted(a.keys() & b.keys())
    differing = [step for step in common if a[step] != b[step]]
    assert [one.step for one in found] == differing[:1]
    for one in found:
        assert one.equal_steps == common.index(differing[0])
        assert (one.last_a, one.last_b) == (a[common[-1]], b[common[-1]])
