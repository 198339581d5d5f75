"""Imports modules once on a node and forks the node's ranks from that process: `[retry] warm`.

    python warm_ranks.py NAME MODULE[,MODULE…] PYTHON PROGRAM…     NAME: of an abstract Unix socket

worker.sh starts this in step kit-warm, with the words of the ranks' program: a module may lie beside the script.

rank.sh starts warm_client.py in place of a rank's program. The client sends its arguments, environment, folder, limits and open
files. This process forks; the child becomes the program, as `python SCRIPT` or `python -m MODULE` would have started it, and the
client gets its exit code or signal. The child has the client's environment in /proc, so that signal.sh, evidence.sh and the monitor
find it as the rank's program. A request that a child could not serve exactly is refused with the reason, and the client becomes the
program itself. When a client is gone, its rank is killed; after the last rank of the node, so is all that the ranks have left.
Works with any Python from 3.8, and needs no installation.
"""

import array
import builtins
import ctypes
import importlib
import importlib.machinery
import json
import os
import resource
import selectors
import signal
import socket
import struct
import sys
import time

# The room in /proc/PID/environ for a rank's variables: worker.sh starts this process with a variable of this length.
PAD = "KIT_WARM_ROOM"
# Variables that differ between ranks, or between a rank and this process. No module may read them while it is imported here.
_PER_RANK = {
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"),
    *("CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"),
    *("PWD", "OLDPWD", "SHLVL", "_", "SRUN_DEBUG", PAD),
}
_PER_RANK_PREFIXES = ("SLURM_", "SLURMD_", "KIT_", "PMI_", "PMIX_")
# Modules that belong to one rank from their import on.
_OF_ONE_RANK = ("kit_rank", "kit_callbacks", "kit_recorder")
# A signal that Slurm sends to every step reaches a rank directly, and through its client. The second is dropped.
_SAME_SIGNAL_S, _FORWARD_AFTER_S = 5.0, 1.0
# Seconds between looks at the parent process, and for a client to send its request.
_LOOK_S, _REQUEST_S = 5.0, 10.0
_PDEATHSIG, _SUBREAPER = 1, 36
# Bytes for what is added to the environment of a rank.
_MARGIN = 64
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class RefusalError(Exception):
    """A request that no fork can serve exactly. The text is the reason."""


class Rank:
    """A forked rank: its client's connection, None once the client is gone, and the signals passed on by it, with their times."""

    def __init__(self, connection):
        self.connection = connection
        self.passed = []

    def tell(self, text):
        """Send a line to the client. Whether the client is gone is seen by reading."""
        try:
            if self.connection is not None:
                self.connection.sendall(f"{text}\n".encode())
        except OSError:
            return


class WarmRanks:
    """The process from which ranks are forked. name: of its abstract socket; modules: imported before the first fork."""

    def __init__(self, name, modules):
        self._raw = _environment()
        self._stack = _stack()
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._parent = os.getppid()
        self._pid = os.getpid()
        self._ending = False
        self._own = {}
        self._ranks = {}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind("\0" + name)
        self._listener.listen(1024)
        self._woken, self._wakes = socket.socketpair()
        for end in (self._listener, self._woken, self._wakes):
            end.setblocking(False)
        signal.set_wakeup_fd(self._wakes.fileno(), warn_on_full_buffer=False)
        for number in (*_SIGNALS, signal.SIGCHLD):
            signal.signal(number, _ignore)
        # Children from before this program: the FUSE daemons of Pyxis and Enroot, which the container's files come from.
        self._before = {*_descendants(self._pid)}
        # Processes that a rank leaves behind become children of this one, which ends them.
        self._libc.prctl(_SUBREAPER, 1, 0, 0, 0)
        self._broken = _import(modules) or _fork_problem()
        _say(self._broken or f"{', '.join(modules)} imported; ranks are forked from here")

    def serve(self):
        """Serve requests until the step ends. Returns only in a forked child, with its request."""
        self._selector = selectors.DefaultSelector()
        for one in (self._listener, self._woken):
            self._selector.register(one, selectors.EVENT_READ)
        while True:
            if self._ending and not self._ranks:
                os._exit(0)
            for key, _ in self._selector.select(self._pause()):
                if key.fileobj is self._listener:
                    request = self._accept()
                    if request is not None:
                        return request
                elif key.fileobj is self._woken:
                    self._on_signals()
                else:
                    self._hear(key.data)
            self._pass_on()
            if os.getppid() != self._parent:
                # Its slurmstepd is gone. Slurm would never end this process, nor the ranks.
                self._kill_all()
                os._exit(1)

    def _pause(self):
        due = [at + _FORWARD_AFTER_S - time.monotonic() for rank in self._ranks.values() for _, at in rank.passed]
        return max(0.0, min([_LOOK_S, *due]))

    def _accept(self):
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return None
        try:
            uid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
            if uid != os.geteuid():
                raise OSError("another user")
            connection.settimeout(_REQUEST_S)
            request = _receive(connection)
        except (OSError, ValueError):
            # The client is gone, or the request is not one of warm_client.py.
            connection.close()
            return None
        try:
            self._check(request)
            return self._fork(connection, request)
        except (RefusalError, OSError) as reason:
            Rank(connection).tell(f"refused {reason}")
            connection.close()
            for fd in request["fds"]:
                os.close(fd)
            return None

    def _check(self, request):
        if self._broken:
            raise RefusalError(self._broken)
        if self._ending:
            raise RefusalError("the step is ending")
        mine, its = (_shared(env) for env in (self._raw, request["env"]))
        differ = sorted(name for name in {*mine, *its} if mine.get(name) != its.get(name))
        if differ:
            raise RefusalError(f"the rank's environment differs in {' '.join(differ[:5])}")
        if not os.access(request["cwd"], os.X_OK):
            raise RefusalError(f"the warm process has no folder {request['cwd']}")
        _check_words(request["argv"], request["cwd"])
        if len(_block(request["env"])) + _MARGIN > self._stack[3] - self._stack[2]:
            raise RefusalError("its environment is too long")
        if not {*request["cpus"]} <= os.sched_getaffinity(0):
            raise RefusalError("it may use CPUs that the warm process may not")
        for name, (_, most) in request["limits"].items():
            own = resource.getrlimit(getattr(resource, name))[1]
            if os.geteuid() and own != resource.RLIM_INFINITY and not 0 <= most <= own:
                raise RefusalError(f"its {name} is above that of the warm process")

    def _fork(self, connection, request):
        # What is not written yet, the child would write once more.
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        # No signal may find the child with this process's handlers.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            pid = os.fork()
        except OSError:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            raise
        if pid == 0:
            try:
                self._become(connection, request)
            except BaseException as error:  # noqa: BLE001 - a child must never serve
                _say(f"the rank cannot be started: {error!r}")
                os._exit(1)
            return request
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for fd in request.pop("fds"):
            os.close(fd)
        self._ranks[pid] = Rank(connection)
        self._selector.register(connection, selectors.EVENT_READ, pid)
        self._ranks[pid].tell("started")
        return None

    def _become(self, connection, request):
        """Give the child what a plain start would have given it. Signals stay blocked until all of it is there."""
        self._libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != self._pid:
            os._exit(1)
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:
            wanted = signal.SIG_IGN if number in request["ignored"] else signal.SIG_DFL
            if signal.getsignal(number) not in (wanted, None):
                signal.signal(number, wanted)
        if signal.SIGINT not in request["ignored"]:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self._selector.close()
        for end in (
            self._listener,
            self._woken,
            self._wakes,
            connection,
            *(rank.connection for rank in self._ranks.values()),
        ):
            if end is not None:
                end.close()
        # A rank that signals its own process group must not hit the others.
        os.setsid()
        for number, fd in enumerate(request["fds"]):
            os.dup2(fd, number)
        for fd in request["fds"]:
            os.close(fd)
        os.chdir(request["cwd"])
        os.umask(request["umask"])
        os.sched_setaffinity(0, request["cpus"])
        for name, limits in request["limits"].items():
            resource.setrlimit(getattr(resource, name), tuple(limits))
        # signal.sh tells a rank's program by its parent, which this variable names.
        request["env"]["KIT_RANK_SHELL"] = str(self._pid)
        self._set_environment(request["env"], request["argv"])
        if "numpy.random" in sys.modules:
            # Python reseeds `random` in a child, numpy does not. torch begins with the same seed in every process.
            sys.modules["numpy.random"].seed()
        signal.pthread_sigmask(signal.SIG_SETMASK, request["mask"])

    def _set_environment(self, env, argv):
        # Python itself sets LC_CTYPE in the C locale (PEP 538). It would do the same for the rank.
        coerced = (
            {"LC_CTYPE": os.environ["LC_CTYPE"]} if "LC_CTYPE" in os.environ and "LC_CTYPE" not in self._raw else {}
        )
        os.environ.clear()
        os.environ.update({**env, **coerced})
        # The areas that /proc shows as cmdline and environ. Nothing points into the second: os.environ has copies.
        for begin, end, block in (
            (*self._stack[:2], b"".join(os.fsencode(word) + b"\0" for word in argv)),
            (*self._stack[2:], _block(env)),
        ):
            ctypes.memset(begin, 0, end - begin)
            ctypes.memmove(begin, block[: end - begin - 1], min(len(block), end - begin - 1))

    def _on_signals(self):
        try:
            numbers = self._woken.recv(4096)
        except BlockingIOError:
            return
        for number in {*numbers} & {*_SIGNALS}:
            self._own[number] = time.monotonic()
            if number in (signal.SIGTERM, signal.SIGINT):
                self._ending = True
            # The client tells rank.sh that its program was told to end.
            for rank in self._ranks.values():
                rank.tell(f"signalled {number}")
        self._reap()

    def _reap(self):
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                break
            rank = self._ranks.pop(pid, None)
            if rank is not None:
                killed = os.WIFSIGNALED(status)
                rank.tell(f"killed {os.WTERMSIG(status)}" if killed else f"exit {os.WEXITSTATUS(status)}")
                self._drop(rank)
        if not self._ranks:
            self._kill_all()

    def _hear(self, pid):
        """The client of this rank passes on a signal, or is gone."""
        rank = self._ranks.get(pid)
        if rank is None or rank.connection is None:
            return
        try:
            text = rank.connection.recv(4096).decode()
        except OSError:
            text = ""
        if text:
            rank.passed += [(int(word), time.monotonic()) for word in text.split()]
        else:
            self._drop(rank)
            os.kill(pid, signal.SIGKILL)

    def _drop(self, rank):
        if rank.connection is not None:
            self._selector.unregister(rank.connection)
            rank.connection.close()
            rank.connection = None

    def _pass_on(self):
        for pid, rank in self._ranks.items():
            for number, at in [one for one in rank.passed if time.monotonic() - one[1] >= _FORWARD_AFTER_S]:
                rank.passed.remove((number, at))
                if abs(self._own.get(number, float("-inf")) - at) > _SAME_SIGNAL_S:
                    os.kill(pid, number)

    def _kill_all(self):
        """Kill what ranks have left, until there is nothing. What the kernel does not let go of is left after two seconds."""
        for _ in range(100):
            left = {*_descendants(self._pid)} - self._before
            if not left:
                return
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    continue
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                return
            time.sleep(0.02)


class _NotHere:
    """Refuses the import of modules that belong to one rank."""

    @staticmethod
    def find_spec(name, *_):
        if name.partition(".")[0] in _OF_ONE_RANK:
            raise ImportError(f"{name} belongs to one rank")


def run(argv):
    """Run a program as the interpreter would: `python SCRIPT ARGUMENT…` or `python -m MODULE ARGUMENT…`."""
    by_name = argv[1] == "-m"
    if hasattr(sys, "orig_argv"):
        sys.orig_argv = list(argv)
    sys.argv = ["-m", *argv[3:]] if by_name else list(argv[1:])
    _set_path0(argv)
    main = type(sys)("__main__")
    main.__builtins__ = builtins
    # Python 3.14 has one of these names less.
    main.__dict__.update(
        {name: {} if name == "__annotations__" else None for name in _OWN_NAMES - main.__dict__.keys()}
    )
    sys.modules["__main__"] = main
    try:
        if by_name:
            import runpy  # noqa: PLC0415

            runpy._run_module_as_main(argv[2])
        else:
            # From Python 3.9 on, the path is absolute.
            path = argv[1] if sys.version_info < (3, 9) else os.path.join(os.getcwd(), argv[1])  # noqa: PTH109, PTH118
            main.__file__ = path
            main.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
            with open(path, "rb") as file:  # noqa: PTH123
                text = file.read()
            exec(compile(text, path, "exec", dont_inherit=True), main.__dict__)
    except SystemExit:
        raise
    except BaseException:  # noqa: BLE001 - what the interpreter does with an exception that nobody catches
        _report(*sys.exc_info())


def _report(kind, error, trace):
    """Print an exception without the frames of this file, and end as the interpreter would."""
    trace = trace.tb_next
    error.__traceback__ = trace
    sys.last_type, sys.last_value, sys.last_traceback = kind, error, trace
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    sys.excepthook(kind, error, trace)
    if not issubclass(kind, KeyboardInterrupt):
        raise SystemExit(1) from None
    import atexit  # noqa: PLC0415
    import threading  # noqa: PLC0415

    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)


def _set_path0(argv):
    """Put the folder first that the interpreter would: that of the script, or with -m the working folder."""
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, os.getcwd() if argv[1] == "-m" else os.path.dirname(os.path.realpath(argv[1])))  # noqa: PTH109, PTH120


def _check_words(argv, folder):
    if len(argv) < 2 or (argv[1] == "-m" and len(argv) < 3):
        raise RefusalError("the program has no script")
    if argv[1] == "-m":
        return
    if argv[1].startswith("-"):
        raise RefusalError(f"the program has the interpreter's option {argv[1]}")
    path = os.path.join(folder, argv[1])  # noqa: PTH118
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            head = file.read(4)
    except OSError as error:
        raise RefusalError(f"{path}: {error.strerror}") from None
    if head[:2] == b"PK" or head[2:4] == b"\r\n" or path.endswith(".pyc"):
        raise RefusalError(f"{path} is not Python source")


def _receive(connection):
    """A request: its length in four bytes with the open files, then JSON."""
    room = socket.CMSG_LEN(3 * 4)
    head, ancillary, _, _ = connection.recvmsg(4, room)
    fds = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    length, text = struct.unpack("!I", head)[0] if len(head) == 4 else 0, b""
    while len(text) < length:
        more = connection.recv(length - len(text))
        if not more:
            raise OSError("the client is gone")
        text += more
    request = json.loads(text.decode())
    # Three numbers above 2: dup2 to 0, 1 and 2 in turn must not close a file that comes later.
    request["fds"] = [_above_two(fd) for fd in fds]
    if len(fds) != 3:
        raise OSError("not three open files")
    return request


def _above_two(fd):
    if fd > 2:
        return fd
    import fcntl  # noqa: PLC0415

    higher = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(fd)
    return higher


def _import(modules):
    """Import modules. Returns the problem, if one cannot be imported or has begun to use a GPU."""
    sys.meta_path.insert(0, _NotHere)
    try:
        for name in modules:
            try:
                importlib.import_module(name)
            except BaseException as error:  # noqa: BLE001 - whatever the module does
                return f"{name} cannot be imported: {type(error).__name__}: {error}"
    finally:
        sys.meta_path.remove(_NotHere)
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "the imports have begun to use a GPU, which a fork cannot share"
    return ""


def _fork_problem():
    """The problem, if threads are left that a fork would not copy. OpenBLAS ends its own before a fork, and starts them again."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    for _ in range(20):
        names = _threads()
        if not names:
            return ""
        time.sleep(0.05)
    return f"the imports have left threads, which a fork does not copy: {' '.join(names)}"


def _threads():
    """Names of the threads of this process beside the main one."""
    names = []
    for thread in os.listdir("/proc/self/task"):  # noqa: PTH208
        if int(thread) != os.getpid():
            try:
                with open(f"/proc/self/task/{thread}/comm", encoding="utf-8") as file:  # noqa: PTH123
                    names.append(file.read().strip())
            except OSError:
                continue
    return names


def _descendants(pid):
    """Numbers of the processes below this one, from /proc, which may change meanwhile."""
    children = {}
    for name in os.listdir("/proc"):  # noqa: PTH208
        try:
            with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                children.setdefault(int(file.read().rpartition(b")")[2].split()[1]), []).append(int(name))
        except (OSError, ValueError, IndexError):
            continue
    found, ahead = [], [pid]
    while ahead:
        below = children.get(ahead.pop(), [])
        found += below
        ahead += below
    return found


def _environment():
    """The environment with which this process was started, before Python or a module changed it."""
    with open("/proc/self/environ", "rb") as file:  # noqa: PTH123
        words = [os.fsdecode(word).partition("=") for word in file.read().split(b"\0")]
    return {name: value for name, equals, value in words if equals}


def _stack():
    """arg_start, arg_end, env_start and env_end: fields 48 to 51 of proc(5)'s stat."""
    with open("/proc/self/stat", "rb") as file:  # noqa: PTH123
        return [int(word) for word in file.read().rpartition(b")")[2].split()[45:49]]


def _block(env):
    return b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in env.items())


def _shared(env):
    return {
        name: value for name, value in env.items() if name not in _PER_RANK and not name.startswith(_PER_RANK_PREFIXES)
    }


def _ignore(*_):
    return


def _say(text):
    node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    print(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {node}: warm ranks: {text}", file=sys.stderr, flush=True)


def main():
    """Serve, and in each child run what its client asked for. The child leaves by the end of this file, as a program does."""
    name, modules, *program = sys.argv[1:]
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]
    _set_path0(program)
    begins = list(sys.path)
    request = WarmRanks(name, modules.split(",")).serve()
    if sys.path and begins and sys.path[0] == begins[0] and not getattr(sys.flags, "safe_path", False):
        del sys.path[0]
    run(request["argv"])


# Names that the interpreter gives every program's module.
_NAMES = {"__annotations__", "__cached__", "__file__", "__loader__", "__package__", "__spec__"}
_OWN_NAMES = _NAMES & globals().keys()
if __name__ == "__main__":
    main()
