"""A copy of what a cluster's run folders say, here: the commands that read runs read these files, as they would over there.

    ~/.cache/kit/remote/<cluster>-<id>/
      mirror.json     whose it is, and what is known of the login node
      index           inode, size, time and path of each run's record, as it was sent
      files/<run>     the same of the other files of a run that a command has asked for
      runs/           the run folders
      snapshots/      what was read of workspaces, for the next scan

A cache and nothing more: it may be removed while no command runs, and is sent again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs

from kit.errors import KitError, RunError, ToolError
from kit.remote import shell_program

if TYPE_CHECKING:
    from kit.remote.answers import Reply, Sent
    from kit.remote.connection import Connection
    from kit.shell import Completed
    from kit.spec.cluster import Cluster

_NOTE = "mirror.json"
# A path as `find` prints it: relative, nothing that leads elsewhere, nothing that is hidden.
_PATH = re.compile(r"(?!\.)[^\0\n/]+(?:/(?!\.)[^\0\n/]+)*")


@dataclass(frozen=True, kw_only=True)
class There:
    """The login node, as it said itself. runs, store: the user's folders."""

    user: str
    uid: str
    home: str
    data: str
    runs: str
    store: str
    pyxis: bool = False
    version: str = ""


@dataclass(frozen=True, kw_only=True)
class FailedNode:
    """A node that failed a preflight. since: seconds since the epoch, by the clock over there."""

    node: str
    since: float
    reason: str


@dataclass(frozen=True)
class ClusterAnswer:
    """What one question to the cluster brought. keys: batch script -> the job that runs it, of jobs that Slurm remembers."""

    there: There
    keys: dict[str, int]
    avoid: tuple[FailedNode, ...] = ()


@dataclass(frozen=True)
class Mirror:
    """The mirror of one cluster."""

    root: Path

    @property
    def runs(self) -> Path:
        """The run folders that are here."""
        return self.root / "runs"

    def there(self) -> There | None:
        """What is known of the login node; None before the first answer."""
        try:
            return There(**json.loads((self.root / _NOTE).read_text(encoding="utf-8"))["there"])
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def cluster(self) -> str:
        """The cluster's name."""
        return str(json.loads((self.root / _NOTE).read_text(encoding="utf-8"))["cluster"])

    def name_of(self, run_dir: Path) -> str:
        """The run folder relative to the folder of runs."""
        return run_dir.relative_to(self.runs).as_posix()

    def path_there(self, run_dir: Path) -> str:
        """The same run folder over there."""
        known = self.there()
        if known is None:
            raise RunError(f"{run_dir}: nothing is known of its cluster yet", hint="kit runs")
        return f"{known.runs}/{self.name_of(run_dir)}"

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """One command at a time changes the mirror."""
        try:
            self.runs.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise RunError(f"{self.root}: cannot be written: {error.strerror}", hint="free some space") from None
        from filelock import FileLock

        with FileLock(self.root / "lock"):
            yield

    def refresh(
        self, connection: Connection, cluster: Cluster, *, plan: bool = False, timeout: float | None = None
    ) -> ClusterAnswer:
        """Ask for all that a command begins with, and bring the records of runs up to date: one request.

        plan: with what only a submit needs. Slurm's queue is left among the answers that `connection` knows.
        """
        with self.changing():
            known = _read(self.root / "index")
            constants = {**folders(cluster), "KNOWN": len(known), "PLAN": int(plan), "AVOID": ".avoid"}
            reply = connection.ask("index", constants, data=[known], timeout=timeout)
            facts = reply.table("facts")
            connection.uid = facts["uid"]
            self._put(reply, self.root / "index", known)
            there = _there(facts, reply, before=self.there())
            note = {"cluster": connection.name, "host": connection.host, "there": asdict(there)}
            _write(self.root / _NOTE, json.dumps(note).encode())
        connection.known.update(primed(reply, ("squeue", queue_options(there.uid), "queue")))
        if plan:
            connection.known.update(
                primed(reply, ("sbatch", ("--version",), "version"), ("srun", ("--help",), "pyxis"))
            )
        return ClusterAnswer(there, _keys(reply), _avoided(reply) if plan else ())

    def fetch(
        self,
        connection: Connection,
        cluster: Cluster,
        run_dir: Path,
        *,
        sacct: Sequence[str] = (),
        queue: bool = False,
        whole: bool = False,
    ) -> None:
        """Bring the files of a run up to date: logs by what they have grown, the others whole. One request.

        sacct: a question to accounting that goes with it. queue: Slurm's queue as well; both answers are known to `connection`.
        whole: with the programs that the kit put there.
        """
        name = self.name_of(run_dir)
        state = self.root / "files" / name.replace("/", "~")
        with self.changing():
            known = _read(state)
            constants = {**folders(cluster), "RUN": name, "KNOWN": len(known), "JOBS": int(bool(sacct)) or ""}
            words = {
                "ARGV": shell_program.Words(sacct or ("true",)),
                "QUEUE": int(queue) or "",
                "WHOLE": int(whole) or "",
            }
            reply = connection.ask("fetch", {**constants, **words}, data=[known])
            self._put(reply, state, known)
        there = self.there()
        assert there is not None
        if sacct:
            connection.known[tuple(sacct)] = reply.completed("accounted", sacct)
        if queue:
            connection.known.update(primed(reply, ("squeue", queue_options(there.uid), "queue")))

    def _put(self, reply: Reply, state: Path, known: bytes) -> None:
        """Apply what has changed, files first: what a kill leaves undone is sent again."""
        said = reply.text("changes")
        if said == "closed":
            raise ToolError("the folder of runs over there may not be entered", hint="set paths.runs of the cluster")
        for one in reply.files:
            self._write(one)
        for grown in reply.grown:
            with self._path(grown.path).open("r+b") as sink:
                sink.seek(grown.offset)
                sink.write(grown.content)
        lines = dict.fromkeys(known.decode(errors="surrogateescape").splitlines())
        sent = {one.path for one in reply.files}
        by_path = {_path_in(line): line for line in lines}
        for line in said.splitlines():
            kind, _, rest = line.partition(" ")
            entry = rest.partition(" ")[2] if kind == "grown" else rest
            path = _path_in(entry)
            before = by_path.pop(path, None)
            if before is not None:
                lines.pop(before)
            if kind == "gone":
                self._remove(path)
            elif kind == "grown" or path in sent:
                lines[entry] = None
        text = "".join(f"{line}\n" for line in lines).encode(errors="surrogateescape")
        if text != known:
            _write(state, text)

    def _write(self, one: Sent) -> None:
        path = self._path(one.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, one.content)
        os.utime(path, (one.mtime, one.mtime))

    def _remove(self, name: str) -> None:
        path = self._path(name)
        path.unlink(missing_ok=True)
        if path.name in {"manifest.json", "sweep.json"}:
            shutil.rmtree(path.parent, ignore_errors=True)
            (self.root / "files" / path.parent.relative_to(self.runs).as_posix().replace("/", "~")).unlink(
                missing_ok=True
            )

    def _path(self, name: str) -> Path:
        """Where a file goes; ToolError for a name that would lead out of the mirror."""
        if not _PATH.fullmatch(name):
            raise ToolError(f"the cluster named a file {name!r}, which no run has")
        return self.runs / name


def of(cluster: str, rules: Cluster) -> Mirror:
    """The mirror of a cluster; another host, or another folder of runs, has another one."""
    assert rules.ssh is not None
    what = json.dumps([rules.ssh.host, rules.ssh.config, rules.runs])
    own = hashlib.sha256(what.encode()).hexdigest()[:8]
    return Mirror(platformdirs.user_cache_path("kit") / "remote" / f"{cluster}-{own}")


def holding(run_dir: Path) -> Mirror | None:
    """The mirror that a run folder is in; None for one of this machine's own."""
    for folder in run_dir.parents:
        if folder.name == "runs" and (folder.parent / _NOTE).is_file():
            return Mirror(folder.parent)
    return None


def folders(cluster: Cluster) -> dict[str, object]:
    """The constants RUNS and STORE of a program."""
    return {
        "RUNS": shell_program.filled(cluster.runs),
        "STORE": shell_program.filled(cluster.paths.store or "{data}/images"),
    }


def queue_options(uid: str) -> tuple[str, ...]:
    """Those of `client.queue`."""
    return ("--noheader", "--array", "--states=all", f"--user={uid}", "--format=%F|%K|%T|%r|%N|%M")


def primed(reply: Reply, *asked: tuple[str, Sequence[str], str]) -> dict[tuple[str, ...], Completed]:
    """Answers by their argv: (program, options, name in the answer)."""
    return {(tool, *options): reply.completed(name, (tool, *options)) for tool, options, name in asked}


def _there(facts: dict[str, str], reply: Reply, *, before: There | None) -> There:
    known = {name: facts[name] for name in ("user", "uid", "home", "data", "runs", "store")}
    if "version" not in reply.codes:
        return There(**known, pyxis=before.pyxis if before else False, version=before.version if before else "")
    return There(**known, pyxis="--container-image" in reply.texts["pyxis"], version=reply.texts["version"].strip())


def _keys(reply: Reply) -> dict[str, int]:
    pairs = (line.partition("|") for line in reply.texts["keys"].splitlines())
    return {script: int(number) for number, _, script in pairs if number.isdecimal() and script}


def _avoided(reply: Reply) -> tuple[FailedNode, ...]:
    found = []
    for line in reply.texts["avoid"].splitlines():
        node, since, reason = [*line.split(" ", 2), "", ""][:3]
        with contextlib.suppress(ValueError):
            found.append(FailedNode(node=node, since=float(since), reason=reason))
    return tuple(found)


def _path_in(line: str) -> str:
    return [*line.split(" ", 3), "", "", "", ""][3]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _write(path: Path, content: bytes) -> None:
    """Whole, under a temporary name first."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=".new-", dir=path.parent)
        with os.fdopen(handle, "wb") as sink:
            sink.write(content)
        Path(name).chmod(0o644)
        Path(name).rename(path)
    except OSError as error:
        raise KitError(f"{path}: cannot be written: {error.strerror}", hint="free some space") from None
