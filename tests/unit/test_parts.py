"""Parts of a run: what a job does not use is not in its run folder."""

from __future__ import annotations

import ast
import pkgutil
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kit import render
from kit.planning import parts
from kit.planning.parts import Part, all_parts, file_names
from kit.schema.preflight_monitor_retry import Watch
from tests import laid_out
from tests.golden.cases import CASES, Case, planned
from tests.support import NODE, REPO

BY_NAME = {case.name: case for case in CASES}
# Counts of a plain job's scripts and their lines, which the batch script and the ranks source or run. They only go down.
MOST_FILES, MOST_LINES = 48, 6_024
# The same without preflight and monitor; files that the batch script sources.
MOST_FILES_BARE, MOST_LINES_BARE, MOST_SOURCED = 45, 3_902, 20


def own_files(case: str) -> set[str]:
    """The kit's own files in the run folder of a golden case."""
    return {file.name for file in planned(BY_NAME[case]).files if file.name.startswith(("bin/", "lib/"))}


def test_each_file_of_a_part_is_a_file_of_the_templates_and_of_no_other_part() -> None:
    """But for a module that two parts import."""
    named = [name for part in all_parts() for name in part.files]
    assert {name for name in named if named.count(name) > 1} == {"lib/node_wire.py"}
    # Those with a generated head are rendered, not copied.
    rendered = {name for name in named if name.startswith("bin/") and render.MARK in render.plain(name)}
    assert set(named) - rendered <= {*render.program_names(), *render.library_names()}


def test_each_part_has_files_and_each_module_of_a_part_its_folder() -> None:
    names = {part.name for part in all_parts()}
    assert all(part.files for part in all_parts())
    assert {module.name for module in pkgutil.iter_modules(parts.__path__)} - {"part"} <= names


def test_a_plain_job_imports_few_modules_of_parts() -> None:
    made = planned(BY_NAME["local-bare"]).decisions
    wanted = {part.name for part in all_parts() if part.may_be_wanted(made)}
    assert wanted == {"callbacks", "heartbeat", "monitor", "preflight", "stall_watch", "trust"}
    with_module = {module.name for module in pkgutil.iter_modules(parts.__path__)}
    assert wanted & with_module == {"callbacks"}


def take_out(part: Part, into: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the kit find its parts in copies of templates/ and kit/planning/parts/ that lack this one."""
    own = {"parts": [part.name], "kit_node": [Path(name).name for name in part.modules]}
    shutil.copytree(REPO / "templates", into / "templates", ignore=lambda at, _: own.get(Path(at).name, []))
    shutil.copytree(parts.__path__[0], into / "parts", ignore=lambda *_: [f"{part.name}.py"])
    monkeypatch.setattr(render, "_folder", lambda: into / "templates")
    monkeypatch.setattr(parts, "__path__", [str(into / "parts")])
    forget()


def forget() -> None:
    """What was read of templates/ and of the package of parts."""
    for one in (parts.all_parts, *(f for f in vars(render).values() if hasattr(f, "cache_clear"))):
        one.cache_clear()


@pytest.fixture
def _forgotten() -> Iterator[None]:
    yield
    forget()


def run_files(case: str) -> dict[str, str]:
    """Name -> text of a run's files, without the digest of them all."""
    return {file.name: re.sub("KIT_CODE=.*", "", file.text) for file in planned(BY_NAME[case]).files}


@pytest.mark.usefixtures("_forgotten")
@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("hot_pages", "local-pyxis"),
        ("image_chain", "local-image-chain"),
        ("once", "migrated-megatron"),
        ("container_names", "local-pyxis"),
        ("staging", "local-image-chain"),
    ],
)
def test_a_part_can_be_taken_out_and_put_in_again(
    name: str, case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A feature is its folder and its module: nothing else of the kit names it."""
    (part,) = (part for part in all_parts() if part.name == name)
    files, before, bare = set(part.files), run_files(case), run_files("local-bare")
    with monkeypatch.context() as without:
        take_out(part, tmp_path, without)
        assert name not in {part.name for part in all_parts()}
        after = run_files(case)
        assert run_files("local-bare") == bare, "a run that does not ask for the part does not change"
    assert before.keys() - after.keys() == files
    assert {file for file in after if after[file] != before[file]} == {"batch.sh"}
    gone = set(before["batch.sh"].splitlines()) - set(after["batch.sh"].splitlines())
    assert f"    {name} # {part.asked_by(planned(BY_NAME[case]).decisions)}" in gone
    forget()
    assert run_files(case) == before


@pytest.mark.parametrize("part", [part for part in all_parts() if part.has_phases], ids=lambda part: part.name)
def test_a_part_that_is_called_has_its_functions_in_the_file_of_its_name(part: Part) -> None:
    assert (REPO / "templates/parts" / part.name / "part.sh").is_file()
    text = (laid_out.LIB / f"{part.name}.sh").read_text(encoding="utf-8")
    phases = re.findall(r"^#   (\w+) ", (laid_out.LIB / "parts.sh").read_text(encoding="utf-8"), re.MULTILINE)
    assert any(f"{part.name}::{phase}()" in text for phase in phases)


def test_a_plain_job_has_no_part_that_it_did_not_ask_for() -> None:
    found = own_files("local-bare")
    for name in (
        "image_chain",
        "warm_ranks",
        "memory_checkpoints",
        "once",
        "notices",
        "hot_pages",
        "bubblewrap",
        "enroot",
        "observed_ranks",
        "job_roles",
        "restarts",
    ):
        (part,) = (part for part in all_parts() if part.name == name)
        kept = {file for file in part.files if Path(file).name in render.absent_names()}
        assert not found & set(part.files) - kept
    assert len(found) <= MOST_FILES
    assert sum(file.text.count("\n") for file in planned(BY_NAME["local-pyxis"]).files) <= MOST_LINES


def test_a_run_with_all_checks_off_has_less() -> None:
    case = replace(BY_NAME["local-bare"], overrides=("preflight.enabled=false", "monitor.enabled=false"))
    files = planned(case).files
    assert len(files) <= MOST_FILES_BARE
    assert sum(file.text.count("\n") for file in files) <= MOST_LINES_BARE


def test_the_batch_script_sources_few_libraries() -> None:
    text = planned(BY_NAME["local-pyxis"]).text_of("batch.sh")
    assert 0 < len(re.findall(r"^source ", text, re.MULTILINE)) <= MOST_SOURCED


def test_no_function_of_bash_is_longer_than_forty_lines() -> None:
    found = set()
    for path in (REPO / "templates").rglob("*"):
        if path.is_file() and path.suffix in {".sh", ""}:
            text = path.read_text(encoding="utf-8")
            for name, body in re.findall(r"^([\w:]+)\(\) \{\n(.*?)^\}", text, re.DOTALL | re.MULTILINE):
                found |= {name} if body.count("\n") > 40 else set()
    assert found == set()


def test_kit_callbacks_is_where_a_program_may_import_it() -> None:
    """A program of the user's own, TorchTitan's, and no other of the kit's."""
    plain = own_files("local-bare")
    assert "lib/kit_callbacks.py" not in plain
    for overrides in (("script=mine.py",), ("module=mine.train",)):
        assert "lib/kit_callbacks.py" in {
            f.name for f in planned(replace(BY_NAME["local-bare"], overrides=overrides)).files
        }
    using = {
        p.parent.name for p in (REPO / "launchers").rglob("*.py") if "kit_callbacks" in p.read_text(encoding="utf-8")
    }
    assert using == {"torchtitan"}


@pytest.mark.parametrize(("stall", "observed"), [(None, False), ("auto", True), (30.0, True), (False, False)])
def test_ranks_are_observed_in_a_job_with_a_table_watch(stall: object, observed: bool) -> None:
    """Most runs pay nothing for it: no file, and no process on the nodes."""
    made = planned(BY_NAME["local-bare"]).decisions
    job = made.job if stall is None else made.job.model_copy(update={"watch": Watch.model_validate({"stall": stall})})
    names = file_names(replace(made, resolved=replace(made.resolved, job=job)))
    assert ("bin/sample-ranks.sh" in names, "lib/rank_samples.awk" in names) == (observed, observed)


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        ((), "watch"),
        (("watch.stall=false",), None),
        (("retry.in_allocation=1",), "watch"),
        (("watch.stall=false", "retry.in_allocation=1"), "retry.no_progress"),
        (("watch.stall=false", "retry.in_allocation=1", "retry.no_progress=0"), None),
        (("watch.stall=false", "retry.requeue=1"), "retry.no_progress"),
        (("watch.stall=false", "preflight.on_failure=exclude"), "retry.no_progress"),
        (("monitor.enabled=false", "retry.in_allocation=1"), None),
    ],
)
def test_the_stall_watch_is_there_for_alarms_and_for_jobs_whose_steps_are_counted(
    overrides: tuple[str, ...], key: str | None
) -> None:
    plan = planned(replace(BY_NAME["local-bare"], overrides=overrides))
    assert dict(parts.called_parts(plan.decisions)).get("stall_watch") == key
    head = plan.text_of("batch.sh").partition(render.MARK)[0]
    assert ("lib/stall.awk" in {file.name for file in plan.files}, "KIT_EVIDENCE_ARGV" in head) == (bool(key),) * 2


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        ((), None),
        (("retry.in_allocation=1",), "retry.in_allocation"),
        (("retry.requeue=1",), "retry.requeue"),
        (("slurm.requeue=true",), "slurm.requeue"),
        (("preflight.on_failure=exclude",), "preflight.on_failure"),
    ],
)
def test_a_job_that_never_starts_again_has_no_part_for_it(overrides: tuple[str, ...], key: str | None) -> None:
    """And Slurm queues it again only where the part is there."""
    plan = planned(replace(BY_NAME["local-bare"], overrides=overrides))
    assert dict(parts.called_parts(plan.decisions)).get("restarts") == key
    text = plan.text_of("batch.sh")
    assert ("KIT_RETRY_REQUEUE" in text, "lib/restarts.sh" in {file.name for file in plan.files}) == (bool(key),) * 2
    assert key or "#SBATCH --no-requeue" in text


@pytest.mark.parametrize(
    ("case", "parts"),
    [("local-warm", {"warm_ranks", "hot_pages"}), ("local-image-chain", {"image_chain", "hot_pages"})],
)
def test_the_head_of_the_batch_script_names_the_parts_of_its_run(case: str, parts: set[str]) -> None:
    plan = planned(BY_NAME[case])
    head = plan.text_of("batch.sh").split("readonly -a KIT_PARTS=(")[1].split(")")[0]
    assert parts <= {line.split()[0] for line in head.strip().splitlines()}
    for line in head.strip().splitlines():
        name, asked_by = line.strip().split(" # ")
        assert asked_by
        assert f"lib/{name}.sh" in {file.name for file in plan.files}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_all_that_a_run_sources_or_runs_is_in_its_folder(case: Case) -> None:
    """Followed from the files that the plan writes, but for what they name only behind a test for the part."""
    plan = planned(case)
    names = {file.name for file in plan.files}
    conditional = {"lib/warm_ranks.sh", "lib/memory_checkpoints.sh", "lib/image_chain.sh"}
    for file in plan.files:
        for found in re.findall(r"^source \S*?((?:lib|bin)/[a-z_-]+\.sh)", file.text, re.MULTILINE):
            assert found in names | conditional, f"{file.name} sources {found}"
    words = set(re.findall(r"^    \S*/((?:bin)/[\w./-]+)$", plan.text_of("batch.sh"), re.MULTILINE))
    assert words <= names


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_all_modules_that_the_python_of_a_run_imports_are_in_its_folder(case: Case) -> None:
    modules = {path.stem for path in NODE.glob("*.py")}
    files = {file.name: file.text for file in planned(case).files if file.name.endswith(".py")}
    there = {Path(name).stem for name in files if name.startswith("lib/")}
    for name, text in files.items():
        for node in ast.walk(ast.parse(text)):
            named = [node.module] if isinstance(node, ast.ImportFrom) else []
            named += [one.name for one in node.names] if isinstance(node, ast.Import) else []
            assert {one for one in named if one in modules} <= there, name


def test_a_template_of_ones_own_may_call_all_parts(tmp_path: Path) -> None:
    made = planned(BY_NAME["local-bare"]).decisions
    own = replace(made, resolved=replace(made.resolved, template=("x.sh", "#!/bin/bash\n")))
    assert {*file_names(own)} == {*render.program_names(), *render.library_names()}


@pytest.mark.parametrize("name", render.absent_names())
def test_a_stand_in_has_the_calls_of_the_real_module(name: str) -> None:
    """By name and arguments, but for their types: a program that imports it runs in a job without the feature, too."""

    def arguments(function: ast.FunctionDef) -> str:
        for one in ast.walk(function.args):
            if isinstance(one, ast.arg):
                one.annotation = None
        return ast.unparse(function.args)

    def calls(path: Path) -> dict[str, str]:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        (public,) = (
            ast.literal_eval(node.value)
            for node in tree.body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        )
        found = dict[str, str]()
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name in public:
                members = [one for one in node.body if isinstance(one, ast.FunctionDef)]
                found |= {
                    one.name: arguments(one)
                    for one in members
                    if one.name == "__init__" or not one.name.startswith("_")
                }
            if isinstance(node, ast.FunctionDef) and node.name in public:
                found[node.name] = arguments(node)
        return found

    real, absent = (NODE / folder / name for folder in (".", "absent"))
    assert calls(real)
    assert calls(absent) == calls(real)
