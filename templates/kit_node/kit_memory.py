"""Checkpoints of the last steps in the memory of the nodes: `[checkpoint] memory_every`.

    from kit_memory import Memory
    memory = Memory()                      # after torch.distributed.init_process_group
    found = memory.load()                  # None, or the newest step that every rank has: found.step, found.state
    ...
    if memory.due(step):
        memory.save(step, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})

`save` copies the state into a file in /dev/shm, and returns. In the background the bytes go to the next node of the job. So a rank
that is killed, or a node that is lost, costs the steps since then, and no read from the file system. The job's step kit-memory
keeps the files over the restarts of one allocation, and removes them.

Every method is called by all ranks together. Without the key, and outside of a job, `load` returns None and nothing is due. Only
tensors and the default `gather` need torch.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from kit_events import record, record_resumed
from kit_memory_files import DamagedError, MemoryFiles, folder, node_name, sha256
from kit_memory_state import StateLayout, read_state
from kit_memory_transfer import PartServer, fetch, own_address, store

__all__ = ["Memory"]

T = TypeVar("T")
if TYPE_CHECKING:
    # Returns the values of all ranks, in the order of ranks.
    Gather = Callable[[Any], list[Any]]
SHARED = "shared"
# Steps of a part that a node holds at most.
_KEPT = 2
# By folder and rank: the Memory that answers other ranks.
_open: dict[tuple[str, int], Memory] = {}


class MemoryStep(NamedTuple):
    """A step from memory: this rank's state, and the part that is equal on all ranks (None if the program saved none).

    fetched: whether some rank's bytes came from another node.
    """

    step: int
    state: Any
    shared: Any
    fetched: bool


class _Member(NamedTuple):
    """A rank, its node, and where its server answers."""

    rank: int
    node: str
    address: tuple[str, int]


class Memory:
    """The checkpoints in memory of one start of a program.

    every: steps between saves; None: KIT_CHECKPOINT_MEMORY_EVERY. gather: returns the values of all ranks, in the order of ranks.
    path, node, rank: this node's folder and name and this process's rank, if they are not those of the environment.
    """

    def __init__(
        self,
        every: int | None = None,
        *,
        gather: Gather | None = None,
        path: str | None = None,
        node: str | None = None,
        rank: int | None = None,
    ) -> None:
        path = path or folder()
        self.every = int(os.environ.get("KIT_CHECKPOINT_MEMORY_EVERY") or 0) if every is None else every
        self.took = 0.0
        self._thread: threading.Thread | None = None
        self._problem: str | None = None
        self._server: PartServer | None = None
        self._warned = False
        self._fits: bool | None = None
        if path is None:
            self.every = 0
        if path is None or not self.every:
            return
        self._rank = int(os.environ.get("RANK", "0")) if rank is None else rank
        if (path, self._rank) in _open:
            # The program starts again in the same process: what is on its way belongs to a past that is given up.
            _open[path, self._rank].close()
        _open[path, self._rank] = self
        self._gather, self._files, self._closed = gather or _gathered_by_torch(), MemoryFiles(path), False
        self._node = node or node_name()
        # Together they make a token: known to the ranks of this start alone, and on no disk.
        secrets = self._gather((os.urandom(32).hex(), self._files.foreign()))
        foreign = next((text for _, text in secrets if text), None)
        if foreign:
            # The same on all ranks: none waits for another from here on.
            self.every = 0
            self._tell_off(foreign, "Tell who runs the cluster: somebody may have tried to give this run a state")
            return
        self._token = hashlib.sha256("".join(secret for secret, _ in secrets).encode()).digest()
        self._server = PartServer(self._files, self._token, own_address())
        self._members = [_Member(*of) for of in self._gather((self._rank, self._node, self._server.address))]
        self._nodes = _by_node(self._members)
        self._neighbour = _neighbour(self._nodes, self._node, self._rank)
        self._has: dict[str, dict[str, list[int]]] = dict(self._gather((self._node, self._files.steps())))

    def due(self, step: int) -> bool:
        """Whether `step` is to be saved."""
        return bool(self.every) and self._fits is not False and step % self.every == 0

    def newest(self) -> int | None:
        """The newest step of which every rank's part is on some node; None if there is none."""
        return next(iter(self._candidates(0)), None) if self.every else None

    def load(self, *, at_least: int = 0) -> MemoryStep | None:
        """The newest step, not below `at_least`, that all ranks have complete, or None. All later steps are forgotten."""
        if not self.every:
            return None
        began = time.monotonic()
        checkpoint: MemoryStep | None = None
        for step in self._candidates(at_least):
            checkpoint = self._loaded(step)
            if checkpoint is not None:
                break
        if self._leads():
            self._files.forget(after=checkpoint.step if checkpoint else -1, keep=self._parts_here())
        self._gather(None)
        if checkpoint is None:
            return None
        self._tell_resumed(checkpoint, time.monotonic() - began)
        if self._neighbour is not None and checkpoint.step not in self._has[self._neighbour.node].get(
            _part(self._rank), ()
        ):
            self._in_background(checkpoint.step, [_part(self._rank)])
        return checkpoint

    def save(self, step: int, state: object, shared: object = None) -> None:
        """Save this rank's state of a step, and what is equal on all ranks: it is stored once on each node.

        Returns when the states are copied, and may change. Waits for the copy to the neighbour of the save before. `took` is set to
        the seconds.
        """
        if not self.every or self._fits is False:
            return
        began = time.monotonic()
        self.wait()
        # The parts of the save before must be complete on all nodes before any rank gives up the ones before them.
        self._warn(self._gather(self._problem))
        self._problem = None
        parts = {SHARED: StateLayout(shared)} if shared is not None and self._leads() else {}
        # This rank's part comes last: where it is complete, so is the shared one.
        parts[_part(self._rank)] = StateLayout(state)
        if self._fits is None:
            self._fits = self._does_fit(parts)
        if self._fits:
            try:
                for part, layout in parts.items():
                    draft = self._files.write(part, layout.size)
                    layout.write(draft.payload)
                    draft.commit(step)
                self._in_background(step, [*parts])
            except OSError as error:
                self._problem = f"rank {self._rank} on {self._node} cannot keep step {step}: {error}"
        self.took = time.monotonic() - began

    def wait(self) -> None:
        """Wait until the last save is complete on the neighbour, too."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def close(self) -> None:
        """Answer no other rank any more, and store nothing more. The parts stay for the next start."""
        self._closed = True
        if self._server is not None:
            self._server.close()

    def _candidates(self, at_least: int) -> list[int]:
        """Steps that all ranks' parts have somewhere, newest first. Equal on all ranks."""
        has = [
            {step for parts in self._has.values() for step in parts.get(_part(one.rank), ())} for one in self._members
        ]
        return sorted((step for step in set.intersection(*has) if step >= at_least), reverse=True)

    def _loaded(self, step: int) -> MemoryStep | None:
        """The state of a step; None if it is damaged somewhere. Equal on all ranks."""
        shared = any(step in parts.get(SHARED, ()) for parts in self._has.values())
        here = [_part(self._rank), *([SHARED] if shared and self._leads() else [])]
        fetched, problem = self._tried(lambda: [self._bring(part, step) for part in here])
        if not self._all_well(step, problem):
            return None
        states, problem = self._tried(
            lambda: [
                read_state(self._files.read_part(part, step))
                for part in (_part(self._rank), *([SHARED] if shared else []))
            ]
        )
        if not self._all_well(step, problem) or states is None:
            return None
        return MemoryStep(step, states[0], states[1] if shared else None, any(map(any, self._gather(fetched))))

    def _bring(self, part: str, step: int) -> bool:
        """Make this node have a complete part. Returns whether it came from another node."""
        problems: list[str] = []
        holders = sorted((node for node, parts in self._has.items() if step in parts.get(part, ())), key=self._distance)
        for node in holders:
            try:
                if node == self._node:
                    self._files.check(part, step)
                else:
                    fetch(
                        self._nodes[node][self._rank % len(self._nodes[node])].address,
                        self._token,
                        part,
                        step,
                        self._files,
                    )
                return node != self._node
            except (OSError, DamagedError) as error:
                problems.append(f"{error} ({node})")
                if node == self._node:
                    self._files.remove(part, step)
        raise DamagedError("; ".join(problems) or f"no node has {part}")

    def _distance(self, node: str) -> tuple[bool, str]:
        return node != self._node, node

    def _tried(self, make: Callable[[], T]) -> tuple[T | None, str | None]:
        """The result of `make`, or the text of its error."""
        try:
            return make(), None
        except Exception as error:  # noqa: BLE001 - sent to all ranks, so that none waits for this one
            return None, f"rank {self._rank}: {error}"

    def _all_well(self, step: int, problem: str | None) -> bool:
        problems = [text for text in self._gather(problem) if text]
        if problems and self._rank == 0:
            _say(f"step {step} in memory is not used: {'; '.join(problems[:3])}")
        return not problems

    def _does_fit(self, parts: dict[str, StateLayout]) -> bool:
        """Whether all nodes have the memory for all parts. Rank 0 warns where one has not. Equal on all ranks."""
        sizes = {part: layout.size for part, layout in parts.items()}
        free: int | str
        try:
            free = self._files.free() + self._files.held()
        except OSError as error:
            free = f"there is no folder for checkpoints in memory: {error}"
        reports = self._gather((self._node, sizes, free, _resident()))
        for node in self._nodes:
            have = [one for where, _, one, _ in reports if where == node]
            problem = next((one for one in have if isinstance(one, str)), None)
            need = _KEPT * sum(
                size for where, of, _, _ in reports for part, size in of.items()
                if where == node or (part != SHARED and self._sends_to(where, node))
            )  # fmt: skip
            if problem is None:
                limit = _memory_limit() - sum(rss for where, _, _, rss in reports if where == node)
                least = min(*have, limit) if len(have) > 1 else min(have[0], limit)
                if need > least:
                    problem = (
                        f"they need {need / 1e9:.2f} GB on {node}, and {max(0, least) / 1e9:.2f} GB are free there"
                    )
            if problem:
                self._tell_off(problem, "Ask for more memory, or remove checkpoint.memory_every")
                return False
        return True

    def _sends_to(self, node: str, to: str) -> bool:
        after = _after(self._nodes, node)
        return after == to and node != to

    def _parts_here(self) -> set[str]:
        """The parts that belong on this node: its own, and its ranks' and those whose copies it gets."""
        return {SHARED} | {
            _part(one.rank) for one in self._members if one.node == self._node or self._sends_to(one.node, self._node)
        }

    def _in_background(self, step: int, parts: Collection[str]) -> None:
        # A daemon: it may wait for another rank, and must not keep a failed one from exiting.
        self._thread = threading.Thread(target=self._complete, args=(step, parts), name="kit-memory", daemon=True)
        self._thread.start()

    def _complete(self, step: int, parts: Collection[str]) -> None:
        """Copy this rank's part to the neighbour, and note the digests."""
        try:
            for part in parts:
                payload = self._files.read_part(part, step)
                if part == SHARED or self._neighbour is None:
                    digest = sha256(payload)
                else:
                    digest = store(self._neighbour.address, self._token, part, step, payload)
                if self._closed:
                    return
                self._files.note_digest(part, step, digest)
        except (OSError, DamagedError, ValueError, KeyError) as error:
            where = f" to {self._neighbour.node}" if self._neighbour else ""
            self._problem = f"rank {self._rank} on {self._node}: step {step} was not copied{where}: {error}"

    def _warn(self, problems: list[str | None]) -> None:
        told = [text for text in problems if text]
        # Once, until all is well again.
        new, self._warned = bool(told) and not self._warned, bool(told)
        if new and self._rank == 0:
            _say(f"a fault may cost more than {self.every} steps: {'; '.join(told[:3])}")

    def _leads(self) -> bool:
        """Whether this is the first rank of its node."""
        return self._nodes[self._node][0].rank == self._rank

    def _tell_off(self, problem: str, hint: str) -> None:
        if self._rank == 0:
            _say(f"checkpoints in memory are off: {problem}. {hint}")
            record("memory-off", why=problem)

    def _tell_resumed(self, checkpoint: MemoryStep, seconds: float) -> None:
        if self._rank == 0:
            of = "the memory of other nodes" if checkpoint.fetched else "memory"
            _say(f"step {checkpoint.step} is loaded from {of}, in {seconds:.2f} s", kind="info")
            record_resumed(checkpoint.step, "neighbour" if checkpoint.fetched else "memory")


def _part(rank: int) -> str:
    return f"rank-{rank}"


def _by_node(members: list[_Member]) -> dict[str, list[_Member]]:
    """The members of each node, in the order of ranks."""
    found: dict[str, list[_Member]] = {}
    for one in members:
        found.setdefault(one.node, []).append(one)
    return found


def _after(nodes: dict[str, list[_Member]], node: str) -> str:
    """The node that gets the copies of a node."""
    names = [*nodes]
    return names[(names.index(node) + 1) % len(names)]


def _neighbour(nodes: dict[str, list[_Member]], node: str, rank: int) -> _Member | None:
    """The member that gets this rank's copies; None on a single node."""
    if len(nodes) < 2:
        return None
    place, its = [one.rank for one in nodes[node]].index(rank), nodes[_after(nodes, node)]
    return its[place % len(its)]


def _gathered_by_torch() -> Gather:
    """Gathers over a group of its own, because the training's collectives must not mix with these."""
    import torch.distributed as dist  # noqa: PLC0415

    if not (dist.is_available() and dist.is_initialized()):
        return lambda value: [value]
    group = dist.new_group(backend="gloo")

    def gather(value: Any) -> list[Any]:
        every: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(every, value, group=group)
        return every

    return gather


def _memory_limit() -> int:
    """Bytes of each node that the job may use, as Slurm granted them; without a limit, more than any node has."""
    node, cpu = (int(os.environ.get(name) or 0) for name in ("SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU"))
    granted = node or cpu * int(os.environ.get("SLURM_CPUS_ON_NODE") or 0)
    return granted << 20 or 1 << 62


def _resident() -> int:
    """The memory of this process without its files in /dev/shm, in bytes: proc(5), RssAnon."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:  # noqa: PTH123
        return next((int(line.split()[1]) * 1024 for line in file if line.startswith("RssAnon:")), 0)


def _say(text: str, kind: str = "warning") -> None:
    print(f"{kind}: {text}", file=sys.stderr, flush=True)
