"""Takes the blocks of an image from another node or from the image store, and checks each. Works with any Python from 3.8."""

from __future__ import annotations

import hashlib
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import image_blocks
import node_wire
from image_blocks import BlockList, Bytes
from image_share import LOOK_S, STORE, FailedError, ImageShare, say

T = TypeVar("T")

# Seconds without a block until a node helps itself, and for an answer of the coordinator.
_STUCK_S, _ANSWER_S = 30.0, 10.0
_TRIES = 4
# Bytes after which the disk is told to write.
_WRITTEN_OUT = 32 << 20


class WrongBlockError(Exception):
    """A block is not the listed one."""


class StaleError(Exception):
    """The source or the list changed while a block was on its way."""


class Taker:
    """store: the image's file in the image store. partial: the file that is filled."""

    def __init__(self, share: ImageShare, store: Path, partial: Path) -> None:
        self._share, self._store, self._partial = share, store, partial
        self._size = store.stat().st_size

    def take(self) -> None:
        """Fill the file, and check the whole image. FailedError when this node cannot have it."""
        for _ in range(_TRIES):
            blocks = self._await_list()
            self._begin(blocks)
            whole, written = _Digest(self._share, blocks), _WriteOut(self._share, blocks)
            if not self._receive(blocks):
                continue
            self._guarded(written.result)
            found = whole.result()
            right = image_blocks.good_prefix(self._share.file, blocks) if self._share.check else blocks.count
            if found == self._share.sha256 and right == blocks.count:
                return
            if right == blocks.count and image_blocks.good_prefix(self._share.file, blocks) == blocks.count:
                self._doubt(blocks, f"the whole image has the digest {found}, the lock says {self._share.sha256}")
        raise FailedError(f"{self._partial} does not read as it was written: check this node's disk and memory")

    # Before the first block

    def _await_list(self) -> BlockList:
        """The list of blocks: the coordinator's, or made here while the whole image is copied."""
        share = self._share
        while True:
            with share.changed:
                if share.blocks is None and not (share.make or share.alone or share.refused):
                    share.changed.wait(LOOK_S)
                self._heed_refusal()
                if share.blocks is not None:
                    return share.blocks
                copies = share.make or share.alone
            if copies:
                self._copy_whole()

    def _copy_whole(self) -> None:
        """Copy the image from the store, and list its blocks on the way. FailedError when it is not the locked image."""
        share = self._share
        say(f"copies {self._store} and lists its blocks")
        self._room(0)
        blocks = self._guarded(self._read_whole)
        if blocks.sha256 != share.sha256:
            raise FailedError(f"the copy has the digest {blocks.sha256}, the lock says {share.sha256}")
        with share.changed:
            share.store_bytes += blocks.size
            share.make, share.listed = False, blocks.digests
            if share.alone:
                share.blocks = blocks
            else:
                share.tell(made=blocks.text())

    def _read_whole(self) -> BlockList:
        source = os.open(self._store, os.O_RDONLY)
        try:
            return image_blocks.make(source, self._share.file)
        finally:
            os.close(source)

    def _begin(self, blocks: BlockList) -> None:
        """Keep the good blocks of an earlier start, or of the copy that the list was made from."""
        share = self._share
        have = image_blocks.good_prefix(share.file, blocks)
        if 0 < have < blocks.count:
            say(f"continues behind {have} of {blocks.count} blocks, which are here")
        self._room(have * blocks.block)
        with share.changed:
            if share.blocks is blocks:
                share.have, share.check, share.moved = have, False, time.monotonic()
                share.tell(begin=have)
                share.changed.notify_all()

    def _room(self, kept: int) -> None:
        """Refuse a full disk before the first block. kept: bytes that are there already."""
        free = os.fstatvfs(self._share.file)
        if free.f_bavail * free.f_frsize < self._size - kept:
            raise FailedError(f"its {self._size // 1000000} MB do not fit: {self._free()}")

    # Block after block

    def _receive(self, blocks: BlockList) -> bool:
        """Take every block. False when the list is made again."""
        share = self._share
        while share.blocks is blocks and share.have < blocks.count:
            source, place, turn = self._await_source(blocks)
            try:
                if source == STORE:
                    self._read_store(blocks, turn)
                elif source is not None:
                    self._read_node(blocks, turn, place)
            except StaleError:
                continue
            except WrongBlockError:
                if source == STORE:
                    self._doubt(blocks, f"block {share.have} of {self._store} is not the listed one")
                else:
                    self._report(turn, bad=share.have, source=source)
            except (OSError, node_wire.StrangerError) as error:
                why = str(error) or type(error).__name__
                if share.alone:
                    raise FailedError(why) from None
                self._report(turn, lost=source, why=why)
        return share.blocks is blocks

    def _await_source(self, blocks: BlockList) -> tuple[str | None, tuple[str, int], int]:
        """The present source. After half a minute without a block it is the store."""
        share = self._share
        with share.changed:
            while share.source is None and share.blocks is blocks:
                self._heed_refusal()
                if share.pause:
                    share.pause = False
                    share.tell_progress(paused=True)
                if time.monotonic() - share.moved > _STUCK_S:
                    self._help_itself(f"nothing came for {_STUCK_S:.0f} s")
                    break
                share.changed.wait(LOOK_S)
            return share.source, share.place, share.turn

    def _read_store(self, blocks: BlockList, turn: int) -> None:
        share = self._share
        handle = os.open(self._store, os.O_RDONLY)
        try:
            while share.have < blocks.count:
                offset, length = blocks.offset(share.have), blocks.length(share.have)
                content = image_blocks.read_at(handle, offset, length)
                share.store_bytes += length
                self._keep(blocks, turn, content)
        except EOFError as error:
            raise OSError(f"{self._store}: {error}") from None
        finally:
            os.close(handle)

    def _read_node(self, blocks: BlockList, turn: int, place: tuple[str, int]) -> None:
        share = self._share
        if share.meeting is None:
            raise ConnectionError("there is no coordinator")
        link = node_wire.connect(*place, share.meeting.token)
        try:
            node_wire.say(link, node=share.name, **{"from": share.have})
            link.settimeout(LOOK_S)
            buffer = memoryview(bytearray(blocks.block))
            while share.have < blocks.count:
                view = buffer[: blocks.length(share.have)]
                self._fill(link, view, turn)
                self._keep(blocks, turn, view)
        finally:
            link.close()

    def _fill(self, link: socket.socket, view: memoryview, turn: int) -> None:
        """Receive one block while the source is the same; half a minute at most without a byte."""
        share, heard = self._share, time.monotonic()
        while view:
            if share.turn != turn:
                raise StaleError
            try:
                got = link.recv_into(view)
            except socket.timeout:
                if time.monotonic() - heard > _STUCK_S:
                    self._help_itself(f"{share.source} sent nothing for {_STUCK_S:.0f} s")
                continue
            if not got:
                raise ConnectionError("the connection ended")
            view, heard = view[got:], time.monotonic()

    def _keep(self, blocks: BlockList, turn: int, content: Bytes) -> None:
        """Check a block and write it."""
        share = self._share
        index = share.have
        if not blocks.fits(index, content):
            raise WrongBlockError
        self._guarded(lambda: image_blocks.write_at(share.file, blocks.offset(index), content))
        with share.changed:
            if share.blocks is not blocks:
                raise StaleError
            share.have, share.moved = index + 1, time.monotonic()
            share.changed.notify_all()
            if share.turn != turn:
                raise StaleError

    # What goes wrong

    def _report(self, turn: int, **problem: object) -> None:
        """Report what is wrong with the present source, and wait for another one."""
        share = self._share
        with share.changed:
            if share.turn != turn:
                return
            share.redirect(None)
            share.tell(**problem)
            if not share.changed.wait_for(lambda: share.source is not None or bool(share.refused), _ANSWER_S):
                self._help_itself("no other source was named")

    def _doubt(self, blocks: BlockList, why: str) -> None:
        """The list may be wrong. The coordinator has it made again; alone, this node copies the whole image."""
        share = self._share
        with share.changed:
            if share.blocks is blocks:
                share.blocks, share.have = None, 0
                share.redirect(None)
                share.tell(bad_list=why, of=blocks.digests[-1])

    def _help_itself(self, why: str) -> None:
        say(f"{why}; this node reads the rest from the image store")
        self._share.moved = time.monotonic()
        self._share.redirect(STORE)

    def _heed_refusal(self) -> None:
        if self._share.refused:
            raise FailedError(self._share.refused)

    def _guarded(self, write: Callable[[], T]) -> T:
        """Write to this node's disk; FailedError when it takes no more."""
        try:
            return write()
        except (OSError, EOFError) as error:
            raise FailedError(f"{getattr(error, 'strerror', None) or error}; {self._free()}") from None

    def _free(self) -> str:
        free = os.fstatvfs(self._share.file)
        return f"{self._partial.parent} has {free.f_bavail * free.f_frsize // 1000000} MB free"


class _Digest(threading.Thread):
    """The digest of the whole file, read behind the blocks while they are written."""

    def __init__(self, share: ImageShare, blocks: BlockList) -> None:
        super().__init__(daemon=True)
        self._share, self._blocks, self._whole = share, blocks, hashlib.sha256()
        self.start()

    def run(self) -> None:
        """Read each block when it is there."""
        share, blocks = self._share, self._blocks
        for index in range(blocks.count):
            if not share.await_blocks(blocks, index + 1):
                return
            self._whole.update(image_blocks.read_at(share.file, blocks.offset(index), blocks.length(index)))

    def result(self) -> str:
        """In hex, when all blocks are there."""
        self.join()
        return self._whole.hexdigest()


class _WriteOut(threading.Thread):
    """Has the disk write blocks while others come in. Else a node with enough memory would write all of the image at its end."""

    def __init__(self, share: ImageShare, blocks: BlockList) -> None:
        super().__init__(daemon=True)
        self._share, self._blocks = share, blocks
        self._error: OSError | None = None
        self.start()

    def run(self) -> None:
        """Write out a part after the other. The last one is the whole image's fsync."""
        share, blocks = self._share, self._blocks
        step = max(1, _WRITTEN_OUT // blocks.block)
        for wanted in range(share.have + step, blocks.count, step):
            if not share.await_blocks(blocks, wanted):
                return
            try:
                os.fdatasync(share.file)
            except OSError as error:
                self._error = error
                return

    def result(self) -> None:
        """OSError when the disk did not take a block: the kernel tells this only once, so the last fsync would not get it."""
        self.join()
        if self._error is not None:
            raise self._error
