"""A build without an engine: unpacks another image's tree into the workspace and runs the steps of a plain Dockerfile in it.

It supports the Dockerfiles that `kit init --image` writes: packages on top of another image of the kit. bubblewrap runs each step
as root of a user namespace without a network. An ordinary user can do this if the machine allows user namespaces. The bytes are
those of an engine's build. An instruction that this build does not support is refused with its line; an engine supports it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from kit import shell
from kit.errors import ImageError, ToolError
from kit.files import temporary_names, untrusted_files
from kit.images.build.build_context import ContextFile
from kit.images.build.dockerfile_lines import Instruction
from kit.images.sources import build_failure, folder_tree, tree_edits
from kit.images.squash import sqshfile
from kit.images.squash.squash import TarStream, Tree
from kit.images.squash_and_lock import Way
from kit.schema.image import ImageConfig, ImageSpec

# The PATH that an engine sets for an image without one, at its FROM.
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# The capabilities of a step in an engine (Docker's default), without those for the network, since steps have no network.
_CAPABILITIES = (
    "CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "MKNOD", "SETGID", "SETUID", "SETFCAP", "SETPCAP", "SYS_CHROOT", "KILL",
    "AUDIT_WRITE",
)  # fmt: skip
_MOST_LINKS = 40  # the kernel's own limit


@dataclass(kw_only=True)
class _State:
    """The state of the build after the steps so far."""

    root: Path
    files: Mapping[str, ContextFile]
    on_line: Callable[[str], None]
    env: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    cmd: tuple[str, ...] = ()


def why_not(spec: ImageSpec, steps: Iterable[Instruction]) -> str:
    """The reason why this image needs an engine, with the line of the Dockerfile; empty if it needs none."""
    if spec.base is None or spec.base.image is None:
        return "without an engine, only an image whose base is another image of the kit ([base] image) can be built"
    build = spec.build
    if build.context or build.args or build.secrets or build.target or build.platform or build.network != "none":
        return "[build] args, secrets, target, platform and network need an engine"
    if shell.which("bwrap") is None:
        return "bubblewrap builds a plain image without one: apt-get install bubblewrap"
    for one in steps:
        if not _known(one):
            forms = "without one there are RUN, COPY, ENV, WORKDIR and CMD, with neither flags nor variables"
            return f"line {one.line} of the Dockerfile ({one.word}) needs one: {forms}"
    return ""


def _known(instruction: Instruction) -> bool:
    """Whether the kit can run the instruction without an engine: it has no variables, flags or globs."""
    rest = instruction.rest
    plain = {
        "ARG": rest == "BASE",
        "FROM": rest in ("${BASE}", "$BASE"),
        "RUN": not rest.startswith(("[", "--")),
        "COPY": not rest.startswith("--") and not set(rest) & set("[]*?$\"'\\") and len(rest.split()) > 1,
        "ENV": not set(rest) & set("$\"'\\") and all("=" in word for word in rest.split()),
        "WORKDIR": rest.startswith("/") and not set(rest) & set("$\"'\\"),
        "CMD": _is_words(rest),
    }
    return not instruction.heredoc and plain.get(instruction.word, False)


def _is_words(text: str) -> bool:
    try:
        found = json.loads(text)
    except ValueError:
        return False
    return isinstance(found, list) and all(isinstance(word, str) for word in found)


@contextlib.contextmanager
def built(
    base: Path,
    config: ImageConfig,
    steps: Iterable[Instruction],
    given: Iterable[ContextFile],
    work: Path,
    *,
    on_line: Callable[[str], None],
) -> Iterator[tuple[Path, ImageConfig]]:
    """The tree after all steps, and its configuration, for the length of the block.

    base: the .sqsh to build on. given: the files that COPY can copy. work: a private folder. ImageError when a step fails, or when
    no namespace can be made.
    """
    root = work / "root"
    if sqshfile.has_xattrs(base):
        raise ImageError(f"{base}: it has file capabilities, which an image built on it would lose")
    _unpack(base, root)
    state = _State(
        root=root,
        files={file.name: file for file in given},
        on_line=on_line,
        env=dict(config.env),
        workdir=config.workdir,
        cmd=config.cmd,
    )
    state.env.setdefault("PATH", _PATH)
    try:
        for number, one in enumerate(steps, start=1):
            on_line(f"Step {number} : {one.word} {one.rest}")
            _run_instruction(one, state)
        temporary_names.open_all(root)
        yield root, config.model_copy(update={"env": state.env, "workdir": state.workdir, "cmd": state.cmd})
    finally:
        temporary_names.remove(root)


def ways(root: Path) -> tuple[Way, ...]:
    """Ways to squash the tree, fastest first."""

    @contextlib.contextmanager
    def mounted() -> Iterator[Tree]:
        yield Tree(layers=(root,))

    @contextlib.contextmanager
    def walked() -> Iterator[TarStream]:
        look = folder_tree.looker(root)
        members = folder_tree.entries(root)
        yield TarStream(
            members=members, method="walking the folder", settle=lambda edit: tree_edits.settled(edit, look)
        )

    return (mounted, walked) if os.geteuid() == 0 else (walked,)


def _unpack(base: Path, root: Path) -> None:
    unsquashfs = shell.require("unsquashfs", hint="apt-get install squashfs-tools")
    # Run unsquashfs as root of a namespace: for other users it drops setuid and sticky bits.
    argv = [
        *_sandbox(Path("/"), cwd="/"),
        unsquashfs,
        "-quiet",
        "-no-progress",
        "-no-xattrs",
        "-dest",
        str(root),
        str(base),
    ]
    try:
        shell.run(argv)
    except ToolError as error:
        hint = "where this machine allows no user namespaces, an engine is needed"
        raise ImageError(f"{base.name} could not be unpacked: {error.message}", hint=hint) from None


def _sandbox(root: Path, *, cwd: str) -> list[str]:
    bwrap = shell.require("bwrap", hint="apt-get install bubblewrap")
    namespaces = [
        "--unshare-pid",
        "--unshare-ipc",
        "--unshare-uts",
        "--unshare-net",
        "--die-with-parent",
        "--new-session",
    ]
    user = [] if os.geteuid() == 0 else ["--unshare-user", "--uid", "0", "--gid", "0"]
    rights = [word for name in _CAPABILITIES for word in ("--cap-add", f"CAP_{name}")]
    return [
        bwrap,
        *user,
        *namespaces,
        *rights,
        "--bind",
        str(root),
        "/",
        "--dev",
        "/dev",
        "--proc",
        "/proc",
        "--chdir",
        cwd,
    ]


def _run_instruction(instruction: Instruction, state: _State) -> None:
    if instruction.word == "RUN":
        _run(instruction, state)
    elif instruction.word == "COPY":
        _copy(instruction, state)
    elif instruction.word == "ENV":
        state.env |= dict(word.split("=", 1) for word in instruction.rest.split())
    elif instruction.word == "WORKDIR":
        state.workdir = str(PurePosixPath(instruction.rest))
        _make_folder(_path_in_root(state.root, state.workdir))
    elif instruction.word == "CMD":
        state.cmd = tuple(json.loads(instruction.rest))


def _run(instruction: Instruction, state: _State) -> None:
    env = [
        word for name, value in ({"HOME": _home(state.root)} | state.env).items() for word in ("--setenv", name, value)
    ]
    # Use an engine's umask, not the user's.
    argv = [*_sandbox(state.root, cwd=state.workdir), "--clearenv", *env]
    argv += ["/bin/sh", "-c", 'umask 022; exec /bin/sh -c "$0"', instruction.rest]
    printed: list[str] = []
    try:
        for line in shell.lines(argv):
            printed.append(line)
            state.on_line(line)
    except ToolError as error:
        code = re.search(r"exit code (\d+)", error.message)
        step = f"RUN {instruction.rest} (line {instruction.line} of the Dockerfile)"
        verdict = f"exit code {code[1]}" if code else error.message
        raise build_failure.error(
            build_failure.FailedBuild(step=step, printed=printed, verdict=verdict), network="none"
        ) from None


def _home(root: Path) -> str:
    """root's home folder, from the image's own /etc/passwd, as an engine looks it up."""
    try:
        lines = untrusted_files.read_text(_path_in_root(root, "/etc/passwd")).splitlines()
    except OSError:
        return "/"
    fields = [line.split(":") for line in lines]
    return next((one[5] for one in fields if len(one) > 5 and one[2] == "0" and one[5]), "/")


def _copy(instruction: Instruction, state: _State) -> None:
    *sources, target = instruction.rest.split()
    into = target.endswith("/") or len(sources) > 1
    for source in sources:
        name = PurePosixPath(source).as_posix().strip("/")
        if name in state.files:
            path = PurePosixPath(target) / PurePosixPath(name).name if into else PurePosixPath(target)
            _put(state.files[name], _path_in_root(state.root, str(PurePosixPath(state.workdir) / path)))
            continue
        below = {inner: file for inner, file in state.files.items() if name == "." or inner.startswith(f"{name}/")}
        if not below:
            raise ImageError(
                f"line {instruction.line} of the Dockerfile: COPY {source}: no such file in the image's folder"
            )
        for inner, file in below.items():
            path = PurePosixPath(state.workdir) / target / PurePosixPath(inner).relative_to(name)
            _put(file, _path_in_root(state.root, str(path)))


def _put(file: ContextFile, path: Path) -> None:
    _make_folder(path.parent)
    path.unlink(missing_ok=True)
    if file.target is not None:
        path.symlink_to(file.target)
    else:
        shutil.copyfile(file.path, path)
        path.chmod(file.mode)


def _make_folder(place: Path) -> None:
    """Make a folder and its missing parents with mode 755, independent of the umask."""
    missing = [one for one in (place, *place.parents) if not one.exists()]
    for one in reversed(missing):
        one.mkdir()
        one.chmod(0o755)


def _path_in_root(root: Path, path: str) -> Path:
    """The path on this machine for a path of the image. Links are followed inside the image, except for a link as the last part."""
    left, reached, followed = list(PurePosixPath(path).parts[1:]), root, 0
    while left:
        part = left.pop(0)
        if part == "..":
            reached = root if reached == root else reached.parent
            continue
        reached /= part
        if reached.is_symlink() and left:
            followed += 1
            if followed > _MOST_LINKS:
                raise ImageError(f"{path}: too many links in the image")
            target = PurePosixPath(reached.readlink())
            reached = root if target.is_absolute() else reached.parent
            left = [part for part in target.parts if part != "/"] + left
    return reached
