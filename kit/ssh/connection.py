"""A connection to a login node by the system's OpenSSH, kept open between commands, and requests over it.

A request is one ssh session: a program for `sh`, its data, and an answer. Program and data go over standard input, so that no part
of them is on a command line, here or on the cluster. The ssh command line has only the kit's own words and the host, which is
checked.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
import tempfile
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs

from kit import shell, trust
from kit.errors import ToolError
from kit.shell import Completed
from kit.ssh import shell_program
from kit.ssh.answers import Reply, read_reply

if TYPE_CHECKING:
    from kit.schema.cluster import SshRules

# A connection is broken after three unanswered keep-alive messages of ssh.
_ALIVE_S, _ALIVE_TIMES = 5, 3
# How long an unused connection stays open.
_KEEP = "15m"
_WAIT_S = 0.05
# sun_path holds 108 bytes. ssh creates the socket under a temporary name that is 17 bytes longer: unix(7), ssh_config(5).
_MOST_SOCKET_PATH = 88
_SSH_FAILED = 255
# Bytes to unpack at a time; how much larger than its packed form an answer of text may be. Deflate can reach 1032.
_STEP, _MOST_TIMES = 4 << 20, 400


# Read-only programs, which may run again after the connection broke.
_READ_ONLY = frozenset({"index", "fetch", "have", "lacking", "digest", "tree"})
_LOOKING_COMMANDS = frozenset({"squeue", "sacct", "sinfo"})
_LOOKING_WORDS = frozenset({("sbatch", "--test-only"), ("sbatch", "--version"), ("scontrol", "show")})
_AGAIN_S = (0.5, 2.0)
# ssh's messages when an existing connection ended.
_BROKEN = re.compile(r"(?i)closed by|reset by|broken pipe|timeout, server|lost connection|session open refused|^$")


# Options that are newer than OpenSSH 7.6 (2017), and the message of an ssh that does not know one.
_NEWER = frozenset({"remotecommand"})
_UNKNOWN_OPTION = re.compile(r"(?i)Bad configuration option: (\w+)")


class LineError(ToolError):
    """The cluster cannot be reached, or the connection broke before the answer came. broken: there was a connection."""

    def __init__(self, message: str, *, hint: str = "", broken: bool = True) -> None:
        super().__init__(message, hint=hint)
        self.broken = broken


@dataclass
class Connection:
    """A cluster's login node. name: of the cluster. timeout: for connecting, in seconds.

    known: answers to Slurm's commands that came with an earlier request; each is used once.
    """

    name: str
    rules: SshRules
    timeout: float = 20.0
    known: dict[tuple[str, ...], Completed] = field(default_factory=dict)
    uid: str = ""
    # Options that this machine's ssh does not know. So its configuration cannot have set them.
    refused: set[str] = field(default_factory=set)

    @property
    def host(self) -> str:
        """The host's name in ssh_config."""
        return self.rules.host

    def ask(
        self,
        name: str,
        constants: Mapping[str, object],
        *,
        data: Iterable[bytes] = (),
        environment: Mapping[str, str] | None = None,
        timeout: float | None = None,
        looking: bool = False,
    ) -> Reply:
        """Run templates/remote/<name>.sh on the cluster with `constants` set; return its answer.

        data: its standard input. environment: additional variables for Slurm's commands. timeout: seconds for everything; None:
        until the connection ends. LineError if there is no complete answer; the program may have run anyway. A read-only program,
        or any program with `looking`, is asked a second time.
        """
        looking = looking or name in _READ_ONLY
        pieces = [*data] if looking else data
        for pause in _AGAIN_S if looking else ():
            try:
                return self._ask(name, constants, pieces, environment, timeout)
            except LineError as error:
                if not error.broken:
                    raise
                time.sleep(pause)
        return self._ask(name, constants, pieces, environment, timeout)

    def _ask(
        self,
        name: str,
        constants: Mapping[str, object],
        data: Iterable[bytes],
        environment: Mapping[str, str] | None,
        timeout: float | None,
    ) -> Reply:
        self._connect()
        mark = f"kit-{secrets.token_hex(16)}"
        text = shell_program.text(name, constants, mark=mark, path=self.rules.path or "", environment=environment or {})
        body = text.encode(errors="surrogateescape")
        # This text is fixed, so the login shell, whichever it is, sees no word from outside.
        command = f"exec sh -c 'p=$(head -c {len(body)}) && eval \"$p\"'"
        argv = [*self._ssh(), "-T", "-o", "ControlMaster=no", "--", self.host, command]
        done = shell.exchange(argv, _joined(body, data), timeout=timeout)
        return self._reply(done, mark.encode())

    def run(
        self, argv: Sequence[str], *, env: Mapping[str, str], text: str | None, timeout: float | None, check: bool
    ) -> Completed:
        """Run one command on the cluster. Raises the errors of `shell.run`."""
        words = tuple(argv)
        done = self.known.pop(words, None)
        if done is None:
            content = (text or "").encode()
            reply = self.ask(
                "run",
                {"ARGV": shell_program.Words(words), "INPUT": len(content)},
                data=[content],
                environment=env,
                timeout=timeout and timeout + self.timeout,
                looking=words[0] in _LOOKING_COMMANDS or words[:2] in _LOOKING_WORDS,
            )
            done = reply.completed("run", words)
        if done.returncode == 127 and f"{words[0]}:" in done.stderr:
            raise ToolError(
                f"cluster {self.name}: {words[0]} is not in the PATH of ssh sessions on {self.host}",
                hint=f'path = "/opt/slurm/bin" under [ssh] of clusters/{self.name}.toml',
            )
        if check and done.returncode != 0:
            raise shell.failed(done)
        return done

    def terminal(self, argv: Sequence[str], *, env: Mapping[str, str]) -> list[str]:
        """The argv for a command on the cluster with this terminal.

        Its words and environment are visible, so they must not be secrets.
        """
        self._connect()
        text = shell_program.alone(argv, path=self.rules.path or "", environment=env)
        return [
            *self._ssh(),
            "-tt",
            "-o",
            "ControlMaster=no",
            "--",
            self.host,
            f"exec sh -c {shell_program.quoted(text)}",
        ]

    def piped(self, argv: Sequence[str], *, env: Mapping[str, str]) -> list[str]:
        """The argv for a command on the cluster with this process's pipes instead of a terminal."""
        words = self.terminal(argv, env=env)
        return ["-T" if word == "-tt" else word for word in words]

    def login(self) -> int:
        """Open the connection on the user's own terminal, where ssh may ask for a password; return ssh's exit code."""
        self.close()
        argv = ["ssh", *self._config(), *self._options(), "-f", "-N", "-o", f"ControlPersist={_KEEP}", "--", self.host]
        return shell.call(argv)

    def close(self) -> None:
        """Close the connection, if it is open."""
        with contextlib.suppress(ToolError):
            shell.run([*self._ssh(), "-O", "exit", "--", self.host], check=False, timeout=5)

    def is_open(self) -> bool:
        """Whether a connection is open. Nothing is sent."""
        try:
            return shell.run([*self._ssh(), "-O", "check", "--", self.host], check=False, timeout=5).returncode == 0
        except ToolError:
            return False

    def _reply(self, done: shell.Exchanged, mark: bytes) -> Reply:
        banner, found, packed = done.stdout.partition(b"\n" + mark + b"\n")
        if not found:
            said = "\n".join(filter(None, [done.stderr.strip(), banner.decode(errors="replace").strip()]))
            if done.returncode == _SSH_FAILED:
                raise self._unreachable(said)
            problem = (
                f"cluster {self.name}: {self.host} runs no commands (exit code {done.returncode}){_indented(said)}"
            )
            raise ToolError(problem, hint=f"ssh {self.host} true")
        try:
            plain = _unpacked(packed)
        except _BombError:
            problem = f"cluster {self.name}: the answer of {self.host} unpacks to over {_MOST_TIMES} times its size"
            raise ToolError(problem, hint=f"ssh {self.host} true") from None
        except (EOFError, zlib.error):
            raise LineError(
                f"cluster {self.name}: the connection to {self.host} broke before the answer was complete"
            ) from None
        reply = read_reply(plain, stderr=done.stderr)
        if not reply.whole:
            raise LineError(f"cluster {self.name}: {self.host} did not finish its answer{_indented(done.stderr)}")
        return reply

    def _connect(self) -> None:
        """Open the connection if it is not open. It outlives this command, and has no terminal to ask for a password."""
        if self.is_open():
            return
        shell.require("ssh", hint="install OpenSSH's client (Debian: openssh-client)")
        with tempfile.TemporaryDirectory(prefix="kit-ssh-") as folder:
            log = Path(folder) / "log"
            options = ["-o", "BatchMode=yes", "-N", "-o", f"ControlPersist={_KEEP}"]
            argv = ["ssh", *self._config(), *self._options(), *options, "--", self.host]
            pid = shell.daemon(argv, log=log)
            until = time.monotonic() + self.timeout
            while not self.is_open():
                if shell.ended(pid) and not self.is_open():
                    said = log.read_text(encoding="utf-8", errors="replace").strip()
                    if self._drop_refused_option(said):
                        self._connect()
                        return
                    raise self._unreachable(said)
                if time.monotonic() > until:
                    shell.end(pid)
                    raise self._unreachable(f"no connection within {self.timeout:g} s")
                time.sleep(_WAIT_S)

    def _unreachable(self, said: str) -> LineError:
        hint = f"'kit cluster login {self.name}' connects on your terminal, where ssh may ask; or see 'ssh {self.host}'"
        last = (said.strip().splitlines() or [""])[-1]
        broken = _BROKEN.search(last) is not None
        return LineError(
            f"cluster {self.name}: {self.host} cannot be reached{_indented(said)}", hint=hint, broken=broken
        )

    def _drop_refused_option(self, said: str) -> bool:
        """Leave out an option from now on if this ssh is too old for it and refused it. Returns whether there was one."""
        found = _UNKNOWN_OPTION.search(said)
        name = found[1].lower() if found else ""
        if name in self.refused or name not in _NEWER:
            return False
        self.refused.add(name)
        return True

    def _ssh(self) -> list[str]:
        return ["ssh", *self._config(), *self._options(), "-o", "BatchMode=yes"]

    def _config(self) -> list[str]:
        return ["-F", str(trust.ssh_configuration(self.rules.config, cluster=self.name))] if self.rules.config else []

    def _options(self) -> list[str]:
        # Disable options of a user's ssh_config that are meant for terminal sessions.
        unwanted = ("RemoteCommand=none", "RequestTTY=no", "ClearAllForwardings=yes", "PermitLocalCommand=no")
        kept = [one for one in unwanted if one.partition("=")[0].lower() not in self.refused]
        none = [word for one in kept for word in ("-o", one)]
        alive = ["-o", f"ServerAliveInterval={_ALIVE_S}", "-o", f"ServerAliveCountMax={_ALIVE_TIMES}"]
        connect = ["-o", f"ConnectTimeout={max(1, round(self.timeout))}"]
        return [*none, *alive, *connect, "-o", "ControlMaster=auto", "-o", f"ControlPath={_sockets()}/%C"]


class _BombError(Exception):
    """An answer that no text packs to."""


def _unpacked(packed: bytes) -> bytes:
    """The content of a gzip file, in steps, so that a small answer cannot fill the memory. EOFError if it is incomplete."""
    engine = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    parts, size, rest = list[bytes](), 0, packed
    while not engine.eof:
        part = engine.decompress(rest, _STEP)
        rest = engine.unconsumed_tail
        if not part and not rest and not engine.eof:
            raise EOFError
        parts.append(part)
        size += len(part)
        if size > max(_STEP * 16, len(packed) * _MOST_TIMES):
            raise _BombError
    return b"".join(parts)


def _joined(body: bytes, data: Iterable[bytes]) -> Iterable[bytes]:
    yield body
    yield from data


def _indented(said: str) -> str:
    return "".join(f"\n  {line}" for line in said.splitlines()[-8:] if line.strip())


def _sockets() -> Path:
    """The folder for the sockets of open connections. It is closed to other users: whoever can use a socket is logged in."""
    own = platformdirs.user_cache_path("kit") / "ssh"
    folder = own if len(os.fsencode(own)) + 41 <= _MOST_SOCKET_PATH else Path(f"/tmp/kit-ssh-{os.geteuid()}")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        seen = folder.lstat()
    except OSError as error:
        raise ToolError(f"{folder}: cannot hold ssh's sockets: {error.strerror}") from None
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.geteuid() or seen.st_mode & 0o077:
        raise ToolError(
            f"{folder}: this folder for ssh's sockets must be yours and have mode 0700", hint=f"rm -r {folder}"
        )
    return folder
