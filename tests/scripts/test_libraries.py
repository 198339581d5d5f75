"""Libraries of templates/ that have no test file of their own; and that every library is tested without a cluster."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kit import shell
from tests import laid_out
from tests.scripts import batch_lab
from tests.support import NODE, REPO

LIB = laid_out.LIB


def bash(script: str, *libraries: str, **env: str) -> list[str]:
    """What a script says that has sourced these libraries, on both streams."""
    sources = "".join(f"source {LIB}/{name}.sh\n" for name in ("clock", *libraries))
    text = f"exec 2>&1\nset -uo pipefail\n{sources}{script}\n"
    done = shell.run(["bash", "-c", text], env={"PATH": os.environ["PATH"], **env}, check=False, timeout=60)
    return done.stdout.splitlines()


@pytest.mark.parametrize("path", sorted([*LIB.iterdir(), *NODE.glob("*.py")]), ids=lambda path: path.name)
def test_each_library_is_in_a_test_that_needs_no_cluster(path: Path) -> None:
    """By a file of its name, by its name in one, or by a function of it where BatchLab sources the library."""
    tests = [one for name in ("scripts", "unit", "training") for one in (REPO / "tests" / name).glob("*.py")]
    texts = [one.read_text(encoding="utf-8") for one in tests]
    if path.stem in batch_lab.LIBRARIES:
        assert any(f"{path.stem}::" in text for text in texts)
    else:
        words = (path.name, f'"{path.stem}"', f"from {path.stem} import")
        assert (
            any(one.name == f"test_{path.stem}.py" for one in tests)
            or any(w in text for w in words for text in texts)
            or any(re.search(rf"^import {path.stem}\b", text, re.MULTILINE) for text in texts)
        )


# ---- log.sh, events.sh ----


def test_a_line_of_the_log_has_time_node_and_message() -> None:
    (line,) = bash("log::info 'a  b' c", "log", SLURMD_NODENAME="n1", TZ="UTC-2")
    when, _, said = line.partition(" ")
    assert time.strptime(when, "%Y-%m-%dT%H:%M:%S%z").tm_gmtoff == 7200
    assert said == "n1: a  b c"
    (line,) = bash("log::error no; log::info yes 2>/dev/null", "log", SLURMD_NODENAME="n1")
    assert line.endswith("n1: error: no")


def test_an_event_is_one_line_of_json(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    env = {"KIT_RUN_DIR": str(tmp_path), "SLURM_JOB_ID": "7", "KIT_RESTART_COUNT": "2"}
    bash("events::record start nodes n1,n2; events::record end exit_code 3", "events", **env, SLURM_JOB_START_TIME="5")
    first, last = [json.loads(line) for line in (tmp_path / "state/events.jsonl").read_text().splitlines()]
    assert (first["event"], first["job_id"], first["restart"], first["attempt"]) == ("start", 7, 0, 2)
    assert (first["nodes"], first["allocated"]) == ("n1,n2", "5")
    assert abs(first["epoch"] - time.time()) < 60
    assert (last["event"], last["exit_code"]) == ("end", "3")
    assert "allocated" not in last, "what passed before a start is the prolog"


def test_an_event_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    env = {"KIT_RUN_DIR": str(tmp_path / "gone"), "SLURM_JOB_ID": "7", "KIT_RESTART_COUNT": "0"}
    assert bash("set -e; events::record end; echo on", "events", **env)[-1] == "on"


# ---- heartbeat.sh ----


def test_the_heart_beats_until_it_is_stopped(tmp_path: Path) -> None:
    """Signals to the script's group do not end it, its stop does."""
    script = (
        f'log::info() {{ echo "$*" >>{tmp_path}/beats; }}\n'
        f"beats() {{ for i in {{1..600}}; do (($(wc -l <{tmp_path}/beats) >= $1)) && return; sleep 0.05; done; }}\n"
        f"touch {tmp_path}/beats; heartbeat::stopped; KIT_HEARTBEAT=1\n"
        'heartbeat::before_ranks; heart=$!; beats 1; kill -TERM "${heart}"; kill -USR1 "${heart}"; beats 3; heartbeat::stopped\n'
        'for i in {1..600}; do kill -0 "${heart}" 2>/dev/null || { echo gone; break; }; sleep 0.05; done'
    )
    assert bash(script, "loops", "heartbeat") == ["gone"]
    beats = (tmp_path / "beats").read_text().splitlines()
    assert len(beats) >= 3
    assert set(beats) == {"still running"}


def test_the_heart_stops_with_a_script_that_is_killed(tmp_path: Path) -> None:
    script = (
        f"log::info() {{ :; }}\nsource {LIB}/loops.sh\nsource {LIB}/heartbeat.sh\nKIT_HEARTBEAT=600 heartbeat::before_ranks\n"
        "echo $!\n(loops::close && exec sleep 600)"
    )
    with subprocess.Popen(["bash", "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True) as one:
        assert one.stdout is not None
        heart = Path(f"/proc/{int(one.stdout.readline())}")
        assert heart.exists()
        one.send_signal(signal.SIGKILL)
        one.wait()
        deadline = time.monotonic() + 30
        try:
            # It may be gone between the two looks.
            with contextlib.suppress(FileNotFoundError):
                while heart.exists() and "Z" not in (heart / "stat").read_text().rpartition(")")[2].split()[0]:
                    assert time.monotonic() < deadline, "it beats on for nobody"
                    time.sleep(0.05)
        finally:
            os.killpg(one.pid, signal.SIGKILL)


# ---- output_links.sh ----


@pytest.mark.parametrize(
    ("batch", "file", "linked"),
    [("1", "elsewhere/out of it.txt", True), ("1", "logs/batch.log", False), ("", "elsewhere/out.txt", False)],
    ids=["outside", "a log of the run", "by hand"],
)
def test_slurms_output_outside_the_run_has_a_link_in_it(tmp_path: Path, batch: str, file: str, linked: bool) -> None:
    for folder in ("logs", "elsewhere"):
        (tmp_path / folder).mkdir()
    (tmp_path / "logs/other.log").touch()
    env = {"PATH": os.environ["PATH"], "KIT_RUN_DIR": str(tmp_path), "SLURM_JOB_ID": "7", "environment_batch": batch}
    script = f"source {LIB}/output_links.sh; output_links::link; output_links::link"
    with (tmp_path / file).open("w") as out:
        subprocess.run(["bash", "-uc", script], env=env, stdout=out, stderr=subprocess.PIPE, check=True)
    found = {path.name: path.resolve() for path in (tmp_path / "logs").glob("*-7.log")}
    assert found == ({"batch-7.log": tmp_path / file} if linked else {}), "a pipe has no link"


# ---- cache_folders.sh ----

CACHES = (
    "TRITON_CACHE_DIR",
    "TORCH_EXTENSIONS_DIR",
    "TORCHINDUCTOR_CACHE_DIR",
    "CUDA_CACHE_PATH",
    "HF_HOME",
    "XDG_CACHE_HOME",
    "MPLCONFIGDIR",
)


def caches(folder: Path, image: str = "", **env: str) -> dict[str, str]:
    """Where the caches are, once they are pointed at a folder."""
    say = "".join(f'; echo "${name}"' for name in CACHES)
    lines = bash(f"cache_folders::point_at '{folder}' {image}{say}", "cache_folders", TMPDIR=str(folder.parent), **env)
    return dict(zip(CACHES, lines, strict=True))


def test_caches_are_below_the_folder_of_the_node(tmp_path: Path) -> None:
    found = caches(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    names = ("triton", "torch_extensions", "inductor", "cuda", "huggingface", "xdg", "matplotlib")
    assert [*found.values()] == [f"{tmp_path}/a/b/{name}" for name in names]
    assert caches(tmp_path / "a" / "b", HF_HOME="/mine")["HF_HOME"] == "/mine", "the job's own stands"


def test_what_runs_beside_the_program_has_a_home_that_it_can_write(tmp_path: Path) -> None:
    """The user's own where that is possible, and no folder through a link of somebody else."""

    def home(own: Path) -> Path:
        (said,) = bash(f"tools::home '{tmp_path}/cache'; echo $HOME", "tools", HOME=str(own), TMPDIR=str(tmp_path))
        return Path(said)

    assert home(tmp_path) == tmp_path
    made = home(tmp_path / "none")
    assert made == tmp_path / "cache" / "home"
    assert made.stat().st_mode & 0o777 == 0o700
    made.rmdir()
    made.symlink_to(tmp_path)
    assert home(tmp_path / "none").name.startswith("kit-home-")


def test_compiled_code_belongs_to_its_image(tmp_path: Path) -> None:
    """One image must not load what another's PyTorch has compiled; downloads are the same for all."""
    one, two = caches(tmp_path, "aaa"), caches(tmp_path, "bbb")
    assert {name for name in CACHES if one[name] != two[name]} == {*CACHES[:4]}
    assert one["TRITON_CACHE_DIR"] == f"{tmp_path}/compiled/aaa/triton"


@pytest.mark.parametrize("kind", ["link", "file"])
def test_a_cache_folder_that_is_not_ones_own_is_left_alone(tmp_path: Path, kind: str) -> None:
    """What lies in a cache runs."""
    (tmp_path / "theirs").mkdir()
    folder = tmp_path / "cache"
    if kind == "link":
        folder.symlink_to(tmp_path / "theirs")
    else:
        folder.touch()
    (parent,) = {Path(path).parent for path in caches(folder).values()}
    assert parent.parent == tmp_path
    assert parent.name.startswith("kit-cache-")
    assert parent.is_dir()
    assert parent.stat().st_mode & 0o777 == 0o700


# ---- setup_lines.sh ----


def set_up(tmp_path: Path, text: str, script: str) -> list[str]:
    (tmp_path / "setup").write_text(text)
    return bash(f"KIT_RUN_DIR='{tmp_path}'; setup_lines::run '{tmp_path}/setup'; code=$?; {script}", "setup_lines")


def test_set_up_lines_share_the_shell_of_the_caller(tmp_path: Path) -> None:
    text = 'A=1\nif true; then\n  B="two\nlines"\nfi\nread -r C <<END\nthree\nEND\nfalse || true\nread -r D || D=no\nE=last'
    said = set_up(tmp_path, text, 'echo "$code" "$A" "$B" "$C" "$D" "$E"')
    assert said == ["0 1 two", "lines three no last"]


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("true\n(exit 7)\ntouch never", 7, "line 2 failed with exit code 7: (exit 7)"),
        ("true\ntrue\nfor i in 1; do\n  false\ndone\ntouch never", 1, "line 3 failed with exit code 1: for i in 1; do"),
        ("true\nif true; then\ntouch never", 2, "line 2 is not complete: if true; then"),
        ("cat <<END\ntouch never", 2, "line 1 is not complete: cat <<END"),
        ("true \\", 2, "line 1 is not complete: true \\"),
    ],
)
def test_the_first_set_up_line_that_fails_is_named(tmp_path: Path, text: str, code: int, said: str) -> None:
    text = text.replace("never", str(tmp_path / "never"))
    lines = set_up(tmp_path, text, 'echo "$code" "$setup_lines_code" "$setup_lines_said"')
    assert lines[0] == f"1 {code} {said}"
    assert not (tmp_path / "never").exists()


# ---- chain.sh ----


def link(tmp_path: Path, last: str) -> tuple[int, list[str], list[str]]:
    """Exit code of link 2 of three, what it says, and which jobs it cancels, after a last record of the run."""
    (tmp_path / "state").mkdir(exist_ok=True)
    (tmp_path / "state/events.jsonl").write_text(last)
    (tmp_path / "state/links").write_text("1\n2\n3\n")
    script = 'scancel() { echo "cancel $1"; }\nlog::info() { echo "$*"; }\nlog::error() { echo "$*"; }\n'
    script += "trap 'echo \"code $?\"' EXIT\nchain::require_more; echo on"
    said = bash(script, "log", "numbers", "chain", KIT_RUN_DIR=str(tmp_path), SLURM_JOB_ID="2")
    words = [line for line in said if not line.startswith(("cancel ", "code "))]
    return int(said[-1].removeprefix("code ")), words, [line for line in said if line.startswith("cancel ")]


END = '{"event": "start"}\n{"event": "end", "job_id": 1, "exit_code": "%d"}\n'


@pytest.mark.parametrize(
    ("last", "words"),
    [
        ("", "the link before ended without a record; continuing from the newest checkpoint"),
        ('{"event": "end", "exit_code": "1"}\n{"event": "start"}\n', "the link before ended without a record"),
        (END % 137, "the link before was cut with exit code 137; continuing from the newest checkpoint"),
        (END % 254, "the link before was cut with exit code 254"),
    ],
    ids=["no record", "no end", "killed", "the last signal"],
)
def test_a_link_goes_on_after_one_that_was_cut(tmp_path: Path, last: str, words: str) -> None:
    code, said, cancelled = link(tmp_path, last)
    assert (code, said[-1], cancelled) == (0, "on", [])
    assert said[0].startswith(words)


@pytest.mark.parametrize(("code", "goes_on"), [(3, False), (128, False)])
def test_a_programs_own_end_ends_the_chain_unless_it_was_asked_to_stop(
    tmp_path: Path, code: int, goes_on: bool
) -> None:
    found, said, cancelled = link(tmp_path, END % code)
    assert (found, cancelled) == (code, ["cancel 1", "cancel 3"]), "all but itself"
    assert f"own exit code {code}" in said[0]
    (tmp_path / "state/stopped.json").touch()
    found, said, cancelled = link(tmp_path, END % code)
    assert (found, said[-1], cancelled) == (0, "on", [])


def test_after_a_run_that_is_done_a_link_has_nothing_to_do(tmp_path: Path) -> None:
    assert link(tmp_path, END % 0) == (0, ["the run is done; link 2 has nothing to do"], [])


# ---- rank_progress.sh ----

# What its loop has, and a clock that stands.
LOOK = 'declare -i wrote=0 changed=0 moved=EPOCHSECONDS looked=EPOCHSECONDS\nline="" last="" signs="" file="$1"\n'


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """The folder that ranks report to, in place of the one in /dev/shm."""
    (tmp_path / "shm").mkdir()
    return tmp_path / "shm"


def looked(node: Path, script: str, *, now: int = 1_000_000_000, **env: str) -> list[str]:
    head = f'rank_progress_folder="{node}"; unset EPOCHSECONDS; EPOCHSECONDS={now}\nset -- "{node.parent}/n1.progress"\n{LOOK}'
    return bash(head + script, "rank_processes", "rank_progress", SLURM_JOB_ID="7", **env)


def report(node: Path, name: str, *, since: float, step: int = 5) -> None:
    """Of a rank, as kit_rank.py writes it: a line of what it does, a line of what its seconds went into, padded."""
    text = f"{step} compute {since} 0.1 1 0.2 0.0 0.0 0.3   \n0 990 991 0 0 1.0 2.0   \n"
    (node / name).write_text(text)


def test_what_the_ranks_of_a_node_report_is_one_line_a_look(node: Path) -> None:
    report(node, "@0", since=999_999_999.5)
    report(node, "b@12", since=999_999_999.0, step=7)
    report(node, "@1~99", since=1.0)
    looked(node, "rank_progress::look")
    (line,) = (node.parent / "n1.progress").read_text().splitlines()
    when, *ranks = line.split("\t")
    assert abs(float(when) - time.time()) < 60
    assert ranks == [
        "@0 5 compute 999999999.5 0.1 1 0.2 0.0 0.0 0.3",
        "b@12 7 compute 999999999.0 0.1 1 0.2 0.0 0.0 0.3",
    ], "and nothing of a process that is gone"


@pytest.mark.parametrize(
    ("since", "script", "lines"),
    [
        (999_999_999, "look; EPOCHSECONDS=1000000005; touched; look", 1),
        (999_999_999, "look; EPOCHSECONDS=1000000006; touched; look", 2),
        (999_999_999, "look; EPOCHSECONDS=1000000008; look; look", 3),
        (
            999_999_999,
            "look; changed=1000000000; EPOCHSECONDS=1000000029; wrote=1000000000; changed=999999900; look",
            1,
        ),
        (
            999_999_999,
            "look; changed=1000000000; EPOCHSECONDS=1000000030; wrote=1000000000; changed=999999900; look",
            2,
        ),
    ],
    ids=["too soon", "six seconds later", "late, every look", "nothing new for a minute", "and half a minute"],
)
def test_how_often_a_line_is_written(node: Path, since: int, script: str, lines: int) -> None:
    report(node, "@0", since=since)
    touched = f"touched() {{ printf '6 compute %s.0 0.1 1 0.2 0 0 0.3\\n' \"${{EPOCHSECONDS}}\" >'{node}/@0'; }}\n"
    looked(node, f"look() {{ rank_progress::look; }}\n{touched}{script}")
    assert len((node.parent / "n1.progress").read_text().splitlines()) == lines


WRITES = """\
SLURM_JOB_ID="self-$$"
mkfifo "$1.asks"
exec {asks}<>"$1.asks"
: >"$1.done"
SLURM_JOB_ID="${SLURM_JOB_ID}" KIT_RANK_SHELL=1 KIT_ROLE= RANK=0 \\
    bash -c 'while read -r bytes; do printf "%0*d" "${bytes}" 0 >"$1.written"; echo; done' - "$1" <&"${asks}" >"$1.done" &
writer=$!
trap 'kill "${writer}"' EXIT
write() { echo "$1" >&"${asks}"; until [[ "$(wc -l <"${file}.done")" == "$2" ]]; do sleep 0.05; done; wrote=0; }
rank_progress::look
write 100000 1; rank_progress::look
write 1000 2; rank_progress::look
"""


def test_a_rank_that_saves_and_writes_is_seen_to(node: Path) -> None:
    """Of a line of a log or a heartbeat it is not."""
    (node / "@0").write_text(f"5 save {999_999_991.5} 0.1 1 0.2 0 0 0.3\n")
    (node / "@1").write_text(f"5 save {999_999_991.5} 0.1 1 0.2 0 0 0.3\n")
    began = time.time()
    assert looked(node, WRITES) == []
    lines = [line.split("\t")[1:] for line in (node.parent / "n1.progress").read_text().splitlines()]
    first, wrote, last = [[float(rank.split(" ")[3]) for rank in line] for line in lines]
    assert first == [999_999_991.5, 999_999_991.5]
    assert wrote[0] >= began, "when it was seen"
    assert wrote[1] == 999_999_991.5, "of the other rank nothing is seen"
    assert last == wrote


def test_what_seconds_went_into_is_a_file_that_is_written_anew(node: Path) -> None:
    report(node, "@0", since=1.5)
    report(node, "@1~99", since=2.5)
    (node / "@2").write_text("a line that is being written\n")
    looked(node, "rank_progress::spent; rank_progress::spent", SLURM_RESTART_COUNT="3")
    lines = [line.split("\t") for line in (node.parent / "n1.3.spent").read_text().splitlines()]
    assert [(rank, spent) for _, rank, spent in lines] == [
        ("@0 5 compute 1.5 0.1 1 0.2 0.0 0.0 0.3", "0 990 991 0 0 1.0 2.0"),
        ("@1 5 compute 2.5 0.1 1 0.2 0.0 0.0 0.3", "0 990 991 0 0 1.0 2.0"),
    ], "of one that is gone, too"
    assert not list(node.parent.glob("*.new"))


def test_where_no_rank_reports_its_processes_are_looked_at(node: Path) -> None:
    """Quiet since the last look that saw them compute or write."""
    look = 'look() { EPOCHSECONDS=$((EPOCHSECONDS + 30)); sums="$1 $2"; rank_progress::look; }\n'
    sums = "rank_progress::sum_up() { ticks=${sums% *} written=${sums#* }; }\ncommand() { return 1; }\n"
    looked(node, f"{sums}{look}look 100 5; look 110 5; look 120 5; look 151 5; look 152 6; look 152 6; look 9 6")
    written = (node.parent / "n1.progress").read_text().splitlines()
    assert [line.split("\t")[1] for line in written] == [f"@quiet {seconds}" for seconds in (0, 30, 60, 0, 0, 30, 0)]
    nobody = "rank_progress::sum_up() { return 1; }\n"
    (node.parent / "n1.progress").unlink()
    looked(node, f"{nobody}{look}look 0 0")
    assert not (node.parent / "n1.progress").exists(), "where there is no rank there is nothing to tell"


def test_reports_of_a_killed_collector_are_removed_and_others_are_kept() -> None:
    number = str(os.getpid() + 20_000_000)
    folder = Path(f"/dev/shm/kit-{os.geteuid()}-{number}")
    try:
        script = 'rank_progress::begin; (exec {rank_progress_fd}<&-; reports::remove_unused; ls -d "${rank_progress_folder}")'
        assert bash(script, "rank_progress", "reports", SLURM_JOB_ID=number) == [str(folder)]
        assert folder.exists()
        bash("reports::remove_unused", "reports", SLURM_JOB_ID=number)
        assert not folder.exists()
        folder.symlink_to("/tmp")
        bash("reports::remove_unused", "reports", SLURM_JOB_ID=number)
        assert folder.is_symlink()
    finally:
        folder.unlink(missing_ok=True)


def test_the_folder_of_checkpoints_in_memory_lasts_as_long_as_its_keeper() -> None:
    """By the name that kit_memory gives it. A later job removes what killed jobs have left."""
    number = str(os.getpid() + 30_000_000)
    env = {"SLURM_JOB_ID": number, "SLURM_RESTART_COUNT": "2", "SLURMD_NODENAME": "n1"}
    code = "import kit_memory_files as of; print(of.folder())"
    name = shell.run([sys.executable, "-c", code], env={"PYTHONPATH": str(NODE), **env}).stdout.strip()
    folder = Path(name)
    assert name == f"/dev/shm/kit-memory-{os.geteuid()}-{number}.2-n1"
    try:
        script = (
            'memory_checkpoints::begin; echo "$?"; stat -c %a "${memory_checkpoints_folder}"; '
            'touch "${memory_checkpoints_folder}/rank-0@5"\n'
            '(exec {memory_checkpoints_fd}<&-; memory_checkpoints::remove_unused; ls "${memory_checkpoints_folder}")'
        )
        assert bash(script, "memory_checkpoints", **env) == ["0", "700", "rank-0@5"]
        assert folder.exists()
        bash("memory_checkpoints::remove_unused", "memory_checkpoints", **env)
        assert not folder.exists()
        folder.mkdir()
        os.utime(folder, (0, 0))
        bash("rank_progress::sweep", "rank_progress", SLURM_JOB_ID="1")
        assert not folder.exists()
        folder.symlink_to("/tmp")
        assert bash('memory_checkpoints::begin; echo "$?"', "memory_checkpoints", **env) == ["1"]
    finally:
        if folder.is_symlink():
            folder.unlink()


def test_the_folder_of_the_ranks_is_made_held_and_taken_away() -> None:
    number = str(os.getpid() + 10_000_000)
    folder = Path(f"/dev/shm/kit-{os.geteuid()}-{number}")
    old = Path(f"/dev/shm/kit-{os.geteuid()}-{number}9")
    old.mkdir()
    os.utime(old, (0, 0))
    try:
        script = (
            'rank_progress::begin; echo "$?"; stat -c %a "${rank_progress_folder}"\n'
            'flock --nonblock "${rank_progress_folder}" true || echo held; rank_progress::end'
        )
        assert bash(script, "rank_progress", SLURM_JOB_ID=number) == ["0", "700", "held"]
        assert not folder.exists()
        assert not old.exists(), "what a collector that was killed had left"
        folder.symlink_to("/tmp")
        assert bash('rank_progress::begin; echo "$?"', "rank_progress", SLURM_JOB_ID=number) == ["1"]
    finally:
        folder.unlink(missing_ok=True)
        if old.exists():
            old.rmdir()
