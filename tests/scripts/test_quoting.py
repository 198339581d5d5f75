"""Any text in args and env arrives in the program byte for byte, or is refused: through the real scripts, in a real bash."""

from __future__ import annotations

import json
import os
import string
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from kit import shell
from kit.files.safe_text import is_unsafe
from kit.planning.plan import PlanFile
from kit.render import plain, quote, render
from kit.runtimes.pyxis import mount_option
from kit.schema.job import Job
from kit.schema.mount import Mount

# What execve(2) can carry: anything but NUL. Surrogates have no UTF-8 form and are refused (test_refused below).
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)
NAMES = st.text(string.ascii_letters + string.digits + "_", min_size=1, max_size=12).filter(
    lambda n: not n[0].isdigit()
)
SPECIAL = ["RANDOM", "SECONDS", "IFS", "LINENO", "EUID", "UID", "PPID", "_", "PATH_X", "HOSTNAME", "OPTIND", "BASHPID"]

DUMP = "import json, os, sys; json.dump([sys.argv[2:], dict(os.environ)], open(sys.argv[1], 'w'))"


def run_rank(folder: Path, args: list[str], env: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """Run rank.sh as the worker would; return the program's argv and environment."""
    (folder / "lib").mkdir(exist_ok=True)
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "logs").mkdir(exist_ok=True)
    out = folder / "out.json"
    program = [sys.executable, "-c", DUMP, str(out), *args]
    files = [
        PlanFile(name="bin/rank.sh", text=plain("bin/rank.sh"), mode=0o755),
        PlanFile(
            name="program.sh",
            text=render(
                "data/program.sh",
                {
                    "program": program,
                    "program_env": [f"{k}={v}" for k, v in env.items()],
                    "rank_args": [],
                    "warm": [],
                    "keep": False,
                    "memory": False,
                },
            ),
        ),
        *(
            PlanFile(name=f"lib/{n}", text=plain(f"lib/{n}"))
            for n in (
                "clock.sh",
                "log.sh",
                "failures.sh",
                "memory_checkpoints.sh",
                "placeholders.sh",
                "reports.sh",
                "warm_ranks.sh",
            )
        ),
    ]
    for file in files:
        (folder / file.name).write_text(file.text, encoding="utf-8")
        (folder / file.name).chmod(file.mode)
    ranks = {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "NODE_RANK": "0",
        "KIT_RESTART_COUNT": "0",
        "KIT_PROGRAM_FILE": "program.sh",
        "PATH": os.environ["PATH"],
    }
    shell.run([str(folder / "bin" / "rank.sh")], env=ranks)
    argv, seen = json.loads(out.read_text(encoding="utf-8"))
    return argv, seen


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(args=st.lists(TEXT, max_size=4), env=st.dictionaries(NAMES | st.sampled_from(SPECIAL), TEXT, max_size=4))
def test_args_and_env_arrive_byte_for_byte(tmp_path: Path, args: list[str], env: dict[str, str]) -> None:
    try:
        job = Job.model_validate({"name": "x", "launcher": "ddp", "args": args, "env": env})
    except ValidationError:
        return
    argv, seen = run_rank(tmp_path, list(job.args), dict(job.env))
    assert argv == args
    # PATH decides which python runs, LC_* how this test's own reader decodes: they are carried like any other, but not tried here.
    assert {name: seen.get(name) for name in env} == env


@pytest.mark.parametrize("value", ["a\0b", "\ud800", "x" * 140_000])
@pytest.mark.parametrize("where", ["args", "env"])
def test_what_execve_cannot_carry_is_refused(where: str, value: str) -> None:
    with pytest.raises(ValidationError):
        Job.model_validate({"name": "x", "launcher": "ddp", where: [value] if where == "args" else {"A": value}})


@given(source=st.text(max_size=20), target=st.text(max_size=20))
def test_mounts_split_back_into_what_was_asked(source: str, target: str) -> None:
    """Pyxis splits at ',' and then at ':': whatever the model lets through must come apart again as it was put together."""
    try:
        mount = Mount(source=f"/{source}", target=f"/{target}", flags=("ro",))
    except ValidationError:
        return
    (only,) = mount_option(mount).split(",")
    assert only.split(":") == [f"/{source}", f"/{target}", "ro"]
    assert not set(only) & set('$`"\\\n')


@given(TEXT)
def test_no_control_character_of_a_value_is_in_a_script(text: str) -> None:
    """`kit render` prints the script, and a terminal would obey it."""
    word = quote(text)
    assert not is_unsafe(word)
    said = shell.run(["bash", "-c", f"printf %s. {word}"], env={"LC_ALL": "C", "PATH": os.environ["PATH"]})
    assert said.stdout == f"{text}."
