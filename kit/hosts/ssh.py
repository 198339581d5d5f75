"""A login node over ssh as a cluster's host. Commands read a mirror of its run folders, and each operation is one request."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from kit import shell
from kit.errors import SlurmError
from kit.hosts import remote_snapshots, ssh_submit
from kit.hosts.host import EndedRun, Inputs, JobToEnd, NewArrays, NewRun, UserFacts
from kit.hosts.login_node import LoginNode
from kit.record import run_facts
from kit.schema.run_paths import RunPaths
from kit.shell import Completed
from kit.slurm import accounting, client
from kit.slurm.client import JobId, QueuedJob
from kit.slurm.run_local_or_ssh import OverSsh
from kit.ssh import shell_program
from kit.ssh.connection import LineError
from kit.ssh.run_folder_mirror import ClusterAnswer

if TYPE_CHECKING:
    from kit.hosts.avoided_nodes import Avoided
    from kit.record.manifest import Manifest

# How old an answer may be when it is used for the first time: a command asks, does its other requests, and then reads the answer.
# On a busy machine or over a slow connection that takes long. It is used again for about the time of one command.
_FIRST_USE_S, _FRESH_S = 30.0, 2.0
# After a hang-up sh waits for the command to end, then removes the secrets. $0 is the run folder.
_AND_REMOVE = 'trap : HUP INT TERM; "$@"; code=$?; rm -f -- "$0/.secrets"; exit "$code"'
# Of a text that a step writes.
_MOST_BYTES = 1 << 20
# Pauses before repeating a request after a broken connection, in seconds.
_AGAIN_S = (1.0, 3.0, 9.0)


@dataclass
class SshHost(LoginNode):
    """One cluster over ssh. silent: the reason why it does not answer; empty if it does.

    asked, asked_at, used: the last answer, its time, and whether its queue was read. relays: run -> state of its relay (trainings
    over two clusters), from the last update of the run's files.
    """

    silent: str = ""
    asked: ClusterAnswer | None = None
    asked_at: float = 0.0
    used: bool = False
    relays: dict[str, str] = field(default_factory=dict)
    shares_files = False
    look_s = 1.0

    def env(self, inherit: Sequence[str] = ()) -> OverSsh:
        """The environment for its Slurm commands, with the connection."""
        return OverSsh(self.connection, client.inherited(inherit))

    def is_up(self) -> bool:
        """Whether it answered when it was last asked."""
        return not self.silent

    def refresh(self, *, plan: bool = False) -> ClusterAnswer:
        """Update the mirror, with Slurm's queue, in one request. plan: also what only a submit needs."""
        timeout = None if plan else self.connection.timeout
        self.asked = self.mirror.refresh(self.connection, self.rules, plan=plan, timeout=timeout)
        self.asked_at, self.used, self.silent = time.monotonic(), False, ""
        return self.asked

    def refresh_if_old(self) -> bool:
        """Update the mirror, if its last answer is too old to be used. A silent cluster is not asked."""
        fresh_s = _FRESH_S if self.used else _FIRST_USE_S
        if self.silent or (self.asked is not None and time.monotonic() - self.asked_at <= fresh_s):
            return False
        self.refresh()
        return True

    def settle(self) -> None:
        """Record the jobs of interrupted submits, which the last answer names by their batch scripts."""
        if self.asked is not None:
            ssh_submit.settle(self, self.asked)

    def queue(self) -> Mapping[JobId, QueuedJob] | None:
        """Slurm's queue from the last update of the mirror. If that is old, both are fetched."""
        if self.silent:
            return None
        self.refresh_if_old()
        self.used = True
        return client.queue(env=self.env())

    def cancel(self, jobs: Sequence[JobToEnd]) -> None:
        """End these jobs. One program cancels with Slurm and records it, at most once, however often the connection breaks."""
        if not jobs:
            return
        lines = [
            f"{how} {job_id} {self.mirror.name_of(one.run_dir)}"
            for one in jobs
            for how, job_id in (*(("now", link) for link in one.links if link != one.job_id), (one.how, one.job_id))
        ]
        words = shell_program.Words(("printf", "%s\\n", *lines))
        constants = {**self.folders, "NONCE": f"cancel-{time.time_ns():x}", "ARGV": words}
        for pause in (*_AGAIN_S, None):
            try:
                reply = self.connection.ask("cancel", constants)
            except LineError:
                if pause is None:
                    raise
                time.sleep(pause)
            else:
                break
        for name, code in reply.codes.items():
            if code != 0:
                raise SlurmError(f"scancel, {name.replace('_', ' ')}: {reply.stderr.strip() or 'refused'}")
        self.forget_queue()

    def forget_queue(self) -> None:
        """Drop the queue that came with the last answer: it is older than what was changed now."""
        self.asked = None

    def halves(self) -> Path:
        """A folder in the mirror."""
        return self.mirror.unwanted

    def user_facts(self) -> UserFacts:
        """The facts of the user there, in one request."""
        asked = self.refresh(plan=True)
        facts = asked.there
        return UserFacts(
            user=facts.user,
            uid=self.connection.uid,
            home=facts.home,
            data=facts.data,
            store=facts.store,
            runs=Path(facts.runs),
            avoid=tuple(sorted(one.node for one in asked.avoid if not one.recorded_by)),
        )

    def path_here(self, run_dir: Path) -> Path:
        """The folder's mirror."""
        return self.mirror.runs / run_dir.name

    def require_inputs(self, inputs: Inputs) -> None:
        """Send what the cluster lacks; one request if it lacks nothing."""
        ssh_submit.send_inputs(self, inputs)

    def submit(self, run: NewRun) -> Manifest:
        """Send the run folder. A program there submits it, once, even if the connection breaks."""
        made = ssh_submit.place(self, run, submitted=True)
        self.forget_queue()
        return made

    def submit_again(self, run: EndedRun) -> Manifest:
        """Send the run's record and secrets again. A program there submits its scripts."""
        made = ssh_submit.submit_again(self, run)
        self.forget_queue()
        return made

    def submit_arrays(self, sweep: NewArrays) -> Mapping[int, int]:
        """Send the files. A program there submits each array, once, even if the connection breaks."""
        try:
            return ssh_submit.submit_arrays(self, sweep)
        finally:
            self.forget_queue()

    def require_images_of(self, run_dir: Path, record: Manifest) -> None:
        """Send the images of a run that the cluster lacks."""
        ssh_submit.require_images_of(self, run_dir)

    def open_shell(self, run: NewRun, argv: Sequence[str], code: Path | None) -> int:
        """Send the run folder, copy the snapshot there, and run the command on the login node with this terminal.

        The secrets are removed when the command or the connection ends.
        """
        ssh_submit.place(self, run, submitted=False)
        self.forget_queue()
        words = {"RUN": run.run_dir.name, "TREE": str(code) if code else ""}
        self.connection.ask("opened", {**self.folders, **words}).text("opened")
        there = ["sh", "-c", _AND_REMOVE, str(run.run_dir), *argv]
        return shell.call(self.connection.terminal(there, env=dict(run.env)))

    def on_terminal(self, argv: Sequence[str]) -> int:
        """Run the command on the login node with this terminal."""
        return shell.call(self.connection.terminal(argv, env={}))

    def piped(self, argv: Sequence[str]) -> list[str]:
        """The argv of an ssh that runs the command."""
        return self.connection.piped(argv, env={})

    def piped_env(self) -> None:
        """That of this process, for ssh."""
        return

    def gather_texts(
        self, run_dir: Path, step: Callable[[Path, Path], list[str]], *, timeout_s: float
    ) -> dict[str, bytes]:
        """Run a step that writes `*.txt` files into a folder of the run there, which come with the answer."""
        there = self.path_there(run_dir)
        folder = RunPaths(there).state / f"stacks-{secrets.token_hex(8)}"
        words = {"FOLDER": str(folder), "ARGV": shell_program.Words(step(there, folder))}
        reply = self.connection.ask("stacks", {**self.folders, **words}, timeout=timeout_s)
        if reply.codes["step"] != 0:
            raise shell.failed(
                Completed(argv=("srun",), returncode=reply.codes["step"], stdout="", stderr=reply.stderr)
            )
        return {one.path: one.content[:_MOST_BYTES] for one in reply.files}

    def fetch(self, run_dir: Path, *, accounting_too: bool = True) -> None:
        """Update a run's files, and ask accounting for its job, in one request."""
        facts = run_facts.read_facts(run_dir)
        sacct = accounting.question([facts.job_id]) if accounting_too and facts.job_id is not None else ()
        relay = facts.partner is not None
        said = self.mirror.fetch(self.connection, self.rules, run_dir, sacct=sacct, relay=relay)
        if said:
            self.relays[run_dir.name] = said

    def fetch_whole(self, run_dir: Path) -> None:
        """Update all files that a repetition or an export needs, with programs and snapshot. At most two requests."""
        self.mirror.fetch(self.connection, self.rules, run_dir, whole=True)
        if tree := run_facts.read_facts(run_dir).tree:
            remote_snapshots.fetch(self, tree)

    def fetch_sweep(self, folder: Path) -> None:
        """Update the files of all points of a sweep, in one request."""
        self.mirror.fetch(self.connection, self.rules, folder)

    def path_there(self, run_dir: Path) -> Path:
        """A run folder's path on the cluster."""
        return Path(self.mirror.path_there(run_dir))

    def avoided(self) -> list[Avoided]:
        """The nodes that are recorded next to the runs there, in one request."""
        from kit.hosts.avoided_nodes import Avoided

        nodes = [
            Avoided(node=n.node, since=datetime.fromtimestamp(n.since, UTC), reason=n.reason, recorded_by=n.recorded_by)
            for n in self.refresh(plan=True).avoid
        ]
        return sorted(nodes, key=lambda one: one.node)

    def avoid(self, node: str, reason: str) -> None:
        """Record a node next to the runs there, in one request."""
        from kit.planning.batch_file import AVOID_DIR

        words = {"AVOID": AVOID_DIR, "NODE": node, "REASON": reason}
        self.connection.ask("avoid", {**self.folders, **words}).text("avoid")

    def forget(self, node: str) -> None:
        """Remove the record of a node there. RunError if there is none."""
        from kit.hosts import avoided_nodes
        from kit.planning.batch_file import AVOID_DIR

        avoided_nodes.require_known(node, self.avoided())
        place = f"{self.runs_there()}/{AVOID_DIR}/{node}"
        self.connection.run(["rm", "-f", "--", place], env={}, text=None, timeout=None, check=True)
