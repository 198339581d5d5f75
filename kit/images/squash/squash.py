"""Writes a tree or a tar stream as a .sqsh: the same content gives the same bytes, whichever way it is read."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from kit import shell
from kit.errors import ImageError, ToolError
from kit.files import repeating_thread
from kit.images import store
from kit.images.sources import tree_stream
from kit.images.sources.tree_edits import Addition, Edit
from kit.images.squash import sqshfile, squash_overlay
from kit.schema.image import Squash

_INSTALL = "apt-get install squashfs-tools (4.5 or newer)"
_SAMPLE_S = 0.2


class AnotherWayError(ImageError):
    """This machine may not mount the Tree, or mksquashfs would write it differently from a stream. Try another way."""


@dataclass(frozen=True, kw_only=True)
class Tree:
    """Content in folders on this machine, which root mounts: an image's layers, topmost first, or one plain folder."""

    layers: tuple[Path, ...]

    @property
    def method(self) -> str:
        """The way in which the content is read, in words for the user."""
        return "overlay mount of the layers" if len(self.layers) > 1 else "reading the folder"


@dataclass(frozen=True, kw_only=True)
class TarStream:
    """Content as members of a tar, in walk order (see `tree_stream.edited`). method: how it is read, for the user.

    settle: see `tree_edits.settled`. An engine's export already contains the working directory.
    """

    members: Iterable[tree_stream.Entry]
    method: str = "streamed export"
    settle: Callable[[Edit], Edit] = lambda edit: edit


@dataclass(frozen=True, kw_only=True)
class Finished:
    """Content that is a .sqsh already and is copied unchanged."""

    path: Path
    method = "copying the .sqsh"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options for squashing. keep_times: files keep their modification times, for images whose digest fixes the times."""

    squash: Squash
    keep_times: bool = False


def mksquashfs() -> tuple[str, str]:
    """Path and version of mksquashfs; ToolError when it is missing or cannot read tar streams."""
    program = shell.require("mksquashfs", hint=_INSTALL)
    words = shell.run([program, "-version"], check=False).stdout.split()
    version = words[2] if len(words) > 2 and words[1] == "version" else "unknown"
    numbers = [int(part) for part in version.split("-")[0].split(".")[:2] if part.isdigit()]
    if numbers and numbers < [4, 5]:
        raise ToolError(f"mksquashfs {version} is too old: it cannot read a tar stream", hint=_INSTALL)
    return program, version


def write_squashfs(
    source: Tree | TarStream | Finished,
    edit: Edit,
    target: Path,
    options: Options,
    *,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> str:
    """Squash the edited `source` into the new file `target`; return a warning about lost data, or an empty text.

    on_bytes is called with the number of bytes read since the last call. target's folder is private to the caller and holds the
    working files. ImageError when mksquashfs fails, AnotherWayError for a Tree that must be read in another way.
    """
    program, _ = mksquashfs()
    lost = tree_stream.DroppedData()
    try:
        if isinstance(source, TarStream):
            # -tar comes first: it sets defaults, which the arguments after it override.
            argv = [program, "-", str(target), "-tar", *_arguments(options)]
            with contextlib.closing(
                tree_stream.edited(source.members, source.settle(edit), target.parent, lost)
            ) as stream:
                shell.feed(argv, stream, env=_child_env(), on_bytes=on_bytes)
        elif isinstance(source, Finished):
            sqshfile.check(source.path)
            shutil.copyfile(source.path, target)
            on_bytes(target.stat().st_size)
        else:
            _from_tree(source, edit, target, options, on_bytes)
        if options.keep_times and not isinstance(source, Finished):
            sqshfile.forget_folder_times(target)
    except ToolError as error:
        raise ImageError(f"squashing failed: {error.message}", hint=_what_to_do(error.message)) from None
    return lost.warning


def _arguments(options: Options) -> list[str]:
    squash = options.squash
    level = 1 if squash.level is None and squash.compressor == "zstd" else squash.level
    if squash.compressor == "none":
        packing = ["-noI", "-noD", "-noF", "-noX"]
    else:
        packing = ["-comp", squash.compressor, *(["-Xcompression-level", str(level)] if level else [])]
    # -no-exports, -no-tailends: with -tar, mksquashfs has other defaults for these, and would write other bytes. -no-sparse: it
    # would count the blocks that a file uses on this disk, which a stream does not know. -root-mode: a tar stream has no entry for
    # the root. -noappend: by default mksquashfs appends to an existing file.
    same = ["-all-root", "-root-mode", "755", "-mkfs-time", "0", "-no-exports", "-no-tailends", "-no-sparse"]
    quiet = ["-noappend", "-no-recovery", "-no-progress", "-quiet", "-exit-on-error"]
    times = ["-root-time", "0", "-noI"] if options.keep_times else ["-all-time", "0"]
    return [*packing, "-b", squash.block, *same, *quiet, *times, "-mem", squash.memory]


def _from_tree(source: Tree, edit: Edit, target: Path, options: Options, on_bytes: Callable[[int], None]) -> None:
    folder = target.parent
    program, _ = mksquashfs()
    modes = ["-action", "chmod(u+rwx)@type(d)", "-action", "chmod(u+r)@type(f)"]
    request: squash_overlay.OverlayRequest = {
        "layers": [str(layer) for layer in source.layers],
        "additions": [_place(addition, number, folder) for number, addition in enumerate(edit.additions)],
        "dropped": list(edit.dropped),
        "keep_times": options.keep_times,
        "argv": [program, str(target), *_arguments(options), *modes, "-wildcards", "-ef", "excluded"],
    }
    file = folder / "request.json"
    file.write_text(json.dumps(request), encoding="utf-8")
    with repeating_thread.every(_SAMPLE_S, _reading(folder / "pid", on_bytes), name="squash-progress"):
        done = shell.run(
            [sys.executable, "-P", "-m", "kit.images.squash.squash_overlay", str(file)], env=_child_env(), check=False
        )
    if done.returncode in (squash_overlay.CANNOT_MOUNT, squash_overlay.UNLIKE):
        raise AnotherWayError(done.stderr)
    if done.returncode != 0:
        raise shell.failed(replace(done, argv=(program,)))  # the child process has become mksquashfs


def _place(addition: Addition, number: int, folder: Path) -> squash_overlay.OverlayAddition:
    name = None
    if addition.content is not None:
        name = f"added-{number}"
        (folder / name).write_bytes(addition.content)
    return {
        "path": addition.path,
        "mode": addition.mode,
        "content": name,
        "target": addition.target,
        "follows": addition.follows,
    }


def _child_env() -> dict[str, str]:
    """Environment for the child: it can import the kit, and SOURCE_DATE_EPOCH is unset, which mksquashfs
    refuses with time options.
    """
    env = {key: value for key, value in os.environ.items() if key != "SOURCE_DATE_EPOCH"}
    root = str(Path(__file__).resolve().parents[3])
    return env | {"PYTHONPATH": os.pathsep.join(filter(None, [root, env.get("PYTHONPATH", "")]))}


def _reading(pid_file: Path, on_bytes: Callable[[int], None]) -> Callable[[], None]:
    """A function that reports how many bytes the child has read since the previous call, from the kernel's count."""
    before = 0

    def look() -> None:
        nonlocal before
        with contextlib.suppress(OSError, ValueError, StopIteration):
            pid = int(pid_file.read_text(encoding="ascii"))
            fields = Path(f"/proc/{pid}/io").read_text(encoding="ascii").splitlines()
            now = next(int(field.split()[1]) for field in fields if field.startswith("rchar:"))
            on_bytes(max(now - before, 0))
            before = max(now, before)

    return look


def _what_to_do(said: str) -> str:
    if "No space left" in said:
        return store.NO_SPACE
    return "the lines above are mksquashfs's own"
