"""Starts all processes of the kit; no other module does. Commands are argv lists, never shell strings.

Every child gets its own process group, so that a time-out or a Ctrl-C ends it and all its children.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from kit.errors import KitError, TimedOutError, ToolError

Argv = Sequence[str]
Process = subprocess.Popen[bytes]

# Seconds between TERM and KILL when the kit ends a child.
_GRACE_S = 5.0


# The umask for programs; -1: the same as this process.
_umask = -1


def set_own_umask() -> None:
    """From now on, others cannot change files that this process writes, whatever the user's umask.

    Programs get the user's umask.
    """
    global _umask  # noqa: PLW0603 - the umask is the process's, too
    _umask = os.umask(0o022)
    os.umask(_umask | 0o022)


@dataclass(frozen=True, kw_only=True)
class Completed:
    """A finished command. stdout and stderr are text, without their last newline."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str


def which(name: str, *, path: str | None = None) -> str | None:
    """Absolute path of a program, searched in PATH and in the sbin folders that an ordinary user's PATH lacks."""
    search = path if path is not None else os.environ.get("PATH", os.defpath)
    return shutil.which(name, path=os.pathsep.join([search, "/usr/local/sbin", "/usr/sbin", "/sbin"]))


def which_in(folder: str, name: str) -> str | None:
    """Absolute path of a program in exactly this folder."""
    return shutil.which(name, path=folder)


def require(name: str, *, hint: str) -> str:
    """Like `which`, but a missing program raises ToolError with `hint`."""
    found = which(name)
    if found is None:
        raise ToolError(f"{name}: no such program on this machine", hint=hint)
    return found


def bound(argv: Argv) -> list[str]:
    """The command, changed to get TERM when this process dies, even of KILL. For programs that would otherwise run on for minutes.

    Where setpriv is missing, or too old for it (util-linux before 2.33: RHEL 8), the command is unchanged.
    """
    setpriv = which("setpriv")
    return [*([setpriv, "--pdeathsig=TERM"] if setpriv and _sets_pdeathsig(setpriv) else []), *argv]


@functools.cache
def _sets_pdeathsig(setpriv: str) -> bool:
    return "--pdeathsig" in run([setpriv, "--help"], check=False, timeout=10).stdout


def run(
    argv: Argv,
    *,
    check: bool = True,
    input: str | None = None,  # noqa: A002 - subprocess's own name
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    errors: str = "replace",
) -> Completed:
    """Run to the end and capture both outputs.

    env replaces the whole environment; None inherits it. timeout: in seconds. errors: how to decode bytes that are not UTF-8.
    Raises ToolError when the program is missing, when it exceeds timeout, and, with check, when it returns non-zero.
    """
    process = _popen(argv, cwd=cwd, env=env, stdin=subprocess.PIPE if input is not None else subprocess.DEVNULL)
    with _owned(process):
        try:
            out, err = process.communicate(None if input is None else input.encode(), timeout=timeout)
        except subprocess.TimeoutExpired as late:
            said = (late.stderr or b"").decode(errors="replace").strip().splitlines()
            last = f"; its last line: {said[-1]}" if said else ""
            raise TimedOutError(f"{argv[0]}: no answer within {timeout:g} s: {' '.join(argv)}{last}") from None
    done = Completed(
        argv=tuple(argv),
        returncode=process.returncode,
        stdout=out.decode(errors=errors).rstrip("\n"),
        stderr=err.decode(errors="replace").rstrip("\n"),
    )
    if check and done.returncode != 0:
        raise failed(done)
    return done


def lines(
    argv: Argv, *, cwd: Path | None = None, env: Mapping[str, str] | None = None, chunks: Iterable[bytes] = ()
) -> Iterator[str]:
    """Yield stdout and stderr, merged, line by line as they come; ToolError at the end if the exit code is not 0.

    chunks: its standard input. An exception from this iterable ends the program and is raised here.
    """
    stdin = subprocess.PIPE if chunks else subprocess.DEVNULL
    process = _popen(argv, cwd=cwd, env=env, stdin=stdin, stderr=subprocess.STDOUT)
    tail: list[str] = []
    with _owned(process):
        assert process.stdout is not None
        feeder = _Feeder(process, chunks)
        feeder.start()
        for raw in process.stdout:
            line = raw.decode(errors="replace").rstrip("\n")
            tail = [*tail[-19:], line]
            yield line
        code = process.wait()
        feeder.join()
    if feeder.error is not None:
        raise feeder.error
    if code != 0:
        raise failed(Completed(argv=tuple(argv), returncode=code, stdout="", stderr="\n".join(tail)))


class _Feeder(threading.Thread):
    """Writes a program's input while this process reads its output. error: an exception from the input's iterable."""

    def __init__(self, process: subprocess.Popen[bytes], chunks: Iterable[bytes]) -> None:
        super().__init__(daemon=True)
        self._process, self._chunks = process, chunks
        self.error: Exception | None = None

    def run(self) -> None:
        sink = self._process.stdin
        if sink is None:
            return
        # A program that ends before its input does prints its own message.
        with contextlib.suppress(BrokenPipeError, ValueError):
            try:
                for chunk in self._chunks:
                    sink.write(chunk)
            except (KitError, OSError) as error:
                if isinstance(error, BrokenPipeError):
                    raise
                self.error = error
                _end_group(self._process)
            sink.close()


class _Collected:
    """Reads both outputs of a program to their ends, while this process writes its input."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._found = [b"", b""]
        self._readers = [
            threading.Thread(target=self._read, args=(place, stream), daemon=True)
            for place, stream in enumerate((process.stdout, process.stderr))
        ]
        for reader in self._readers:
            reader.start()

    def both(self) -> tuple[bytes, bytes]:
        """stdout and stderr, once the program has closed them."""
        for reader in self._readers:
            reader.join()
        return self._found[0], self._found[1]

    def _read(self, place: int, stream: IO[bytes] | None) -> None:
        if stream is not None:
            self._found[place] = stream.read()


@contextlib.contextmanager
def output(argv: Argv) -> Iterator[IO[bytes]]:
    """The standard output of a program as bytes, for the length of a block; the program ends with the block.

    ToolError if the output was read to its end and the program failed.
    """
    process = _popen(argv, stderr=subprocess.DEVNULL)
    with _owned(process):
        assert process.stdout is not None
        yield process.stdout
        if process.stdout.read(1):
            _end_group(process)
            return
        code = process.wait()
    if code != 0:
        raise failed(Completed(argv=tuple(argv), returncode=code, stdout="", stderr=""))


def feed(
    argv: Argv,
    chunks: Iterable[bytes],
    *,
    env: Mapping[str, str] | None = None,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> Completed:
    """Run with `chunks` as its standard input, so that a stream needs no disk. `on_bytes` is called with each chunk's size.

    Raises ToolError when the program fails. If it ends before its input does, its own message is raised, not the broken pipe.
    """
    process = _popen(argv, env=env, stdin=subprocess.PIPE)
    with _owned(process):
        assert process.stdin
        collected = _Collected(process)
        with contextlib.suppress(BrokenPipeError):
            for chunk in chunks:
                process.stdin.write(chunk)
                on_bytes(len(chunk))
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.wait()
        out, err = collected.both()
    done = Completed(
        argv=tuple(argv),
        returncode=process.returncode,
        stdout=out.decode(errors="replace").rstrip("\n"),
        stderr=err.decode(errors="replace").rstrip("\n"),
    )
    if done.returncode != 0:
        raise failed(done)
    return done


@dataclass(frozen=True, kw_only=True)
class Exchanged:
    """A finished command whose output is bytes."""

    returncode: int
    stdout: bytes
    stderr: str


def exchange(argv: Argv, chunks: Iterable[bytes], *, timeout: float | None = None) -> Exchanged:
    """Run with `chunks` as its standard input; return its output, whatever its exit code. ToolError after `timeout` seconds.

    If the program ends before its input does, the broken pipe is ignored: the program has its own message.
    """
    process = _popen(argv, stdin=subprocess.PIPE)
    with _owned(process):
        feeder = _Feeder(process, chunks)
        feeder.start()
        collected = _Collected(process)
        try:
            process.wait(timeout=timeout)
        except subprocess.TimeoutExpired:
            raise ToolError(f"{argv[0]}: no answer within {timeout:g} s") from None
        out, err = collected.both()
        feeder.join()
    if feeder.error is not None:
        raise feeder.error
    return Exchanged(returncode=process.returncode, stdout=out, stderr=err.decode(errors="replace"))


def ended(pid: int) -> bool:
    """Whether a process started by `daemon` has ended."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def end(pid: int) -> None:
    """End a process started by `daemon`."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)


def call(argv: Argv, *, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> int:
    """Run in the foreground on the user's own terminal and return its exit code.

    This always waits for its end, and leaves Ctrl-C to the program. When a terminal is closed, only its first process is signalled.
    If that is this process, it forwards the signal to the program, and TERM too.
    """
    try:
        process = subprocess.Popen(list(argv), cwd=cwd, env=env, umask=_umask)
    except FileNotFoundError:
        raise ToolError(f"{argv[0]}: no such program") from None
    forwarded = (signal.SIGHUP, signal.SIGTERM)
    before = [
        signal.signal(signal_number, lambda number, _frame: process.send_signal(number)) for signal_number in forwarded
    ]
    # The terminal has also signalled the program.
    before.append(signal.signal(signal.SIGINT, lambda _number, _frame: None))
    try:
        return process.wait()
    finally:
        for signal_number, handler in zip((*forwarded, signal.SIGINT), before, strict=True):
            signal.signal(signal_number, handler)


def daemon(argv: Argv, *, log: Path, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> int:
    """Start a process that outlives the kit, in its own session, with output appended to `log`; return its pid."""
    try:
        with log.open("ab") as sink:
            return subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env=env,
                start_new_session=True,
                umask=_umask,
            ).pid
    except FileNotFoundError:
        raise ToolError(f"{argv[0]}: no such program") from None


def connected(
    argv: Argv, *, stdin: int, stdout: int, env: Mapping[str, str] | None = None, stderr_too: bool = False
) -> Process:
    """Start a program on open file descriptors, such as both directions of a socket.

    stderr_too: its stderr goes there too. The caller ends it.
    """
    stderr = subprocess.STDOUT if stderr_too else subprocess.DEVNULL
    try:
        # In its own session: a Ctrl-C goes only to the caller, which ends the program, as its death does.
        return subprocess.Popen(bound(argv), stdin=stdin, stdout=stdout, stderr=stderr, env=env, start_new_session=True)
    except OSError as error:
        raise ToolError(f"{argv[0]}: {error.strerror}") from None


def failed(done: Completed) -> ToolError:
    """The error for a command that returned non-zero: its name, exit code, and its last lines."""
    said = (done.stderr or done.stdout).strip().splitlines()[-15:]
    how = f"ended by signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
    return ToolError("\n".join([f"{Path(done.argv[0]).name}: {how}", *(f"  {line}" for line in said)]))


def _popen(
    argv: Argv,
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: int | IO[bytes] = subprocess.DEVNULL,
    stderr: int = subprocess.PIPE,
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            list(argv),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=stderr,
            cwd=cwd,
            env=None if env is None else dict(env),
            process_group=0,
            umask=_umask,
        )
    except FileNotFoundError:
        raise ToolError(f"{argv[0]}: no such program") from None
    except PermissionError:
        raise ToolError(f"{argv[0]}: may not be executed") from None


@contextlib.contextmanager
def _owned(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """End the child's whole process group if the block ends early: by a time-out, a Ctrl-C, or an error in the caller."""
    try:
        yield
    except BaseException:
        _end_group(process)
        raise
    finally:
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def _end_group(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_GRACE_S)
            return
