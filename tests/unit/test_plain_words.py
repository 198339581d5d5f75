"""Command lines that are read without typer: the same text, exit codes and keywords as with it, and nothing else imported."""

from __future__ import annotations

import functools
import inspect
import json
import os
import re
import runpy
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as some

from kit import shell
from kit.cli import plain_words, typed_words
from kit.cli.command_table import COMMANDS
from kit.cli.groups import PLACES
from kit.spec.run_paths import RunPaths
from tests.support import REPO
from tests.unit.test_command_line import KIT
from tests.unit.test_command_line import project as project  # noqa: PLC0414 - a fixture

# As a program that has loaded typer for itself: typer then reads every command line.
TYPED = f"import typer; {KIT}"


def both(words: list[str], cwd: Path, env: dict[str, str] | None = None) -> tuple[shell.Completed, shell.Completed]:
    """A command line, read plainly and by typer."""
    clean = {"PATH": "/usr/bin:/bin", "HOME": str(cwd), "COLUMNS": "80", **(env or {})}
    plain, typed = (
        shell.run([sys.executable, "-c", code, *words], cwd=cwd, env=clean, check=False) for code in (KIT, TYPED)
    )
    return plain, typed


def test_the_table_is_the_one_that_the_commands_make() -> None:
    made = runpy.run_path(str(REPO / "scripts" / "command_table.py"))
    assert (REPO / "kit" / "cli" / "command_table.py").read_text(encoding="utf-8") == made["text"](), "make reference"
    assert made["table"]() == COMMANDS
    assert {"status", "runs", "render", "submit", "cancel", "logs", "why", "sweep", "results"} <= COMMANDS.keys()


def test_the_table_is_made_after_a_command_was_imported_without_typer() -> None:
    """As in a process of tests, where another test has imported the commands first."""
    made = f"""
import sys, runpy, kit.cli.time
assert "typer" not in sys.modules
print(runpy.run_path({str(REPO / "scripts" / "command_table.py")!r})["text"]())
"""
    answer = shell.run([sys.executable, "-c", made], cwd=REPO, env={"PATH": "/usr/bin:/bin"})
    assert answer.stdout == (REPO / "kit" / "cli" / "command_table.py").read_text(encoding="utf-8").rstrip()


@pytest.mark.parametrize(
    "line",
    [
        "status 8 --json", "status nothing", "status digits", "runs", "why digits-7", "logs digits-7 nobody",
        "logs digits-7 --tail=-3", "cancel nothing", "render --json --set seed=7 --no-container", "render -c nowhere",
        "render --set seed=x", "submit --output x", "results nothing", "render --nope", "status --help", "render --cluster",
    ],
)  # fmt: skip
def test_text_and_code_are_those_of_typer(project: Path, line: str) -> None:
    plain, typed = both([word.strip("'") for word in line.split()], project)
    said = [(one.returncode, _steady(one.stdout), _steady(one.stderr)) for one in (plain, typed)]
    assert said[0] == said[1]
    assert "Traceback" not in plain.stderr


def _steady(text: str) -> str:
    """A plan's id holds its time and four random digits."""
    text = re.sub(r"digits-\d{8}-\d{6}-[0-9a-f]{4}", "digits-ID", text)
    return re.sub(r"\bseed = \d+|KIT_SEED=\S+|SEED='?\d+'?", "seed", text)


def by_typer(words: list[str]) -> dict[str, Any] | None:
    """What typer calls the command with; None when it refuses."""
    module, _, function = PLACES[words[0]][1].partition(".")
    place = import_module(f"kit.cli.{module}")
    found: list[dict[str, Any]] = []
    real = getattr(place, function)

    @functools.wraps(real)
    def record(**keywords: Any) -> None:
        found.append(keywords)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place, function, record)
        try:
            typed_words.app(words, standalone_mode=False)
        except typed_words._UsageFault:
            return None
    return found[0] if found else None


def plainly(words: list[str]) -> dict[str, Any] | None:
    """The same, read plainly, with the function's own defaults."""
    found = plain_words.read(words)
    if found is None:
        return None
    parameters = inspect.signature(found.function()).parameters.values()
    return {one.name: one.default for one in parameters} | found.keywords


WORDS = some.sampled_from(
    [
        "digits-7",
        "7",
        "x=1",
        "a b",
        ".",
        "0",
        "03",
        "-1",
        "--",
        "-",
        "",
        "é",
        "job.toml",
        "--json=1",
        "-fx",
        "--nope",
        "--help",
    ]
)


@settings(max_examples=400, deadline=None)
@given(some.data())
def test_what_is_read_plainly_is_what_typer_reads(data: some.DataObject) -> None:
    name = data.draw(some.sampled_from(sorted(COMMANDS)))
    options = some.sampled_from([*COMMANDS[name][1], *(f"{word}=2" for word in COMMANDS[name][1])])
    words = [name, *data.draw(some.lists(options | WORDS, max_size=6))]
    plain = plainly(words)
    if plain is not None:
        assert plain == by_typer(words)


def test_usual_command_lines_are_read_plainly() -> None:
    lines = [
        "status", "status digits-7 --json", "runs --runs folder", "logs -f digits-7 server --tail 5 -r 0 -r 1",
        "submit job.toml -c local --set a=1 --set b=2 --wait", "cancel a b c --json", "render --cluster=local --no-container",
    ]  # fmt: skip
    assert [line for line in lines if plainly(line.split()) is None] == []
    assert plainly(["cancel", "a", "b"]) == {"names": ["a", "b"], "runs_dir": None, "as_json": False}


@pytest.mark.parametrize("line", ["status digits-7", "runs", "cancel digits-7", "render", "logs digits-7"])
def test_no_typer_is_imported(project: Path, line: str) -> None:
    listing = "import atexit, json; atexit.register(lambda: print(json.dumps([*sys.modules]), file=sys.stderr)); main()"
    done = shell.run(
        [sys.executable, "-c", KIT.replace("main()", listing), *line.split()],
        cwd=project, env={"PATH": "/usr/bin:/bin", "HOME": str(project)}, check=False,
    )  # fmt: skip
    loaded = set(json.loads(done.stderr.splitlines()[-1]))
    assert "kit.cli.plain_words" in loaded
    assert not {"typer", "click", "rich"} & loaded


def test_an_unchanged_project_is_read_without_pydantic(project: Path) -> None:
    """What a manifest and the clusters' files say is kept."""
    listing = "import atexit; atexit.register(lambda: print(*sys.modules)); main()"
    argv = [sys.executable, "-c", KIT.replace("main()", listing)]
    env = {"PATH": "/usr/bin:/bin", "HOME": str(project)}
    for name in ("digits-7", "digits-8"):
        RunPaths(project / "runs" / name).events.write_text('{"event": "end", "exit_code": "0"}\n')
    for words in (["status", "digits-7"], ["status"], ["runs"]):
        shell.run([sys.executable, "-c", KIT, *words], cwd=project, env=env)
        done = shell.run([*argv, *words], cwd=project, env=env)
        assert "digits-7" in done.stdout or "digits-8" in done.stdout
        assert not {"pydantic", "pydantic_core", "typer", "jinja2"} & set(done.stdout.split())


@pytest.mark.parametrize(
    "line",
    [
        "kit ", "kit sta", "kit _", "kit logs dig", "kit logs digits-7 ", "kit cancel digits-7 dig", "kit render -c infi",
        "kit render --set resources.nod", "kit status --j", "kit logs -n 3 dig", "kit logs 'dig", "kit cluster ",
        "kit submit --wait --after dig", "kit status --nope dig",
    ],
)  # fmt: skip
def test_what_bash_is_offered_is_what_typer_offers(project: Path, line: str) -> None:
    env = {"_KIT_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    plain, typed = both([], project, env)
    assert (plain.returncode, plain.stdout, plain.stderr) == (typed.returncode, typed.stdout, typed.stderr)


def test_completing_a_name_imports_little(project: Path) -> None:
    code = KIT.replace("main()", "import atexit; atexit.register(lambda: print(*sys.modules)); main()")
    env = {"_KIT_COMPLETE": "complete_bash", "COMP_WORDS": "kit su", "COMP_CWORD": "1", "PATH": os.environ["PATH"]}
    done = shell.run([sys.executable, "-c", code], cwd=project, env=env, check=False)
    assert done.stdout.splitlines()[0] == "submit"
    assert not {"typer", "pydantic", "subprocess", "kit.shell"} & set(done.stdout.split())


ENDED = """
import sys
sys.argv = ["kit", "runs"]
{}
import kit.cli.runs
def ended(*_): raise {}
kit.cli.runs.folders = ended
from kit.cli import main
main()
"""


@pytest.mark.parametrize("first", ["", "import typer"])
@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        ("KeyboardInterrupt", 130, "interrupted\n"),
        ("BrokenPipeError(32, 'Broken pipe')", 141, ""),
        ("EOFError", 130, "\ninterrupted\n"),
        ("__import__('typer').Exit(3)", 3, ""),
        ("__import__('typer').Abort()", 130, "interrupted\n"),
        ("OSError(2, 'No such file', 'x')", 1, "kit: error: x: No such file\n"),
    ],
)
def test_how_a_command_ends(tmp_path: Path, first: str, raised: str, code: int, said: str) -> None:
    argv = [sys.executable, "-c", ENDED.format(first, raised)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (code, said)


def test_declarations_that_came_before_typer_are_read_by_it(tmp_path: Path) -> None:
    """A module of commands that was imported first, by a program that then asks typer."""
    code = "import kit.cli.runs, sys; assert 'typer' not in sys.modules; from kit.cli import app; app(['status', '--help'])"
    env = {**os.environ, "COLUMNS": "100"}
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    assert "Run folder, run id, the first characters of a run id" in done.stdout
    assert "--runs" in done.stdout


def test_typers_own_names_are_typers() -> None:
    from kit.cli.typer_later import typer as later

    assert later.Exit is typer.Exit
