"""Sends a folder to a cluster over ssh and submits it there exactly once, even if the connection breaks.

One program on the cluster (templates/remote/submit.sh) receives the whole folder before it acts, and it continues if the connection
ends. So after a broken connection there is one job or none. The next request finds out which, by the folder and by the key in the
job's comment.
"""

from __future__ import annotations

import hashlib
import io
import sys
import tarfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from kit.errors import RunError, SlurmError
from kit.hosts.login_node import LoginNode
from kit.slurm import client
from kit.ssh import shell_program
from kit.ssh.answers import Reply
from kit.ssh.connection import LineError

# Pauses before repeating a request after a broken connection, in seconds.
_AGAIN_S = (1.0, 3.0, 9.0)

Placing = Literal["place", "over"]


@dataclass(frozen=True, kw_only=True)
class Errand:
    """The arguments of one call of submit.sh, which explains them. folder: relative to the cluster's folder of runs.

    links: of a chain, after the first job.
    """

    folder: str
    kind: Literal["run", "again", "array"] | Placing
    argv: tuple[str, ...] = ("true",)
    script: str = "batch.sh"
    right: str = "state/submitting"
    again: str = ""
    old: int = 0
    links: int = 0

    @property
    def key(self) -> str:
        """The job's comment in Slurm. It identifies the job after a broken connection."""
        return f"kit:{self.folder}" + (f"/{self.again}" if self.again else "")

    def constants(self, cluster: LoginNode) -> dict[str, object]:
        """Constants for the program."""
        words = {"RUN": self.folder, "KIND": self.kind, "SCRIPT": self.script, "RIGHT": self.right}
        more = {"AGAIN": self.again, "OLD": self.old, "KEY": self.key}
        return {**cluster.folders, **words, **more, "LINKS": self.links, "ARGV": shell_program.Words(self.argv)}


def with_key(errand: Errand, script_text: str) -> tuple[str, ...]:
    """The sbatch argv with the key as comment. If the job sets a comment itself, its batch script's path identifies it instead."""
    argv = errand.argv
    return argv if "--comment" in script_text else (*argv[:-1], f"--comment={errand.key}", argv[-1])


def array_errand(sweep: str, number: int, argv: tuple[str, ...]) -> Errand:
    """The errand to submit one array of a sweep whose folder is on the cluster."""
    script = f"arrays/{number}/batch.sh"
    errand = Errand(
        folder=sweep,
        kind="array",
        argv=argv,
        script=script,
        right=f"arrays/{number}/submitting",
        again=str(number),
    )
    return replace(errand, argv=with_key(errand, ""))


def run_errand(run_id: str, argv: tuple[str, ...], text: str = "", *, links: int = 0) -> Errand:
    """The errand to submit a run. text: of its batch script."""
    made = Errand(folder=run_id, kind="run", argv=argv, links=links)
    return replace(made, argv=with_key(made, text))


@dataclass(frozen=True)
class Packed:
    """An archive, completely in memory."""

    content: bytes
    sha256: str


def packed(folder: Path) -> Packed:
    """A folder as an archive. Files of secrets keep their mode when they are unpacked."""
    sink = io.BytesIO()

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    with tarfile.open(fileobj=sink, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path in sorted(folder.iterdir()):
            archive.add(path, arcname=path.name, filter=plain)
    content = sink.getvalue()
    return Packed(content, hashlib.sha256(content).hexdigest())


def ask(cluster: LoginNode, errand: Errand) -> int | None:
    """The result of an errand after a broken connection: the job's number, recorded on the cluster too.

    None without a folder or a job yet.
    """
    reply = cluster.connection.ask("submit", {**errand.constants(cluster), "SIZE": 0, "SHA": ""})
    return _jobs(reply)[0] if reply.text("result") == "submitted" else None


def until_known(
    cluster: LoginNode, errand: Errand, content: Packed | None, *, env: Mapping[str, str] | None = None
) -> tuple[int, ...]:
    """Do the errand. After a broken connection, ask for its result and continue from there. Returns the job's number, then those of
    the links of a chain; nothing if nothing is submitted.

    content: None if the cluster already has the folder. JobRefusedError if sbatch refuses it, RunError if the cluster's disk does,
    LineError if the connection does not return.
    """
    constants, what = errand.constants(cluster), f"{errand.folder}{f' {errand.again}' if errand.again else ''}"
    pauses, send = iter(_AGAIN_S), content is not None
    while True:
        sent = content if send else None
        size, sha, data = (len(sent.content), sent.sha256, [sent.content]) if sent else (0, "", [])
        try:
            reply = cluster.connection.ask(
                "submit", {**constants, "SIZE": size, "SHA": sha}, data=data, environment=env
            )
        except LineError as error:
            pause = next(pauses, None)
            if pause is None:
                problem = f"{error.message}\n  whether run {what} was submitted is not known yet"
                hint = f"kit status {errand.folder}, once the connection is back; there is never a second job"
                raise LineError(problem, hint=hint) from None
            print(
                f"kit: the line to {cluster.connection.host} broke; asking what became of the submit", file=sys.stderr
            )
            time.sleep(pause)
            # A folder that is only placed has no job to ask for. It is sent again, which does not change existing files.
            send = send and errand.kind in get_args(Placing)
            continue
        outcome = reply.text("result")
        if outcome in {"nothing", "cut"} and content is not None:
            if not send or next(pauses, None) is not None:
                send = True
                continue
            raise LineError(f"cluster {cluster.name}: the run folder did not arrive completely", hint="submit again")
        return _jobs_of(reply, outcome, cluster, errand)


def remove(cluster: LoginNode, folder: str) -> None:
    """Remove a folder on the cluster from which no job was submitted."""
    cluster.connection.ask("remove", {**cluster.folders, "RUN": folder})


def _jobs_of(reply: Reply, outcome: str, cluster: LoginNode, errand: Errand) -> tuple[int, ...]:
    words = reply.texts.get("said", "")
    lines = "\n".join(f"  {line}" for line in (words or reply.stderr).splitlines()[-5:])
    if outcome == "submitted":
        return _jobs(reply)
    if outcome == "placed":
        return ()
    if outcome == "refused":
        raise client.refused(words or reply.stderr)
    if outcome == "unknown":
        problem = f"cluster {cluster.name}: whether Slurm has taken run {errand.folder} is not known yet:\n{lines}"
        hint = f"kit status {errand.folder} tells, once Slurm answers; there is never a second job"
        raise SlurmError(problem, hint=hint)
    if outcome == "nothing":
        raise RunError(f"cluster {cluster.name}: run {errand.folder} is not there any more", hint="kit runs")
    place = f"{cluster.connection.host}:{cluster.runs_there()}/{errand.folder}"
    raise RunError(
        f"{place}: cannot be written:\n{lines}", hint="free some space there, or set paths.runs of the cluster"
    )


def _jobs(reply: Reply) -> tuple[int, ...]:
    return tuple(map(int, reply.texts["said"].split()))
