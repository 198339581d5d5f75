"""Waits for runs and shows their logs as they grow, for `--wait` and `--follow` of several commands."""

from __future__ import annotations

import contextlib
import fcntl
import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kit.hosts.host import Queue
    from kit.hosts.status import Status
    from kit.record.logs import Wanted
    from kit.slurm.client import JobId, QueuedJob


# The largest pipe that an ordinary user may have: /proc/sys/fs/pipe-max-size, pipe(7).
_PIPE = 1 << 20


def widen_pipe() -> None:
    """Enlarge a pipe at stdout to several chunks of a log, so that this process and its reader alternate less often."""
    # A terminal or a file is not a pipe, and a site may allow less.
    with contextlib.suppress(OSError):
        fcntl.fcntl(sys.stdout.fileno(), fcntl.F_SETPIPE_SZ, _PIPE)


def wait_run(run_dir: Path) -> None:
    """Wait for a run; RunFailed with its own exit code if that is not 0."""
    from kit.hosts import clusters
    from kit.hosts import status as host_status

    seen: list[str] = []

    def on_poll(one: Status) -> None:
        if one.state not in seen[-1:]:
            seen.append(one.state)
            print(f"job {one.job_id}: {one.state}{f' ({one.reason})' if one.reason else ''}", file=sys.stderr)

    with goes_on(run_dir.name):
        last = host_status.wait(run_dir, queue=_patient(), on_poll=on_poll)
        clusters.fetch(run_dir)
        require_success(last)


def follow_run(
    run_dir: Path,
    wanted: Wanted | None = None,
    *,
    fail: bool = True,
    raw: bool = False,
    as_json: bool = False,
    prefix: str = "",
) -> None:
    """Print the logs until the run has ended; then, with `fail`, RunFailed if its code is not 0. prefix: of each source."""
    from kit.hosts import remote_following
    from kit.hosts import status as host_status
    from kit.record import logs as reading

    ended = threading.Event()
    last: list[Status] = []
    problems: list[BaseException] = []

    def watch(fetch: Callable[[], None]) -> None:
        try:
            last.append(host_status.wait(run_dir, queue=_patient(), on_poll=lambda _: None))
            fetch()
        except BaseException as error:  # noqa: BLE001 - handed to the thread that prints, which raises it
            problems.append(error)
        finally:
            ended.set()

    with goes_on(run_dir.name), remote_following.fetching(run_dir, say=_say) as fetch:
        threading.Thread(target=watch, args=(fetch,), daemon=True).start()
        for source, chunk in reading.follow(run_dir, wanted or reading.Wanted(), ended=ended.is_set):
            show(f"{prefix}{source}", chunk, raw=raw, as_json=as_json)
            sys.stdout.flush()
    if problems:
        raise problems[0]
    if fail:
        require_success(last[0])


def follow_halves(halves: Sequence[tuple[str, Path]], wanted: Wanted, *, raw: bool, as_json: bool) -> None:
    """Print the logs of both halves of a training over two clusters until both have ended.

    halves: the prefix of the sources, and the folder, of each. The first error of either is raised at the end.
    """
    problems: list[BaseException] = []

    def one(prefix: str, run_dir: Path) -> None:
        try:
            follow_run(run_dir, wanted, raw=raw, as_json=as_json, fail=False, prefix=prefix)
        except BaseException as error:  # noqa: BLE001 - raised below, in the main thread
            problems.append(error)

    threads = [threading.Thread(target=one, args=half, daemon=True) for half in halves]
    # A Ctrl-C reaches the main thread alone, and the others end with it.
    with goes_on(halves[0][1].name):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if problems:
        raise problems[0]


def show(source: str, chunk: bytes, *, raw: bool = False, as_json: bool = False) -> None:
    """Print a chunk of a log: each line with its source, or as an object; raw: its bytes."""
    from kit.record import logs as reading

    if as_json:
        from kit.answers.log_lines import lines_of
        from kit.answers.schema_versions import versioned

        lines = [versioned("logs", vars(line)) for line in lines_of(source, chunk)]
        sys.stdout.write("".join(f"{json.dumps(line)}\n" for line in lines))
    else:
        sys.stdout.buffer.write(reading.shown(source, chunk, raw=raw))


@contextlib.contextmanager
def goes_on(name: str, *, noun: str = "run") -> Iterator[None]:
    """Within the block, Ctrl-C ends only the command; the run continues. A line tells how to follow the run again, or how to cancel
    it."""
    try:
        yield
    except KeyboardInterrupt:
        follow = f"kit logs -f {name}" if noun == "run" else f"kit results {name}"
        print(f"the {noun} continues: '{follow}' shows it, 'kit cancel {name}' ends it", file=sys.stderr)
        raise


def queue() -> Queue:
    """A function that asks Slurm once per cluster. A cluster that is not up has no jobs."""
    from kit.submission import catch_up

    return catch_up.queue()


def queue_for_display() -> Queue:
    """The same for commands that only show: without an answer, the runs that have not ended are UNKNOWN, which is said once."""
    from kit.errors import SlurmError

    ask = queue()

    def answer(name: str) -> Mapping[JobId, QueuedJob] | None:
        try:
            return ask(name)
        except SlurmError as error:
            _say(f"cluster {name}: {error.message}")
            return None

    return answer


def _patient() -> Queue:
    """The same, but it waits until the connection to a cluster over ssh returns."""
    from kit.hosts import remote_following

    return remote_following.patient(queue(), say=_say)


def _say(line: str) -> None:
    print(f"kit: {line}", file=sys.stderr)


def require_success(run: Status) -> None:
    """RunFailed with the run's own exit code, unless it ended with 0."""
    from kit.answers.explain_run import first_line
    from kit.errors import RunFailed

    if run.state == "COMPLETED" and not run.exit_code:
        return
    code = run.exit_code if run.exit_code is not None else "unknown"
    raise RunFailed(
        f"run {run.run_dir.name}: {run.state}, exit code {code}\n  {first_line(run)}",
        exit_code=run.exit_code or 1,
        hint=f"kit why {run.run_dir.name}",
    )
