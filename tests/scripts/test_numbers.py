"""Numbers that another process has written do not reach bash's arithmetic as text: it would run a command in them.

C12: `SECONDS[$(command)]` in state/attempts ran on the node as the owner of the run, and a rank in a container could write it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kit import shell
from tests import laid_out
from tests.scripts.batch_lab import BatchLab
from tests.support import REPO

LIB = laid_out.LIB
SCRIPTS = sorted([*(REPO / "templates").rglob("*.sh"), *(REPO / "launchers").glob("*/*.sh")])

# What read gets that only the kernel has written; the second is the field list of /proc/PID/stat.
OF_THE_KERNEL = re.compile(r'<\s*"?/proc/|"\$\(fields |##\*\) |stepd|<\(stat --format=|<\(od -An')
# Variables that are read, and whose text a check in the same function refuses unless it is a number.
CHECKED = re.compile(r'\[\[[^\]]*"\$\{(\w+)\}" =~ \^\(?\[?[01]')
# (file, function, variable) -> why its text is a number.
SOUND = {
    ("templates/parts/monitor/lib/rank_progress.sh", "rank_progress::bytes_of_ranks", "count"): "of /proc/PID/io",
    ("templates/parts/monitor/lib/rank_progress.sh", "rank_progress::sum_up", "count"): "of /proc/PID/io",
    ("templates/parts/observed_ranks/bin/sample-ranks.sh", "sum_up", "count"): "of /proc/PID/io",
    ("templates/core/bin/signal.sh", "is_ready", "up"): "of /proc",
    ("templates/core/bin/evidence.sh", "has_handler", "mask"): "of /proc/PID/status",
    ("templates/core/lib/failures.sh", "failures::find_killed", "moved"): "of nodes::place_ranks",
    ("templates/parts/trust/lib/trust.sh", "trust::safe_way", "owner"): "of stat",
    ("templates/parts/trust/lib/trust.sh", "trust::safe_way", "mode"): "of stat",
    (
        "templates/remote/shared.sh",
        "send_changes",
        "kit_old",
    ): "of find, in lines without the names that hold a newline",
    ("templates/remote/shared.sh", "send_changes", "kit_size"): "of find, as kit_old",
}


def functions(path: Path) -> dict[str, list[str]]:
    """The lines of each function, and under "" those outside of all."""
    found: dict[str, list[str]] = {"": []}
    name = ""
    for line in path.read_text().splitlines():
        if begins := re.match(r"([\w:]+)\(\) \{$", line):
            name = begins[1]
        if not line.lstrip().startswith("#"):
            found.setdefault(name, []).append(line)
        if line == "}":
            name = ""
    return found


def read_from_outside(lines: list[str]) -> set[str]:
    """The variables that `read` sets from a file, a pipe or a command of another process."""
    names = set()
    for line in lines:
        for match in re.finditer(r"\bread ((?:-\w+ (?:\"[^\"]*\" |'[^']*' |\d+ )?)*)([\w ]*)", line):
            if not OF_THE_KERNEL.search(line):
                names |= {*match[2].split()} - {"_"}
    return names


def counted(lines: list[str]) -> set[str]:
    """The variables whose text bash evaluates as a number."""
    text = "\n".join(lines)
    names = set()
    for inside in re.findall(r"\(\(((?:[^()]|\([^()]*\))*)\)\)", text):
        names |= {*re.findall(r"(?<![\w#\"'])\$?\{?([a-z_]\w*)", inside)}
    for left, right in re.findall(r"(\S+) -(?:eq|ne|lt|gt|le|ge) (\S+)", text):
        names |= {*re.findall(r"[a-z_]\w*", f"{left} {right}")}
    for declared in re.findall(r"(?:local|declare) -\w*i\w* ([^\n]*)", text):
        names |= {*re.findall(r"(?:^|\s)([a-z_]\w*)", declared)}
    return names


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_c12_what_is_read_is_a_number_before_it_is_counted(path: Path) -> None:
    name = str(path.relative_to(REPO))
    faults = []
    for function, lines in functions(path).items():
        kept = {
            word for line in lines for words in re.findall(r"numbers::keep ([\w ]+)", line) for word in words.split()
        }
        kept |= {match[1] for line in lines for match in CHECKED.finditer(line)}
        wrong = (read_from_outside(lines) & counted(lines)) - kept
        wrong |= {one for one in kept if re.search(rf"(?:local|declare) -\w*i\w* [^\n]*\b{one}\b", "\n".join(lines))}
        faults += [f"{function}: {one}" for one in sorted(wrong) if (name, function, one) not in SOUND]
    assert faults == []


@pytest.mark.parametrize(
    ("line", "unsafe"),
    [
        ('read -r times <"${file}"\n((times > 1))', {"times"}),
        ('local -i times=0\nread -r times <"${file}"', {"times"}),
        ("read -r a b < <(x)\nprintf %d $((b + 1))", {"b"}),
        ('read -r a <"${f}"\n[[ ${a} -gt 1 ]]', {"a"}),
        ('read -r a <"${f}"\n[[ "${a}" == x ]]', set()),
    ],
)
def test_the_search_finds_them(line: str, unsafe: set[str]) -> None:
    """A search that finds nothing would pass for ever."""
    assert read_from_outside(line.splitlines()) & counted(line.splitlines()) == unsafe


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("7", "7"),
        ("0", "0"),
        ("9" * 18, "9" * 18),
        ("9" * 19, "0"),
        ("08", "0"),
        ("-1", "0"),
        ("", "0"),
        ("x", "0"),
        ("1 2", "0"),
        ("1\\n2", "0"),
        ("SECONDS[$(touch ran)]", "0"),
    ],
)
def test_only_a_whole_number_is_kept(tmp_path: Path, text: str, kept: str) -> None:
    script = f'source {LIB}/numbers.sh; a="$1" b=5; numbers::keep a b; echo "$((a)) $b"'
    done = shell.run(["bash", "-c", script, "-", text.replace("\\n", "\n")], cwd=tmp_path)
    assert (done.stdout, [*tmp_path.iterdir()]) == (f"{kept} 5", [])


# file in state/ -> what reads it.
OF_STATE = {
    "attempts": "retry::begin_attempt",
    "furthest": "restarts::gets_nowhere",
    "requeues": "restarts::times_queued",
    "starts-a": "roles::count_start a",
    "links": "source lib/chain.sh; chain::cancel_rest",
    "failures-0/a-0/rank-0.1": "failures::explain 1 ''",
}


@pytest.mark.parametrize("name", OF_STATE)
def test_c12_text_in_a_file_of_the_state_is_not_run(tmp_path: Path, name: str) -> None:
    lab = BatchLab(tmp_path)
    ran = tmp_path / "ran"
    hostile = f"SECONDS[$(touch${{IFS}}{ran})]"
    path = lab.run_dir / "state" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"7 {hostile} {hostile} {hostile}\n" if name == "furthest" else f"{hostile}\n")
    if name.startswith("failures"):
        path.write_text(f"1 0 {hostile} n1\n")
    script = OF_STATE[name].replace("source lib", f"source {LIB}")
    lab.bash(
        f"restarts::read_furthest() {{ echo 5; }}; KIT_NO_PROGRESS=3; SLURM_RESTART_COUNT=1; signals_got=TERM\n{script} || true"
    )
    assert not ran.exists()


def test_c12_text_in_a_ranks_report_is_not_run_by_the_collector(tmp_path: Path) -> None:
    """A container's root may write the report, and the collector runs on the node."""
    ran = tmp_path / "ran"
    for since in (f"SECONDS[$(touch${{IFS}}{ran})]", "x", "1e9"):
        (tmp_path / "@0").write_text(f"1 compute {since} 1 1 1\n")
        script = f"""
source {LIB}/rank_processes.sh
source {LIB}/rank_progress.sh
rank_progress_folder={tmp_path}; declare -i wrote=0 changed=0 looked=EPOCHSECONDS moved=0
file={tmp_path}/out last="" signs="" line=""
rank_progress::look
"""
        shell.run(["bash", "-c", script], env={"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "7"})
    assert not ran.exists()
    assert not (tmp_path / "out").exists()


def test_c12_text_in_the_report_of_a_warm_process_is_not_run(tmp_path: Path) -> None:
    lab = BatchLab(tmp_path)
    ran = tmp_path / "ran"
    hostile = f"kit-warm stopped 0 SECONDS[$(touch${{IFS}}{ran})]"
    lab.bash(f"warm_ranks_orders=1 KIT_WARM_RANKS=2; printf '%s\\n' '{hostile}' | warm_ranks::listen $$ || true")
    assert not ran.exists()
