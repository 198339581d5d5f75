"""A local mirror of a cluster's run folders, which commands read in place of the folders on the cluster.

    ~/.cache/kit/remote/<cluster>-<id>/
      mirror.json     its cluster, and the known facts about the login node
      index           inode, size, time and path of each run's record, as it was sent
      files/<run>     the same for other files of a run that a command has asked for
      runs/           the run folders
      snapshots/      caches of workspace scans

It is only a cache: it may be removed while no command runs, and is then sent again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs

from kit.errors import KitError, RunError, ToolError
from kit.files import untrusted_files
from kit.ssh import shell_program

if TYPE_CHECKING:
    from kit.schema.cluster import Cluster
    from kit.shell import Completed
    from kit.ssh.answers import Reply, Sent
    from kit.ssh.connection import Connection

_NOTE = "mirror.json"
# A path as `find` prints it: relative, inside the folder, without hidden parts.
_PATH = r"(?!\.)[^\0\n/]+(?:/(?!\.)[^\0\n/]+)*"


@dataclass(frozen=True, kw_only=True)
class There:
    """User, folders and versions on a login node. runs, store: folders of run folders and of images, as paths of that machine."""

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
    """A node that failed a preflight. since: seconds since the epoch, by the cluster's clock. recorded_by: as in Avoided."""

    node: str
    since: float
    reason: str
    recorded_by: str = ""


@dataclass(frozen=True)
class ClusterAnswer:
    """The answer to one request. keys: batch script -> its job, for the jobs that Slurm still knows."""

    there: There
    keys: dict[str, int]
    avoid: tuple[FailedNode, ...] = ()


@dataclass(frozen=True)
class Mirror:
    """The mirror of one cluster."""

    root: Path

    @property
    def runs(self) -> Path:
        """The folder of the mirrored run folders."""
        return self.root / "runs"

    @property
    def unwanted(self) -> Path:
        """The folder of notes about halves of trainings that may have to be cancelled: kit/submission/lone_halves.py."""
        return self.root / "unwanted"

    def there(self) -> There | None:
        """The known facts about the login node; None before the first answer."""
        try:
            return There(**json.loads(untrusted_files.read_text(self.root / _NOTE))["there"])
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def cluster(self) -> str:
        """The cluster's name."""
        return str(json.loads(untrusted_files.read_text(self.root / _NOTE))["cluster"])

    def name_of(self, run_dir: Path) -> str:
        """A run folder's path, relative to the folder of runs."""
        return run_dir.relative_to(self.runs).as_posix()

    def path_there(self, run_dir: Path) -> str:
        """A run folder's path on the cluster."""
        known = self.there()
        if known is None:
            raise RunError(f"{run_dir}: its cluster has not been asked yet", hint="kit runs")
        return f"{known.runs}/{self.name_of(run_dir)}"

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Lock the mirror: one command at a time changes it."""
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
        """Update the run records, and fetch everything that a command needs first, in one request.

        plan: also fetch what only a submit needs. Slurm's queue is stored in `connection.known`.
        """
        with self.changing():
            known = _read(self.root / "index")
            constants = {**folders(cluster), "KNOWN": len(known), "PLAN": int(plan), "AVOID": ".avoid"}
            reply = connection.ask("index", constants, data=[known], timeout=timeout)
            facts = reply.table("facts")
            connection.uid = facts["uid"]
            self._apply(reply, self.root / "index", known)
            remote = _there(facts, reply, before=self.there())
            note = {"cluster": connection.name, "host": connection.host, "there": asdict(remote)}
            _write(self.root / _NOTE, json.dumps(note).encode())
        connection.known.update(primed(reply, ("squeue", queue_options(remote.uid), "queue")))
        if plan:
            connection.known.update(
                primed(reply, ("sbatch", ("--version",), "version"), ("srun", ("--help",), "pyxis"))
            )
        return ClusterAnswer(remote, _keys(reply), _avoided(reply) if plan else ())

    def fetch(
        self,
        connection: Connection,
        cluster: Cluster,
        run_dir: Path,
        *,
        sacct: Sequence[str] = (),
        queue: bool = False,
        whole: bool = False,
        relay: bool = False,
    ) -> str:
        """Update the files of a run, in one request: of logs only the new bytes, all other files completely.

        sacct: an accounting command to run in the same request. queue: also fetch Slurm's queue. Both answers are stored in
        `connection.known`. whole: include the programs that the kit put there. relay: return the state of the run's relay, in the
        words of templates/remote/shared.sh; else an empty text.
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
                "RELAY": int(relay) or "",
            }
            reply = connection.ask("fetch", {**constants, **words}, data=[known])
            self._apply(reply, state, known)
        there = self.there()
        assert there is not None
        if sacct:
            connection.known[tuple(sacct)] = reply.completed("accounted", sacct)
        if queue:
            connection.known.update(primed(reply, ("squeue", queue_options(there.uid), "queue")))
        return reply.texts.get("relay", "")

    def _apply(self, reply: Reply, state: Path, known: bytes) -> None:
        """Apply the changes, files first. If the process is killed, the remaining changes are sent again."""
        changes = reply.text("changes")
        if changes == "closed":
            raise ToolError("the cluster's folder of runs: permission denied", hint="set paths.runs of the cluster")
        for file in reply.files:
            self._write(file)
        for grown in reply.grown:
            with self._path(grown.path).open("r+b") as sink:
                sink.seek(grown.offset)
                sink.write(grown.content)
        lines = dict.fromkeys(known.decode(errors="surrogateescape").splitlines())
        sent = {file.path for file in reply.files}
        by_path = {_path_in(line): line for line in lines}
        for line in changes.splitlines():
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

    def _write(self, file: Sent) -> None:
        path = self._path(file.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, file.content)
        os.utime(path, (file.mtime, file.mtime))

    def _remove(self, name: str) -> None:
        path = self._path(name)
        path.unlink(missing_ok=True)
        if path.name in {"manifest.json", "sweep.json"}:
            shutil.rmtree(path.parent, ignore_errors=True)
            (self.root / "files" / path.parent.relative_to(self.runs).as_posix().replace("/", "~")).unlink(
                missing_ok=True
            )

    def _path(self, name: str) -> Path:
        """The path of a file in the mirror; ToolError for a name that leads out of the mirror."""
        if not re.fullmatch(_PATH, name):
            raise ToolError(f"the cluster sent {name!r}, which is not a path of a file in a run folder")
        return self.runs / name


def find_mirror(cluster: str, rules: Cluster) -> Mirror:
    """The mirror of a cluster. Another host or folder of runs has another mirror."""
    assert rules.ssh is not None
    what = json.dumps([rules.ssh.host, rules.ssh.config, rules.runs])
    own = hashlib.sha256(what.encode()).hexdigest()[:8]
    return Mirror(platformdirs.user_cache_path("kit") / "remote" / f"{cluster}-{own}")


def holding(run_dir: Path) -> Mirror | None:
    """The mirror that contains a run folder; None for a run of this machine."""
    for folder in run_dir.parents:
        if folder.name == "runs" and (folder.parent / _NOTE).is_file():
            return Mirror(folder.parent)
    return None


def folders(cluster: Cluster) -> dict[str, object]:
    """Values of the shell variables RUNS (run folders) and STORE (images) for the programs of templates/remote."""
    return {
        "RUNS": shell_program.filled(cluster.runs),
        "STORE": shell_program.filled(cluster.paths.store or "{data}/images"),
    }


def queue_options(uid: str) -> tuple[str, ...]:
    """The options of `client.queue`."""
    return ("--noheader", "--array", "--states=all", f"--user={uid}", "--format=kit|%F|%K|%T|%N|%M|%r")


def primed(reply: Reply, *asked: tuple[str, Sequence[str], str]) -> dict[tuple[str, ...], Completed]:
    """Results by their argv, from triples of program, options and name in the answer."""
    return {(tool, *options): reply.completed(name, (tool, *options)) for tool, options, name in asked}


def _there(facts: dict[str, str], reply: Reply, *, before: There | None) -> There:
    known = {name: facts[name] for name in ("user", "uid", "home", "data", "runs", "store")}
    if "version" not in reply.codes:
        return There(**known, pyxis=before.pyxis if before else False, version=before.version if before else "")
    return There(**known, pyxis="--container-image" in reply.texts["pyxis"], version=reply.texts["version"].strip())


def _keys(reply: Reply) -> dict[str, int]:
    # A site may print lines of its own.
    found = re.findall(r"kit\|([1-9]\d{0,17})\|(.+)", reply.texts["keys"], re.ASCII)
    return {script: int(number) for number, script in found}


def _avoided(reply: Reply) -> tuple[FailedNode, ...]:
    found = []
    for line in reply.texts["avoid"].splitlines():
        user, node, since, reason = [*line.split(" ", 3), "", "", ""][:4]
        with contextlib.suppress(ValueError):
            found.append(FailedNode(node=node, since=float(since), reason=reason, recorded_by=user.removeprefix("-")))
    return tuple(found)


def _path_in(line: str) -> str:
    return [*line.split(" ", 3), "", "", "", ""][3]


def _read(path: Path) -> bytes:
    try:
        return untrusted_files.read_bytes(path)
    except OSError:
        return b""


def _write(path: Path, content: bytes) -> None:
    """Write a file atomically, under a temporary name first."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        import tempfile

        handle, name = tempfile.mkstemp(prefix=".new-", dir=path.parent)
        with os.fdopen(handle, "wb") as sink:
            sink.write(content)
        Path(name).chmod(0o644)
        Path(name).rename(path)
    except OSError as error:
        raise KitError(f"{path}: cannot be written: {error.strerror}", hint="free some space") from None
