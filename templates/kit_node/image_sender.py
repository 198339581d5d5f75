"""Sends the blocks that a node has to the nodes behind it, each block as soon as it is there. Works with any Python from 3.8."""

from __future__ import annotations

import os
import socket
import threading
import time

import node_wire
from image_blocks import BlockList
from image_share import ImageShare, say

# Connections that have not yet shown that they know the token, and seconds for a receiver that takes nothing.
_MOST_STRANGERS, _SEND_S = 32, 30.0
# Seconds after which it looks again when there is no free file.
_NO_FILES_S = 0.2


class Sender:
    """The port of this node. It is bound to the node's address on the network of the coordinator."""

    def __init__(self, share: ImageShare) -> None:
        self._share = share
        self._strangers = threading.BoundedSemaphore(_MOST_STRANGERS)
        self._turned_away = 0

    def listen(self, address: str) -> int:
        """Open a port that is free; return it."""
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.bind((address, 0))
        listener.listen(64)
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return int(listener.getsockname()[1])

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                link, _ = listener.accept()
            except OSError:
                # No free file, for a moment, or a connection that was given up.
                time.sleep(_NO_FILES_S)
                continue
            if self._strangers.acquire(blocking=False):
                threading.Thread(target=self._serve, args=(link,), daemon=True).start()
            else:
                link.close()

    def _serve(self, link: socket.socket) -> None:
        try:
            try:
                meeting = self._share.meeting
                if meeting is None:
                    return
                node_wire.admit(link, meeting.token)
                asked = next(node_wire.messages(link))
            finally:
                self._strangers.release()
            link.settimeout(_SEND_S)
            self._send(link, int(asked["from"]))
        except (OSError, StopIteration):
            # A receiver that is gone has another source by now, or asks again.
            pass
        except (KeyError, ValueError) as error:
            say(f"the request of a node is not understood: {error!r}")
        except node_wire.StrangerError as error:
            self._turned_away += 1
            if self._turned_away == 1:
                self._share.tell(stranger=str(error))
        finally:
            link.close()

    def _send(self, link: socket.socket, index: int) -> None:
        with os.fdopen(os.dup(self._share.file), "rb") as stream:
            while True:
                blocks = self._wait_for(index)
                if blocks is None:
                    return
                link.sendfile(stream, blocks.offset(index), blocks.length(index))
                index += 1

    def _wait_for(self, index: int) -> BlockList | None:
        """The list, when this node has that block; None after the last, or when the list was made again."""
        share = self._share
        with share.changed:
            blocks = share.blocks
            if blocks is None or index >= blocks.count:
                return None
            share.changed.wait_for(lambda: share.have > index or share.blocks is not blocks)
            return blocks if share.blocks is blocks else None
