"""Takes an image in the chain of nodes, and sends it on while it comes in: `image.stage = "chain"`.

    python3 image_node.py MEETING NODE take STORED PARTIAL TARGET LOCK
    python3 image_node.py MEETING NODE send STORED PARTIAL TARGET LOCK     this node has the image already
    python3 image_node.py MEETING NODE leave WHY                           this node takes no part

stage.sh starts this on every node. image_coordinator.py has written MEETING, and tells each node where to take its blocks: from
another node, or from STORED, the file in the image store. Each block is checked when it arrives, and the whole image before PARTIAL
is renamed to TARGET. Good blocks that PARTIAL has from an earlier start are kept. Without a coordinator, or when nothing comes for
half a minute, the node reads the rest from STORED. LOCK is the descriptor of stage.sh's lock, which is released when TARGET is
there; the node then sends until all nodes have the image. Works with any Python from 3.8.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import threading
from pathlib import Path

import image_blocks
import node_wire
from image_sender import Sender
from image_share import LOOK_S, STORE, CoordinatorAddress, FailedError, ImageShare, say
from image_taker import Taker


def take(share: ImageShare, stored: Path, partial: Path, target: Path) -> None:
    """Take the image, and put it at its place. FailedError when this node cannot have it."""
    Taker(share, stored, partial).take()
    os.fsync(share.file)
    partial.rename(target)
    with share.changed:
        share.done = True
        # The last node's report ends the coordinator.
        share.tell_progress(done=True)


def send(share: ImageShare, target: Path) -> None:
    """Stay for the nodes behind this one, until all have the image. FailedError when it is damaged here; it is removed."""
    while not (share.over or share.alone):
        with share.changed:
            if not (share.check or share.make):
                share.changed.wait(LOOK_S)
            check, make, blocks = share.check, share.make, share.blocks
            share.check = share.make = False
        if make:
            share.tell(made=image_blocks.make(share.file).text())
        if check and blocks is not None and image_blocks.good_prefix(share.file, blocks) < blocks.count:
            target.unlink()
            raise FailedError(
                f"{target} is damaged, and was removed; the next start copies it again. Check this node's disk"
            )


def meet(share: ImageShare) -> None:
    """Join the other nodes; without a coordinator, take from the store."""
    sender = Sender(share)
    if share.join(sender.listen):
        threading.Thread(target=share.report, args=(os.getppid(),), daemon=True).start()
        threading.Thread(target=share.follow, args=(sender.listen,), daemon=True).start()
    else:
        share.alone = True
        share.redirect(STORE)


def part(name: str, meeting: CoordinatorAddress | None, way: str, *words: str) -> None:
    """This node's part, to its end. FailedError when this node cannot have the image."""
    stored, partial, target = map(Path, words[:3])
    flags = os.O_RDONLY if way == "send" else os.O_RDWR | os.O_CREAT
    file = os.open(target if way == "send" else partial, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    share = ImageShare(name, target.stem, meeting, file, done=way == "send")
    meet(share)
    if way == "take":
        take(share, stored, partial, target)
    fcntl.flock(int(words[3]), fcntl.LOCK_UN)
    send(share, target)


def leave(name: str, meeting: CoordinatorAddress | None, why: str) -> None:
    """Tell the coordinator that it need not wait for this node."""
    if meeting is None:
        return
    try:
        link = node_wire.connect(meeting.address, meeting.port, meeting.token)
        node_wire.say(link, node=name, left=why)
        link.close()
    except (OSError, node_wire.StrangerError):
        return


def fail(folder: str, name: str, meeting: CoordinatorAddress | None, why: str) -> None:
    """Report the reason to the log, the batch script and the other nodes, as stage.sh does."""
    say(f"error: image not staged: {why}")
    try:
        (Path(folder).parent / "stage" / f"{name}.failed").write_text(f"{why}\n", encoding="utf-8")
    except OSError as error:
        say(f"the reason cannot be kept: {error}")
    leave(name, meeting, why)


def main() -> int:
    """Return 0, or 1 after the reason was reported."""
    folder, name, way, *words = sys.argv[1:]
    signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
    try:
        meeting: CoordinatorAddress | None = CoordinatorAddress(folder)
    except (OSError, ValueError, KeyError):
        # The others are through with it already.
        meeting = None
    if way == "leave":
        leave(name, meeting, *words)
        return 0
    try:
        part(name, meeting, way, *words)
    except (FailedError, OSError) as error:
        fail(folder, name, meeting, str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
