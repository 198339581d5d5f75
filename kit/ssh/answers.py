"""Parses the answer of a program on the cluster: sections of known length, then an archive of files.

answer NAME CODE LENGTH\\n<bytes>\\n     the output of a command, and its exit code
grown OFFSET LENGTH PATH\\n<bytes>\\n    the new end of a file that had OFFSET bytes before
end\\n                                  the program has finished; a tar archive follows, which may be empty
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, field

from kit.errors import ToolError
from kit.shell import Completed


@dataclass(frozen=True, kw_only=True)
class Grown:
    """New bytes at the end of a file. path: relative to the folder of the request."""

    path: str
    offset: int
    content: bytes


@dataclass(frozen=True, kw_only=True)
class Sent:
    """A file that the remote machine sent whole. mtime: seconds since the epoch."""

    path: str
    content: bytes
    mtime: float


@dataclass(kw_only=True)
class Reply:
    """The output of one remote program. whole: whether the program ran to its end. stderr: of all its commands."""

    stderr: str = ""
    whole: bool = False
    codes: dict[str, int] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    grown: list[Grown] = field(default_factory=list)
    files: list[Sent] = field(default_factory=list)

    def completed(self, name: str, argv: Sequence[str]) -> Completed:
        """A command's result as if it had run on this machine."""
        code, out = self.codes[name], self.texts[name].rstrip("\n")
        return Completed(argv=tuple(argv), returncode=code, stdout=out, stderr=self.stderr.rstrip("\n") if code else "")

    def text(self, name: str) -> str:
        """A command's output; ToolError if it failed."""
        if self.codes.get(name, 1) != 0:
            raise ToolError(
                "\n".join([f"{name} failed there", *(f"  {line}" for line in self.stderr.splitlines()[-8:])])
            )
        return self.texts[name]

    def table(self, name: str) -> dict[str, str]:
        """A command's output, parsed as lines of `KEY VALUE`."""
        return dict(line.partition(" ")[::2] for line in self.text(name).splitlines())


def read_reply(content: bytes, *, stderr: str) -> Reply:
    """Parse an answer. At an invalid section, parsing stops and `whole` stays False."""
    reply = Reply(stderr=stderr)
    at = 0
    while not reply.whole:
        end = content.find(b"\n", at)
        words = content[at:end].decode(errors="surrogateescape").split(" ", 3) if end >= 0 else []
        try:
            at = _section(words, content, end + 1, reply)
        except (ValueError, IndexError):
            return reply
    reply.files = _files(content[at:])
    return reply


def _section(words: Sequence[str], content: bytes, at: int, reply: Reply) -> int:
    """Parse one section; return the offset of the next. ValueError or IndexError for anything else."""
    if list(words) == ["end"]:
        reply.whole = True
        return at
    kind, first, second, third = words
    length = int(third if kind == "answer" else second)
    body = content[at : at + length]
    if len(body) != length or content[at + length : at + length + 1] != b"\n":
        raise ValueError("cut off")
    if kind == "answer":
        reply.codes[first], reply.texts[first] = int(second), body.decode(errors="surrogateescape")
    elif kind == "grown":
        reply.grown.append(Grown(path=third, offset=int(first), content=body))
    else:
        raise ValueError(kind)
    return at + length + 1


def _files(archive: bytes) -> list[Sent]:
    """The regular files of a tar archive."""
    if not archive:
        return []
    files = []
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:", errors="surrogateescape") as source:
            for member in source:
                taken = source.extractfile(member) if member.isreg() else None
                if taken is not None:
                    files.append(Sent(path=member.name, content=taken.read(), mtime=member.mtime))
    except (tarfile.TarError, EOFError) as error:
        raise ToolError(f"an archive from the cluster cannot be read: {error}") from None
    return files
