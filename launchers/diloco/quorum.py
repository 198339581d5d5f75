"""A replica group's membership in the quorum: connects the group to the others, and fetches state that it missed.

Built on torchft's parts. The lighthouse knows which groups are alive. The manager server (one per group) sends it
heartbeats and asks for a quorum. The reconfigurable process group connects the ranks of equal number in all groups. The
transport sends state from a group that has it to one that missed it. A meeting has these steps:

    join     wait until the lighthouse names the groups; connect to them; send or take state where one is behind
    gather   a row of numbers from each group
    (the caller averages)
    confirm  nobody failed; only then may the caller use the average

Each step ends in the same way on all ranks of a group. After a failure, `again()` makes the next join connect anew.
torchft's own Manager does the first step too. But it gives up for good when one quorum request fails, and it lets one
group commit what another missed, without either noticing.
"""

import hashlib
import os
import queue
import sys
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, TypeVar

import torch
import torch.distributed as dist
from across import AcrossGroup
from lib.ranks import Ranks
from replica_group import ReplicaGroup
from torch.distributed import TCPStore
from torch.distributed.distributed_c10d import AllgatherOptions
from torchft.checkpointing.pg_transport import PGTransport
from torchft.coordination import LighthouseServer, ManagerClient, ManagerServer
from torchft.process_group import ProcessGroup, ProcessGroupGloo, ProcessGroupNCCL
from wire import PeerLost, traffic

T = TypeVar("T")
FOREVER = timedelta(days=30)  # for a quorum; `meanwhile` of join() decides when the wait ends
CONNECT = timedelta(seconds=60)  # to find the lighthouse at the start
# Failures in a row after which this group gives up. A death causes one or two, so no number of deaths comes near.
MOST_FAILURES = 100


class MeetingFailed(Exception):  # noqa: N818 - a way to continue, not an error
    """A step of a meeting failed on some rank of this group. The group has to meet again."""


@dataclass(frozen=True, kw_only=True)
class Members:
    """The groups of a quorum in the order of their ranks, this group's place, and whether it took state."""

    quorum_id: int  # the lighthouse's; it rises when members change or report failures
    replica_ids: list[str]  # GROUP:UUID, sorted
    me: int  # this group's index in replica_ids
    healed: bool  # whether this group took another one's state

    @property
    def groups(self) -> list[int]:
        return [int(replica.partition(":")[0]) for replica in self.replica_ids]


class DaemonResult(Generic[T]):
    """The result of `work`, which runs on a separate daemon thread, so that it cannot keep the program from ending."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._box: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()  # gets one item
        self._got: tuple[T | None, BaseException | None] | None = None  # the result, or the error
        threading.Thread(target=self._run, args=(work,), daemon=True).start()

    def _run(self, work: Callable[[], T]) -> None:
        try:
            self._box.put((work(), None))
        except BaseException as error:  # noqa: BLE001 - value() raises it again
            self._box.put((None, error))

    def ready(self, seconds: float) -> bool:
        """Whether the result is there. Waits up to `seconds` for it."""
        if self._got is None:
            try:
                self._got = self._box.get(timeout=seconds)
            except queue.Empty:
                return False
        return True

    def value(self) -> T:
        """The result. Raises the error of `work`."""
        # A day: longer than any time-out of an average. Of a quorum the value is asked for when it is ready.
        self.ready(3600 * 24)
        assert self._got is not None
        if self._got[1] is not None:
            raise self._got[1]
        return self._got[0]  # type: ignore[return-value]


class Seat:
    """A replica group's membership in the quorum. All ranks of the group construct it together.

    wire: the device of the tensors that are sent; the CPU for gloo.
    """

    def __init__(
        self,
        group: ReplicaGroup,
        world: Ranks,
        *,
        min_replicas: int,
        timeout: float,
        wire: torch.device,
        across: AcrossGroup | None = None,
    ) -> None:
        """across: carries the traffic of a training over two clusters."""
        self._world, self._min_replicas, self._timeout = world, min_replicas, timedelta(seconds=timeout)
        # torchft's process groups get new members by configure(), while the process lives. A group of torch.distributed keeps
        # the ranks that it was made with.
        own = ProcessGroupNCCL if wire.type == "cuda" else ProcessGroupGloo
        self.pg: ProcessGroup | AcrossGroup = across or own(self._timeout)
        self._wire = wire
        # Sends and receives a nested state of tensors over the same connections.
        self._transport: PGTransport[Any] = PGTransport(self.pg, self._timeout, wire)
        self._failures = 0  # since the last average; above 0 the lighthouse gives the quorum a new id
        self._in_a_row = 0  # of together()
        self._connected: tuple[object, ...] = ()  # what self.pg is connected by; (): connect anew
        alone = "RANK" not in os.environ  # then no launcher has made a store
        address, port = ("127.0.0.1", 0) if alone else (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        # The store at MASTER_ADDR, through which the group's ranks have found each other. Other groups use it, too.
        self._store = TCPStore(address, port, is_master=alone, wait_for_workers=False)
        # torchrun keeps the store when it restarts the ranks. Its count of restarts keeps them from the last start's address.
        key = f"diloco/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/manager"
        # One manager server for each group. It asks the lighthouse once all ranks of the group have asked it.
        if world.is_main_process:
            lighthouse = os.environ.get("TORCHFT_LIGHTHOUSE") or self._own_lighthouse(group)
            try:
                self._server = ManagerServer(
                    # torchft sorts the groups by this text, hence the zeros. The UUID is new at each start: the lighthouse takes
                    # a group that comes back for another one than the one that died.
                    replica_id=f"{group.id:04d}:{uuid.uuid4()}",
                    lighthouse_addr=lighthouse,
                    hostname=address,  # under which it announces itself
                    bind="0.0.0.0:0",  # any free port
                    store_addr=f"{address}:{self._store.port}",
                    world_size=world.ddp_world_size,
                    heartbeat_interval=timedelta(milliseconds=100),
                    connect_timeout=CONNECT,
                    quorum_retries=10**9,  # while the lighthouse is away, ask again ten times a second
                )
            except Exception as error:  # noqa: BLE001 - what torchft raises is not specified
                raise SystemExit(f"no lighthouse answers at {lighthouse} (TORCHFT_LIGHTHOUSE): {error}") from None
            # Rank 0 writes, all ranks read below; get() waits until the key is there.
            self._store.set(key, self._server.address())
        self._client = ManagerClient(self._store.get(key).decode(), connect_timeout=CONNECT)

    def _own_lighthouse(self, group: ReplicaGroup) -> str:
        if group.count > 1:
            raise SystemExit("TORCHFT_LIGHTHOUSE is not set: it must name the lighthouse, as http://HOST:PORT.")
        self._lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=1)
        return f"http://127.0.0.1:{self._lighthouse.address().rpartition(':')[2]}"

    def join(
        self, outer_step: int, *, give: Callable[[], Any], take: Callable[[Any], None], meanwhile: Callable[[], None]
    ) -> Members:
        """Wait for a quorum and connect to it. A group at an earlier `outer_step` than another takes the other's state.

        `meanwhile` is called during the wait, by all ranks of the group together, and may raise to leave.
        """
        # On a thread, because the call blocks, and this rank must notice a stop meanwhile.
        answer = DaemonResult(
            lambda: self._client._quorum(
                group_rank=self._world.ddp_rank,
                step=outer_step,
                checkpoint_metadata="",  # an address, for a transport over HTTP
                shrink_only=False,  # new groups may join
                timeout=FOREVER,
                commit_failures=self._failures,
                init_sync=False,  # at step 0 nothing is copied: all groups begin with equal weights
            )
        )
        pause = 0.01
        # _all() is a collective of this group. So all its ranks leave the loop together, and call `meanwhile` equally often.
        while not self._all(answer.ready(pause)):
            pause = min(2 * pause, 0.25)  # seconds; a quorum may take as long as the others still train
            meanwhile()
        found = answer.value()
        if found.replica_world_size < self._min_replicas:  # the lighthouse has a smaller minimum
            time.sleep(1)
            raise MeetingFailed(f"{found.replica_world_size} groups, of at least {self._min_replicas}")

        def connect() -> None:
            with traffic():
                self._connect(found)
            # Rank i sends its part to rank i of each group that is behind.
            if found.recover_dst_replica_ranks:
                state = give()  # not in traffic(): an error in it is this program's own
                with traffic():
                    self._transport.send_checkpoint(
                        found.recover_dst_replica_ranks, found.max_step, state, self._timeout
                    )
            if found.heal:
                source = found.recover_src_replica_rank
                with traffic():
                    took.append(self._transport.recv_checkpoint(source, "", found.max_step, self._timeout))

        took: list[Any] = []  # the state that connect() received
        self.together(connect)
        if took:
            # Only now: the model is not changed unless all ranks of this group have received their part.
            take(took[0])
        return Members(
            quorum_id=found.quorum_id, replica_ids=found.replica_ids, me=found.replica_rank, healed=bool(took)
        )

    def _connect(self, found: Any) -> None:
        """Connect to the members, unless they are the same as before and none failed (a failure changes the id)."""
        wanted = (found.quorum_id, found.store_address, tuple(found.replica_ids))
        if wanted == self._connected:
            return
        self._connected = ()  # stays so where connecting fails
        # A new lighthouse counts ids from 1 again. The other values keep entries with the same id apart in the store.
        salt = hashlib.sha256(repr((*wanted, found.max_step)).encode()).hexdigest()[:16]
        if isinstance(self.pg, AcrossGroup):
            # Through the gates of the two clusters: no store is reached by all.
            groups = [int(replica.partition(":")[0]) for replica in found.replica_ids]
            self.pg.connect(f"{salt}-{self._world.ddp_rank}", groups, found.replica_rank)
            self._connected = wanted
            return
        self.pg.configure(
            # A prefix for this quorum and this rank number: rank i of every group meets the others of its number under it.
            f"{found.store_address}/diloco/{salt}/{self._world.ddp_rank}",
            found.replica_ids[found.replica_rank],
            found.replica_rank,
            found.replica_world_size,
            found.quorum_id,
            self._world.ddp_rank,
            self._world.ddp_world_size,
        )
        self._connected = wanted

    def gather(self, row: list[int]) -> list[list[int]]:
        """The rows of all members, in their order."""

        def work() -> list[list[int]]:
            mine = torch.tensor(row, device=self._wire)  # (numbers,), int64
            rows = [torch.empty_like(mine) for _ in range(self.pg.size())]
            with traffic():
                self.pg.allgather([rows], [mine], AllgatherOptions()).wait()
            return torch.stack(rows).tolist()  # (groups, numbers)

        return self.together(work)

    def confirm(self) -> None:
        """Wait until every member has called this. Then the earlier steps succeeded for all groups that are alive."""
        # The number means nothing: an all-gather ends only after every member has sent.
        self.gather([1])
        self._failures = self._in_a_row = 0

    def together(self, work: Callable[[], T]) -> T:
        """Do `work` on this rank. If one rank of the group loses a peer, all ranks of the group raise MeetingFailed.

        Any other error is this program's own and ends it. MOST_FAILURES without an average between them end it, too.
        """
        failure: BaseException | None = None
        result = None
        try:
            result = work()
            # NCCL reports an error late, so errored() waits for the GPU. Gloo raises it in wait().
            failure = self.pg.errored() if self._connected else None
        except PeerLost as error:
            failure = error
        if failure is not None:
            print(f"synchronisation failed on rank {self._world.ddp_rank}: {failure}", file=sys.stderr, flush=True)
            self._connected = ()
            self.pg.abort()  # lets the other groups notice at once
        # Also a rank without a failure raises MeetingFailed, if another rank of its group has one.
        if not self._all(failure is None):
            self._in_a_row += 1
            if self._in_a_row >= MOST_FAILURES:
                raise SystemExit(
                    f"the groups met {MOST_FAILURES} times in a row without an average; the last time: "
                    f"{failure or 'it failed on another rank of this group'}"
                )
            time.sleep(min(0.01 * self._in_a_row, 1.0))  # longer and longer, up to a second
            raise MeetingFailed(str(failure or "on another rank of this group"))
        return result  # type: ignore[return-value]

    def again(self) -> None:
        """Make the next join connect anew, in all groups."""
        self._failures += 1

    def close(self) -> None:
        """Leave and stop the heartbeats. The other groups then no longer wait for this one."""
        if self._world.is_main_process:
            self._server.shutdown()

    def _all(self, good: bool) -> bool:
        """Whether `good` is true on all ranks of the group."""
        if self._world.ddp_world_size == 1:
            return good
        # The minimum of 0 and 1 is a logical and. Over gloo: the GPU is not needed, and its stream is not waited for.
        flag = torch.tensor([good], dtype=torch.int32)
        dist.all_reduce(flag, op=dist.ReduceOp.MIN, group=self._world.control)
        return bool(flag.item())
