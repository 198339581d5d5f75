"""Checks of all that runs on a node: it has no word that bash 4.4, or a tool of RHEL 8 or SLES 15, does not know.

The versions are those of docs/guides/administrator.md: bash 4.4, coreutils 8.30, util-linux 2.32. Sources: the NEWS file of each.
`KIT_TEST_BASH_4_4`, or /opt/bash-4.4/bin/bash, is a bash 4.4 for the tests that need a real one.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from kit import shell
from tests import laid_out
from tests.support import REPO

TEMPLATES = REPO / "templates"
SCRIPTS = sorted(
    path
    for folder in (TEMPLATES, REPO / "launchers")
    for path in folder.rglob("*")
    if path.is_file() and (path.suffix == ".sh" or path.read_bytes().startswith((b"#!/bin/bash", b"#!/bin/sh")))
)
CLOCK = TEMPLATES / "core/lib/clock.sh"
BASH_4_4 = Path(os.environ.get("KIT_TEST_BASH_4_4", "/opt/bash-4.4/bin/bash"))
# A word -> what to write in its place. The number is the first version that knows the word.
LATER = {
    r"\bEPOCHREALTIME\b": "bash 5.0: clock::now",
    r"\b(?:BASH_ARGV0|SRANDOM|BASH_MONOSECONDS|BASH_TRAPSIG|GLOBSORT)\b": "bash 5.0 to 5.3: none",
    r"\bwait (?:-\w+ )*-n (?!\s*(?:[;&|)]|$))": "bash 5.0: `wait -n` takes no jobs; wait for one job, or look at both",
    r"\bwait -\w*[fp]": "bash 5.0 and 5.1: wait for one job, and take its code",
    r"\$\{[!\w\[\]@*]+@[KkUuL]\}": "bash 5.1: ^^ and ,,",
    r"\$\{[ |]": "bash 5.3: $( … )",
    r"\b(?:local|declare) -\w*I": "bash 5.0: none",
    r"\bread -\w*E|\bsource -p|\bcompgen -V|\btrap -P|\bulimit -R|%#?Q": "bash 5.1 to 5.3: none",
    r"\b(?:assoc_expand_once|array_expand_once|localvar_inherit|localvar_unset|patsub_replacement|varredir_close|globskipdots)\b": (
        "bash 5.0 to 5.3: none"
    ),
    r"-v \w+\[@\]": "bash 5.2 alone knows what it means: ${#name[@]}",
    r"\bsetpriv --pdeathsig": "util-linux 2.33: image_mount_bound",
    r"--(?:map-auto|map-current-user|map-users|map-groups)\b": "util-linux 2.34 and 2.38: --map-root-user",
    r"--(?:block-signal|default-signal|ignore-signal|list-signal-handling)\b": "coreutils 8.31: trap",
    r"\bcp [^\n]*--update=|\bls [^\n]*--zero|\bwc [^\n]*--total|\bstat [^\n]*--cached|\bdate --resolution|\bcksum -a": (
        "coreutils 8.32 to 9.3: none"
    ),
    r"-files0-from|--fail-with-body|--retry-all-errors": "findutils 4.9, curl 7.71: none",
}
# The places that may know a word: each asks for the version first.
KNOWS = {
    r"\bEPOCHREALTIME\b": {CLOCK},
    r"\bsetpriv --pdeathsig": {
        TEMPLATES / "parts/image_mount/lib/image_mount.sh",
        TEMPLATES / "parts/fuse_daemon/lib/fuse_daemon.sh",
    },
    r"--(?:block-signal|default-signal|ignore-signal|list-signal-handling)\b": {TEMPLATES / "core/bin/unignore.sh"},
}


def later(path: Path) -> list[str]:
    """The lines of a script, without comments, that have a word of a later version."""
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        code = re.sub(r"(?:^|\s)#.*", "", line)
        for word, instead in LATER.items():
            if re.search(word, code) and path not in KNOWS.get(word, ()):
                found.append(f"{path.relative_to(REPO)}:{number}: {line.strip()}  # {instead}")
    return found


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: str(path.relative_to(REPO)))
def test_no_word_is_younger_than_the_oldest_node(path: Path) -> None:
    assert later(path) == []


@pytest.mark.parametrize(
    ("line", "known"),
    [
        ('now="${EPOCHREALTIME/,/.}"', False),
        ('wait -n "${answers}" "${asks}"', False),
        ("wait -n", True),
        ("wait -n; code=$?", True),
        ('wait -p pid "${x}"', False),
        ('echo "${words[*]@K}"', False),
        ('echo "${words[*]@Q}"', True),
        ("shopt -s localvar_inherit", False),
        ("[[ -v table[@] ]]", False),
        ("[[ -v table[x] ]]", True),
        ("setpriv --pdeathsig KILL x", False),
        ("x=1 # EPOCHREALTIME", True),
    ],
)
def test_what_counts_as_a_later_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, known: bool) -> None:
    monkeypatch.setattr(sys.modules[__name__], "REPO", tmp_path)
    script = tmp_path / "x.sh"
    script.write_text(f"{line}\n")
    assert (later(script) == []) == known


@pytest.mark.parametrize("program", sorted(laid_out.BIN.glob("*.sh")), ids=lambda path: path.name)
def test_a_program_that_needs_the_time_has_the_clock(program: Path) -> None:
    """Of bash 5's own EPOCHSECONDS, bash 4.4 would know nothing; a test under bash 5 cannot see that."""
    text = program.read_text(encoding="utf-8")
    files = [program, *(laid_out.LIB / name for name in re.findall(r"/lib/([a-z_]+\.sh)\"", text))]
    needs = [
        file.name for file in files if re.search(r"EPOCHSECONDS|clock::now", file.read_text("utf-8")) and file != CLOCK
    ]
    first = next(iter(re.findall(r"^source .*/lib/([a-z_]+\.sh)\"", text, flags=re.MULTILINE)), None)
    assert not needs or first == "clock.sh", f"{needs} need lib/clock.sh, before other libraries"


TIME = """\
set -euo pipefail
source "$1"
declare -A times=()
clock::now began
clock::now 'times[x]'
read_by_nobody() { local -i came=EPOCHSECONDS; echo "$((EPOCHSECONDS - came))"; }
echo "${began}" "${times[x]}" "${EPOCHSECONDS}" "$(read_by_nobody)" "$(date +%s)"
"""


@pytest.mark.parametrize("bash", [Path("/bin/bash"), BASH_4_4], ids=["bash-of-this-machine", "bash-4.4"])
def test_the_time_is_the_same_in_each_bash(bash: Path) -> None:
    if not bash.is_file():
        pytest.skip(f"no bash 4.4 at {bash}: name one by KIT_TEST_BASH_4_4")
    said = shell.run([str(bash), "-c", TIME, "bash", str(CLOCK)], timeout=30).stdout.split()
    began, kept, seconds, since, date = said
    assert re.fullmatch(r"\d{10}\.\d{6}", began)
    assert re.fullmatch(r"\d{10}\.\d{6}", kept)
    assert float(began) <= float(kept)
    assert abs(int(seconds) - int(date)) <= 1
    assert since in {"0", "1"}


@pytest.mark.skipif(not BASH_4_4.is_file(), reason=f"no bash 4.4 at {BASH_4_4}: name one by KIT_TEST_BASH_4_4")
@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: str(path.relative_to(REPO)))
def test_bash_4_4_can_parse_it(path: Path) -> None:
    done = shell.run([str(BASH_4_4), "-n", str(path)], check=False, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_bash_that_is_too_old_is_named(tmp_path: Path) -> None:
    """Shown by a copy that asks for a bash that nobody has."""
    copy = tmp_path / "clock.sh"
    copy.write_text(CLOCK.read_text().replace("< 404", "< 9904"))
    done = shell.run(
        ["bash", "-c", 'source "$1"; echo on', "bash", str(copy)],
        check=False,
        timeout=30,
        env={**os.environ, "SLURMD_NODENAME": "n7"},
    )
    assert (done.returncode, done.stdout) == (72, "")
    assert re.fullmatch(r"n7: bash \S+ is too old here: the kit needs bash 4\.4 or newer", done.stderr.strip())
