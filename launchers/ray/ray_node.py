"""Starts Ray on one node of the job, and ends it. On the head it runs the job's program, once, when all nodes have joined.

    ray_node.py head --cpus=8 --gpus=0 -- python3 train.py --steps 100
    ray_node.py worker --cpus=8 --gpus=0

The program finds the cluster in RAY_ADDRESS, so `ray.init()` joins it. It gets the signals that this process gets (TERM, USR1), and
its exit code is this one's. Read from the environment:

    KIT_ROLE_RAY_HEAD_ADDR, KIT_ROLE_RAY_HEAD_PORT_GCS, ..._PORT_DASHBOARD, ..._PORT_CLIENT, KIT_ROLES_FILE
                         addresses of the roles, found by the batch script
    RAY_START_OPTIONS    further options of `ray start`, such as --resources='{"disk": 1}'
    RAY_START_TIMEOUT_S  seconds within which all nodes must join; default 300
    RAY_TMPDIR           folder for Ray's sockets and logs; default /tmp. Unix sockets need a short path
    RAY_AUTH_MODE        default: token. Only processes with this run's token can then use the cluster (Ray 2.52 and later)

Exit code 74: a node was missing. Ray's own logs are then in logs/, in the role's folder.
"""

import argparse
import contextlib
import ctypes
import fcntl
import json
import os
import re
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

NOT_READY = 74
LOOK_S = 0.1
# Longest name of a Unix socket that Linux takes, and what Ray puts behind its folder: /session_<date>_<pid>/sockets/plasma_store.
SOCKET_MOST, SOCKET_OWN = 107, 66
# Ray's own smallest object store, and its share of the memory, in bytes and as a fraction.
STORE_LEAST, STORE_SHARE = 80 * 1024**2, 0.3
# Of this process: to Ray's workers they would be wrong, and to the program, which may pass its environment on to them.
RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
DEATH_SIGNAL, SUBREAPER = 1, 36  # of prctl(2)


class RayError(Exception):
    """Ray cannot start, or has ended. code: the exit code of this program."""

    def __init__(self, text: str, code: int = 1) -> None:
        super().__init__(text)
        self.code = code


@dataclass
class Processes:
    """The children of this process. ended: child's PID -> its exit code, or 128 + the number of the signal that ended it."""

    ended: dict[int, int] = field(default_factory=dict)

    def start(self, argv: Sequence[str], env: Mapping[str, str], *, log: Path | None, deaf: bool) -> int:
        """Start a child that dies with this process, even if this process is killed. deaf: the child ignores TERM."""
        libc = ctypes.CDLL(None)

        def prepare() -> None:
            libc.prctl(DEATH_SIGNAL, signal.SIGKILL)
            # A mask is kept through exec, unlike a handler, which Ray would replace.
            signal.pthread_sigmask(signal.SIG_BLOCK if deaf else signal.SIG_UNBLOCK, {signal.SIGTERM})

        output = log.open("ab") if log else contextlib.nullcontext()
        with output as file:
            child = subprocess.Popen(
                argv,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                preexec_fn=prepare,  # noqa: PLW1509 - there are no threads here
            )
        return child.pid

    def look(self) -> None:
        """Record all processes that have ended, including orphans of the children."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                code = os.waitstatus_to_exitcode(status)
                self.ended[pid] = 128 - code if code < 0 else code

    def code(self, pid: int) -> int | None:
        """A child's exit code; None while it lives."""
        self.look()
        return self.ended.get(pid)

    def kill_all(self) -> None:
        """Kill all descendants, and repeat until none is left: a child may start another one in the meantime."""
        end = time.monotonic() + 10
        while (left := [*descendants(os.getpid())]) and time.monotonic() < end:
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
            self.look()


def descendants(top: int) -> Iterator[int]:
    """The child processes of `top`, their children, and so on."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name, in brackets, may hold anything.
            parent = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1]
            children.setdefault(int(parent), []).append(int(path.parent.name))
    found = children.get(top, [])
    while found:
        yield from found
        found = [child for pid in found for child in children.get(pid, [])]


class RayFolder:
    """A folder on this node for Ray's sockets and logs, of the same name on all nodes. The last process that uses it removes it.

    Each process holds a lock while it uses the folder. A start removes folders without a lock: their processes were killed.
    """

    def __init__(self, parent: Path, job: str, attempt: str) -> None:
        own = f"kit-ray-{os.getuid()}-"
        self.path = parent / f"{own}{job}.{attempt}"
        if len(str(self.path)) > SOCKET_MOST - SOCKET_OWN:
            raise RayError(
                f"{self.path} is too long for Ray's sockets: {len(str(self.path))} characters, and "
                f'{SOCKET_MOST - SOCKET_OWN} are allowed; set a short folder of the node: [env] RAY_TMPDIR = "/tmp"'
            )
        for old in {*parent.glob(f"{own}*")} - {self.path}:
            remove_unlocked(old)
        self._lock = self._make()

    def _make(self) -> int:
        while True:
            self.path.mkdir(mode=0o700, exist_ok=True)
            lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            if os.fstat(lock).st_uid != os.getuid():
                raise RayError(f"{self.path} is another user's; it should not be there: tell your administrator")
            fcntl.flock(lock, fcntl.LOCK_SH)
            # Another start may have removed it just now.
            with contextlib.suppress(FileNotFoundError):
                if os.fstat(lock).st_ino == self.path.stat().st_ino:
                    return lock
            os.close(lock)

    def remove(self) -> None:
        """Remove the folder. It stays if another process of the job uses it too, as on clusters whose nodes are on one machine."""
        os.close(self._lock)
        remove_unlocked(self.path)


def remove_unlocked(folder: Path) -> None:
    """Remove a folder that nobody holds."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


@dataclass
class RayNode:
    """Ray on this node. name: Slurm's name of the node. signals: those that arrived and were not yet passed on."""

    options: argparse.Namespace
    folder: RayFolder
    processes: Processes
    name: str
    run: Path
    ray: int = 0
    signals: list[int] = field(default_factory=list)

    @property
    def token_file(self) -> Path:
        """The file of the token that a node needs to join, kept until all nodes have joined."""
        return self.run / "state" / f"ray-token.{os.environ['KIT_ATTEMPT']}"

    @property
    def log(self) -> Path:
        """The file for the output of `ray start`."""
        return self.run / "logs" / os.environ["KIT_ROLE"] / f"ray-{self.name}.log"

    def start_ray(self, words: Sequence[str]) -> None:
        """Start Ray on this node. Returns when Ray reports that it runs."""
        argv = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
        argv += [*words, f"--node-name={self.name}", f"--temp-dir={self.folder.path}"]
        argv += [f"--num-cpus={self.options.cpus}", f"--num-gpus={self.options.gpus}", *memory(self.options.memory)]
        # 0: a free one. Ray's own defaults would be taken by another job on this node.
        argv += [f"--{port}=0" for port in ("node-manager-port", "object-manager-port", "dashboard-agent-listen-port")]
        argv += ["--min-worker-port=0", "--max-worker-port=0", *shlex.split(os.environ.get("RAY_START_OPTIONS", ""))]
        env = without_rank()
        if self.options.threads_by_ray:
            env.pop("OMP_NUM_THREADS", None)
        self.ray = self.processes.start(argv, env, log=self.log, deaf=True)
        end = time.monotonic() + timeout()
        # Written last by `ray start`.
        while not (self.folder.path / "ray_current_cluster").exists():
            if self.signals:
                return
            self.check()
            if time.monotonic() > end:
                raise RayError(f"Ray did not start on {self.name} within {timeout():.0f} s: {self.log}", NOT_READY)
            time.sleep(LOOK_S)

    def check(self) -> None:
        """RayError when Ray has ended."""
        code = self.processes.code(self.ray)
        if code is not None:
            raise RayError(*why_ended(self.name, self.log, code))

    def keep_logs(self) -> None:
        """Copy Ray's own logs, which would be removed with the folder."""
        found = self.folder.path / "session_latest" / "logs"
        with contextlib.suppress(OSError):
            kept = self.log.with_suffix("")
            kept.mkdir(exist_ok=True)
            for file in found.iterdir():
                if file.is_file() and file.stat().st_size < 10_000_000:
                    shutil.copy(file, kept)


def why_ended(node: str, log: Path, code: int) -> tuple[str, int]:
    """The reason in a sentence, and the exit code. It is 137 if a process of Ray was killed, as for a rank."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", log.read_text(encoding="utf-8", errors="replace") if log.exists() else "")
    if died := re.search(r"^.*?(\w+) \[exit code=(-?\d+)\]", text, re.MULTILINE):
        name, number = died[1], int(died[2])
        end = f"{name} was ended by signal {-number}" if number < 0 else f"{name} ended with exit code {number}"
        return (
            f"Ray is gone on {node}: {end}; its logs are in {log.with_suffix('')}/",
            128 - number if number < 0 else 1,
        )
    last = "; its last line: " + text.strip().splitlines()[-1].strip() if text.strip() else ""
    return f"Ray is gone on {node}: ray start ended with exit code {code}{last} ({log})", code or 1


def memory(given: int) -> list[str]:
    """`ray start`'s options for memory. given: the job's memory on this node in bytes; 0 lets Ray choose."""
    if not given:
        return []
    store = int(max(STORE_LEAST, min(STORE_SHARE * given, 0.9 * shutil.disk_usage("/dev/shm").free)))
    return [f"--memory={max(given - store, STORE_LEAST)}", f"--object-store-memory={store}"]


def without_rank() -> dict[str, str]:
    """This process's environment without the variables of its rank."""
    return {name: value for name, value in os.environ.items() if name not in RANK_VARIABLES}


def timeout() -> float:
    """Seconds within which all nodes must join."""
    return float(os.environ.get("RAY_START_TIMEOUT_S", "300"))


def head(node: RayNode, program: Sequence[str]) -> int:
    """Start the cluster, wait for the others, run the program."""
    address = os.environ["KIT_ROLE_RAY_HEAD_ADDR"]
    ports = {name: os.environ[f"KIT_ROLE_RAY_HEAD_PORT_{name.upper()}"] for name in ("gcs", "dashboard", "client")}
    if "RAY_AUTH_MODE" not in os.environ:
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    words = ["--head", f"--node-ip-address={address}", f"--port={ports['gcs']}"]
    node.start_ray([*words, f"--dashboard-port={ports['dashboard']}", *client(ports["client"])])
    env = without_rank() | {"RAY_ADDRESS": f"{address}:{ports['gcs']}"}
    try:
        publish(node.token_file)
        join = [sys.executable, str(Path(__file__).with_name("ray_join.py")), str(timeout())]
        code = follow(node, join, env)
    finally:
        node.token_file.unlink(missing_ok=True)
    return code or follow(node, program, env)


def client(port: str) -> list[str]:
    """Options for Ray's client server. It exists only if the extra `ray[client]` is installed."""
    try:
        import grpc  # noqa: F401, PLC0415
    except ImportError:
        return []
    return [f"--ray-client-server-port={port}"]


def publish(file: Path) -> None:
    """Write the file that tells other nodes how to join the head. Only this user can read it. It appears complete, by a rename."""
    for old in file.parent.glob("ray-token.*"):
        old.unlink(missing_ok=True)
    new = file.with_name(f"{file.name}.new")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as out:  # noqa: PTH123
        json.dump({name: os.environ[name] for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN") if name in os.environ}, out)
    new.replace(file)


def follow(node: RayNode, argv: Sequence[str], env: Mapping[str, str]) -> int:
    """Run a program while Ray runs, and pass signals on to it. Return its exit code. RayError if Ray ends first."""
    if node.signals:
        return 128 + node.signals[0]
    try:
        child = node.processes.start(argv, env, log=None, deaf=False)
    except OSError as error:
        raise RayError(f"{argv[0]}: {error.strerror}", 127) from error
    told = False
    while (code := node.processes.code(child)) is None:
        while node.signals:
            told = True
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, node.signals.pop(0))
        node.check()
        time.sleep(LOOK_S)
    # A program whose Ray has died dies of it, and may do so first.
    end = time.monotonic() + (3 if code and not told else 0)
    while time.monotonic() < end:
        node.check()
        time.sleep(LOOK_S)
    return code


def worker(node: RayNode) -> int:
    """Join the head, and stay until it ends. After a TERM, which Slurm sends to all nodes, the program may still save."""
    end = time.monotonic() + timeout()
    while not node.token_file.exists():
        if node.signals:
            return 0
        if time.monotonic() > end:
            raise RayError(f"Ray's head did not start within {timeout():.0f} s", NOT_READY)
        time.sleep(LOOK_S)
    os.environ |= json.loads(node.token_file.read_text(encoding="utf-8"))
    place = os.environ["KIT_ROLE_RAY_HEAD_ADDR"], int(os.environ["KIT_ROLE_RAY_HEAD_PORT_GCS"])
    own = os.environ["KIT_ROLE_RAY_WORKER_NODES"].split()[int(os.environ["NODE_RANK"])]
    node.start_ray([f"--address={place[0]}:{place[1]}", f"--node-ip-address={own}"])
    while not (node.signals and not answers(place)):
        node.check()
        time.sleep(LOOK_S)
    return 0


def answers(place: tuple[str, int]) -> bool:
    """Whether the head accepts connections."""
    try:
        socket.create_connection(place, timeout=1).close()
    except OSError:
        return False
    return True


def arguments(words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Parse the options, and the program after `--`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("role", choices=["head", "worker"])
    parser.add_argument("--cpus", type=int, required=True)
    parser.add_argument("--gpus", type=int, required=True)
    parser.add_argument("--memory", type=int, default=0, help="bytes of the node that are the job's; 0: not known")
    parser.add_argument("--threads-by-ray", action="store_true", help="Ray sets OMP_NUM_THREADS of its workers")
    own = list(words)
    place = own.index("--") if "--" in own else len(own)
    return parser.parse_args(own[:place]), own[place + 1 :]


def main(words: Sequence[str]) -> int:
    """Run as head or worker; return the exit code."""
    options, program = arguments(words)
    ctypes.CDLL(None).prctl(SUBREAPER, 1)
    signals: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        signals.append(number)

    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, note)
    name = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    parent = Path(os.environ.get("RAY_TMPDIR", "/tmp"))
    processes = Processes()
    try:
        folder = RayFolder(parent, os.environ["SLURM_JOB_ID"], os.environ["KIT_ATTEMPT"])
    except (RayError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    node = RayNode(options, folder, processes, name, Path(os.environ["KIT_RUN_DIR"]), signals=signals)
    try:
        code = head(node, program) if options.role == "head" else worker(node)
        if code == NOT_READY:
            node.keep_logs()
    except RayError as error:
        print(f"error: {error}", file=sys.stderr)
        node.keep_logs()
        code = error.code
    finally:
        processes.kill_all()
        folder.remove()
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
