"""`kit export`: packs a run into one file, with everything for reading it and for running it again elsewhere,
but without the job's secrets, and without files that look like keys or logins unless they are asked for.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shlex
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kit import config, data_folders, shell
from kit.archive import archive_format, program_outputs
from kit.archive.archive_format import ArchiveIndex, ArchiveMember
from kit.errors import ConfigError, RunError, ToolError, UsageError
from kit.files import atomic_write, temporary_names, untrusted_files
from kit.images import check_against_lock
from kit.record import private_files, secret
from kit.record.manifest import Manifest, read_manifest
from kit.schema.job import Job
from kit.schema.run_paths import RunPaths
from kit.ssh import run_folder_mirror as mirrors
from kit.submission import recorded_inputs
from kit.version import __version__

_CHUNK = 1 << 20
# Folders of a run that the kit itself fills. Other folders have files of programs, of any kind and size.
_FOLDERS = ("bin", "lib", "code", "configs", "locks", "logs", "monitor", "state")
# A shorter value occurs in files by chance.
_SHORTEST_SECRET = 6
_BLOCK = tarfile.BLOCKSIZE
_NAMED = 10
# Folders of a run with what programs printed or measured; large, and compared with the job's own secrets.
_NOT_SEARCHED = frozenset({"logs", "monitor", "state", "bin", "lib"})
_FILES = "/files/"


@dataclass(frozen=True, kw_only=True)
class Exported:
    """The written archive. left_out: folders of the run that it does not contain."""

    file: Path
    index: ArchiveIndex
    left_out: tuple[str, ...]


def export(
    run_dir: Path,
    output: Path,
    *,
    outputs: Sequence[str] = (),
    with_image: bool = False,
    with_private: bool = False,
    now: datetime | None = None,
) -> Exported:
    """Write a run that has ended to `output`, atomically. outputs: patterns of files that its program wrote, to include as well.
    with_image: include the images. with_private: include what looks like keys or logins.

    RunError when the snapshot is missing, or a file contains a secret, looks like one, or changes meanwhile; LockError for a
    missing image; UsageError for a name without one of the two endings, an existing file, and a pattern that matches nothing.
    """
    write = _writer(output)
    record = read_manifest(RunPaths(run_dir).manifest)
    sources = dict(_files(run_dir))
    sources |= _snapshot(run_dir, record)
    sources |= _outputs(run_dir, record, outputs) if outputs else {}
    sources |= _images(run_dir, record) if with_image else {}
    if not with_private:
        _refuse_private(run_dir, sources)
    hidden = _secrets(run_dir, record)
    index = ArchiveIndex(
        kit=__version__,
        run_id=record.run_id,
        cluster=record.cluster,
        exported_at=now or datetime.now(UTC),
        members={
            name: _member(path, {} if name.startswith(archive_format.IMAGE) else hidden)
            for name, path in sources.items()
        },
    )
    try:
        with temporary_names.beside(output.absolute()) as partial:
            write(partial, _tar(index, sources))
            atomic_write.sync(partial)
            partial.rename(output)
    except (OSError, ToolError) as error:
        why = error.message if isinstance(error, ToolError) else error.strerror or error
        raise RunError(
            f"{output}: cannot be written: {why}", hint="free some space, or another place after -o"
        ) from None
    kept = {name.removeprefix(archive_format.RUN).partition("/")[0] for name in sources}
    left = sorted(one.name for one in run_dir.iterdir() if one.is_dir() and one.name not in kept and any(one.iterdir()))
    return Exported(file=output, index=index, left_out=tuple(left))


def _writer(output: Path) -> Callable[[Path, Iterator[bytes]], None]:
    if output.exists():
        raise UsageError(f"{output}: this file exists already", hint="another name after -o")
    if not output.absolute().parent.is_dir():
        raise UsageError(f"{output}: there is no such folder", hint=f"mkdir -p {shlex.quote(str(output.parent))}")
    if output.name.endswith(".tar.zst"):
        zstd = shell.require("zstd", hint="apt-get install zstd, or a name that ends in .tar.gz")

        def by_zstd(path: Path, chunks: Iterator[bytes]) -> None:
            shell.feed([zstd, "--quiet", "--threads=0", "-o", str(path)], chunks)

        return by_zstd
    if output.name.endswith((".tar.gz", ".tgz")):
        return _by_gzip
    raise UsageError(
        f"{output}: the name must end in .tar.zst, .tar.gz or .tgz", hint=f"-o {output.name.partition('.')[0]}.tar.zst"
    )


def _by_gzip(path: Path, chunks: Iterator[bytes]) -> None:
    # No name in the gzip header: the temporary file's name contains this machine's name.
    with path.open("wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=0) as sink:
        for chunk in chunks:
            sink.write(chunk)


def _files(run_dir: Path) -> Iterator[tuple[str, Path]]:
    """The files of the run folder to export. Hidden ones, such as the file of secrets, are left out."""
    roles = {path.parent.name for path in run_dir.glob("*/worker.sh")}
    for path in sorted(run_dir.iterdir()):
        if path.name.startswith(".") or path.is_symlink():
            continue
        if path.is_file():
            yield from _named(run_dir, path)
        elif path.name in {*_FOLDERS, *roles}:
            for one in sorted(path.rglob("*")):
                if one.is_file() and not one.is_symlink() and not _is_hidden(one.relative_to(run_dir)):
                    yield from _named(run_dir, one)
    for path in sorted(run_dir.glob("replica-*/metrics.jsonl")):
        if not path.is_symlink() and not path.parent.is_symlink():
            yield from _named(run_dir, path)


def _named(run_dir: Path, path: Path) -> Iterator[tuple[str, Path]]:
    name = f"{archive_format.RUN}{path.relative_to(run_dir)}"
    if not archive_format.is_path(name):
        raise RunError(f"{path}: a file of this name cannot be exported", hint="rename or remove it")
    yield name, path


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") or part == "__pycache__" for part in path.parts)


def _snapshot(run_dir: Path, record: Manifest) -> dict[str, Path]:
    """The files of the snapshot. Empty for a run in the live folder, whose code was not kept."""
    if record.workspace is None or record.workspace.tree is None:
        return {}
    tree, store = recorded_inputs.code_of(run_dir, record)
    found = {archive_format.LISTING: store.tree(tree.hash) / "listing"}
    for entry in tree.entries:
        if entry.kind != "link":
            found[archive_format.OBJECTS + entry.content] = store.files_of(tree.hash) / entry.path
    return found


def _outputs(run_dir: Path, record: Manifest, patterns: Sequence[str]) -> dict[str, Path]:
    """The files that the run's program wrote and that match a pattern."""
    code: dict[str, str] = {}
    if record.workspace is not None and record.workspace.tree is not None:
        tree, _ = recorded_inputs.code_of(run_dir, record)
        code = {entry.path: entry.content for entry in tree.entries}
    found = program_outputs.find(run_dir, patterns, code)
    return dict(named for path in found.values() for named in _named(run_dir, path))


def _images(run_dir: Path, record: Manifest) -> dict[str, Path]:
    from kit.images import image_lock

    # For a run over ssh, the image is in the local store if it was built here.
    store = data_folders.image_store() if mirrors.holding(run_dir) else Path(record.image).parent.parent
    found = {}
    for path in sorted(RunPaths(run_dir).locks.glob("*.lock")):
        lock = image_lock.read_lock(path)
        file = check_against_lock.check(lock, store, full=False)
        found[f"{archive_format.IMAGE}{lock.sha256}.sqsh"] = file
    return found


def _secrets(run_dir: Path, record: Manifest) -> dict[str, bytes]:
    """Name -> value of the job's secrets that are known here: those that the run got, and those that a new run would get."""
    values: dict[str, str] = {}
    with suppress(ConfigError):
        job, place = config.load_model(RunPaths(run_dir).job, Job), Path(record.job_file)
        values |= {name: os.environ[name] for name in job.secrets.env if name in os.environ}
        values |= secret.gather(job, job_dir=place.parent, job_file=record.job_file)
    values |= secret.read_secrets(run_dir) | secret.read_urls(run_dir)
    return {name: value.encode() for name, value in values.items() if len(value) >= _SHORTEST_SECRET}


def _refuse_private(run_dir: Path, sources: Mapping[str, Path]) -> None:
    """RunError, with their names, for files and values that look like keys or logins. Logs and images are not searched."""
    findings = [str(path) for name, path in sources.items() if _is_private(name, path)]
    with suppress(ConfigError):
        job = config.load_model(RunPaths(run_dir).job, Job)
        findings += [f"{RunPaths(run_dir).job}: {key}" for key, _ in private_files.private_values(job)]
    if findings:
        more = f"\n  and {len(findings) - _NAMED} more" if len(findings) > _NAMED else ""
        listed = "".join(f"\n  {finding}" for finding in findings[:_NAMED])
        problem = f"what looks like a key, a login or a token would be in the file:{listed}{more}"
        raise RunError(
            problem, hint=f"kit export {run_dir.name} --with-private, if whoever gets the file may have them"
        )


def _is_private(name: str, path: Path) -> bool:
    code = name.startswith(archive_format.OBJECTS)
    inside = name.removeprefix(archive_format.RUN).partition("/")[0]
    if name.startswith(archive_format.IMAGE) or (not code and inside in _NOT_SEARCHED):
        return False
    # Of a snapshot's file, the path ends with its path in the workspace.
    if code and private_files.is_private_name(str(path).partition(_FILES)[2]):
        return True
    before = b""
    try:
        with untrusted_files.open_regular(path) as source:
            while chunk := source.read(_CHUNK):
                if private_files.has_private_content(before + chunk):
                    return True
                before = chunk[-private_files.LONGEST :]
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror}") from None
    return False


def _member(path: Path, hidden: Mapping[str, bytes]) -> ArchiveMember:
    """Size and digest of a file. RunError if it contains a secret."""
    longest = max(map(len, hidden.values()), default=0)
    digest, size, before = hashlib.sha256(), 0, b""
    try:
        with untrusted_files.open_regular(path) as source:
            mode = os.fstat(source.fileno()).st_mode
            while chunk := source.read(_CHUNK):
                digest.update(chunk)
                size += len(chunk)
                looked = before + chunk
                for name, value in hidden.items():
                    if value in looked:
                        problem = f"{path}: holds the value of {name}, a secret of the job"
                        raise RunError(
                            problem, hint="remove it there, and change the secret: others can read that file"
                        )
                before = looked[-longest:] if longest else b""
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror}") from None
    return ArchiveMember(size=size, sha256=digest.hexdigest(), program=bool(mode & 0o100))


def _tar(index: ArchiveIndex, sources: Mapping[str, Path]) -> Iterator[bytes]:
    """The archive's bytes. RunError for a file that changed since the index was made."""
    text = json.dumps(index.model_dump(mode="json"), indent=1).encode()
    yield from _entry(archive_format.INDEX, len(text), 0o644)
    yield text + _padding(len(text))
    for name, path in sources.items():
        member = index.members[name]
        yield from _entry(name, member.size, 0o755 if member.program else 0o644)
        digest, left = hashlib.sha256(), member.size
        with untrusted_files.open_regular(path) as source:
            while left > 0 and (chunk := source.read(min(_CHUNK, left))):
                digest.update(chunk)
                left -= len(chunk)
                yield chunk
        if left or digest.hexdigest() != member.sha256:
            raise RunError(f"{path}: changed while it was exported", hint="export again once the run has ended")
        yield _padding(member.size)
    yield bytes(2 * _BLOCK)


def _entry(name: str, size: int, mode: int) -> Iterator[bytes]:
    one = tarfile.TarInfo(name)
    one.size, one.mode = size, mode
    yield one.tobuf(tarfile.PAX_FORMAT)


def _padding(size: int) -> bytes:
    return bytes(-size % _BLOCK)
