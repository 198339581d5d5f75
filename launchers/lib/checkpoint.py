"""Checkpoints: one folder each, renamed into place once complete. A start finds the newest sound one.

    <dir>/step-00000120/   the program's files, and complete.json: step, size and crc32 of every file
    <dir>/latest           the name of the newest, written last
    <dir>/best             the name of the one with the smallest validation loss, where the program validates
    <dir>/.tmp-step-…      one that is being written; the next start removes what a killed run left
    <dir>/.tmp-old-step-…  one that is being removed

A save has two halves. `start(folder)` runs on every rank in the training loop, without a collective, and notes the state by kept().
It returns a function that writes the files, on its own thread where `background` is on. The thread first copies the state into
host memory (host_copy.py), while the next step computes its gradients; the optimizer waits until that is done. Then all files are
synced and listed in complete.json, and the folder is renamed. All ranks must see its storage.
"""

import json
import random
import shutil
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.api import CheckpointException
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from . import checkpoint_files
from .durable import sync
from .host_copy import HostCopy
from .ranks import Ranks

MARKER, MODEL = "complete.json", "model.json"
OLD = ".tmp-old-"  # before the name of a checkpoint that is being removed
Finish = Callable[[], None]


class Checkpoints:
    """Saves into one folder, keeping the newest `keep` and the best. Every method is called by all ranks together."""

    _hook: RemovableHandle | None = None  # calls settle() before each step of any optimizer

    def __init__(
        self,
        folder: Path,
        world: Ranks,
        told: dict[str, Any],
        *,
        keep: int = 3,
        background: bool = False,
        saved: Callable[[int, float], None] = lambda _step, _seconds: None,
    ) -> None:
        """told: facts about the run for complete.json (from resume.told). saved: gets each save's step and `took`."""
        self._folder, self._world, self._keep, self._background = folder, world, max(keep, 1), background
        self._told = told
        # The background thread's collectives must not mix with those of the training loop. Without it there is no group of its
        # own: each gloo group connects every rank to every other one.
        self.group = dist.new_group(backend="gloo") if background else world.control
        self._thread: threading.Thread | None = None
        self._removal: threading.Thread | None = None  # of checkpoints that are no longer kept
        self._error: BaseException | None = None
        self._last = -1
        self._best: tuple[str, float] | None = None  # the folder's name, its validation loss
        self._losses: dict[int, float] = {}  # of validations, by step
        self._saved = saved
        self._copy = HostCopy()
        self._is_copying = False  # the save that is being started copies its state
        self._settled = True  # no copy keeps the optimizer from its next step
        self._sums: checkpoint_files.Sums = {}  # of this rank's files of the save under way
        self.took = 0.0
        if Checkpoints._hook is not None:  # of an earlier start in this process
            Checkpoints._hook.remove()
        Checkpoints._hook = register_optimizer_step_pre_hook(lambda *_: self.settle()) if background else None
        if world.is_main_process:
            folder.mkdir(parents=True, exist_ok=True)
            for left in folder.glob(".tmp-*"):
                # An earlier start in this process may still remove one.
                shutil.rmtree(left, ignore_errors=left.name.startswith(OLD))
        dist.barrier(group=world.control)

    def save(self, step: int, start: Callable[[Path], Finish | None], *, last: bool = False) -> None:
        """Save the state that `start` takes as the checkpoint of `step` (once). With `last`, return only when it is on disk.

        Sets `took`: the seconds for which this rank was kept from training. settle() adds to it.
        """
        began = time.perf_counter()
        self.wait()
        is_new = step != self._last
        if is_new:
            self._save(step, start, background=self._background and not last)
        self.took = time.perf_counter() - began
        if is_new and self._settled:
            self._saved(step, self.took)

    def settle(self) -> None:
        """Return when the state that was saved last may be changed. An optimizer's step calls this by itself."""
        if self._settled:
            return
        began = time.perf_counter()
        self._copy.wait()
        self._settled = True
        self.took += time.perf_counter() - began
        self._saved(self._last, self.took)

    def is_best(self, step: int, loss: float) -> bool:
        """Note the validation loss of a step for its checkpoint. True where it is the smallest so far: then save the step."""
        self._losses[step] = loss
        if self._best is not None and loss >= self._best[1]:
            return False
        self._best = (f"step-{step:08d}", loss)
        return True

    def kept(self, state: Any, later: Iterable[torch.Tensor]) -> Callable[[], Any]:
        """For `start`: a function that returns a nested state as it is now, to be written. Called once a save.

        In the background it is a copy in host memory. later: the tensors that only an optimizer's step writes, such as
        host_copy.written_by_step(net, optimizer), or that settle() is called before a write of.
        """
        return self._copy.start(state, later) if self._is_copying else lambda: state

    def write(self, state: Any, path: Path) -> None:
        """torch.save, and note the file's size and crc32. For the function that `start` returns."""
        self._sums[path] = checkpoint_files.save(state, path)

    def write_rank(self, folder: Path, state: dict[str, Any]) -> None:
        """Write what rank_state() returned."""
        self.write(state, folder / f"rank-{self._world.ddp_rank}.pt")

    def wrote(self, path: Path) -> None:
        """Note a file that another library wrote on this rank: read it back for its size and crc32. Else any rank does."""
        self._sums[path] = _summed(path)

    def distributed_writer(self, folder: Path) -> FileSystemWriter:
        """The writer with which torch.distributed.checkpoint saves into this checkpoint."""
        return checkpoint_files.distributed_writer(folder, self._sums)

    def gathered(self, value: Any) -> list[Any]:
        """The values of all ranks, for the function that `start` returns. It gathers before it does what may fail on one rank."""
        return self._gather(value)

    def wait(self) -> None:
        """Wait for the save in the background, and raise its error."""
        self.settle()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._raise()

    def newest(self) -> Path | None:
        """The newest undamaged checkpoint. Each damaged one is renamed and named in a warning."""
        found = sorted(self._folder.glob("step-*"), reverse=True) if self._world.is_main_process else []
        for folder in self._broadcast(found):
            fault = self.fault(folder)
            if fault is None:
                self._last = int(folder.name[5:])
                self._best = self._broadcast(_least_loss(found, self._last) if self._world.is_main_process else None)
                return folder
            if self._world.is_main_process:
                aside = folder.with_name(f"damaged-{folder.name}")
                print(
                    f"warning: checkpoint {folder} is skipped: {fault}; now {aside.name}", file=sys.stderr, flush=True
                )
                shutil.rmtree(aside, ignore_errors=True)
                folder.rename(aside)
        return None

    def newest_step(self) -> int:
        """The step of the newest checkpoint, by its name alone: it may be damaged. -1 where there is none."""
        found = max(self._folder.glob("step-*"), default=None) if self._world.is_main_process else None
        step: int = self._broadcast(int(found.name[5:]) if found else -1)
        return step

    @property
    def best(self) -> tuple[str, float] | None:
        """The name of the checkpoint with the smallest validation loss, and that loss."""
        return self._best

    def continues(self, *, best: tuple[str, float] | None) -> None:
        """The program continues from memory. best: as it was then."""
        self._last, self._best = self.newest_step(), best

    def _save(self, step: int, start: Callable[[Path], Finish | None], *, background: bool) -> None:
        self._last = step
        target = self._folder / f"step-{step:08d}"
        writing = self._folder / f".tmp-{target.name}"
        self._sums.clear()
        if self._world.is_main_process:
            writing.mkdir(exist_ok=True)  # another library may make it first, on another rank
        self._is_copying = background
        finish = start(writing)
        if background:
            self._settled = False
            # A daemon: this thread waits for other ranks, and must not keep a failed rank from exiting.
            self._thread = threading.Thread(target=self._write, args=(finish, writing, target), daemon=True)
            self._thread.start()
        else:
            self._write(finish, writing, target)
            self._raise()

    def _raise(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _write(self, finish: Finish | None, writing: Path, target: Path) -> None:
        try:
            failure = None
            try:
                if self._is_copying:
                    self._copy.run()
            except Exception as error:  # noqa: BLE001 - sent to all ranks, so that none waits for this one
                failure = f"rank {self._world.ddp_rank}: {error!r}"
            self._check(target, failure)  # from here on every rank sees the folder
            try:
                if finish is not None:
                    finish()
            except (Exception, CheckpointException) as error:  # noqa: BLE001 - as above
                failure = f"rank {self._world.ddp_rank}: {error!r}"
            self._check(target, failure)
            listed = self._listed(writing)
            if self._world.is_main_process:
                self._commit(writing, target, listed)
            dist.barrier(group=self.group)
        except BaseException as error:  # noqa: BLE001 - raised again in the training loop, by wait()
            self._error = error

    def _check(self, target: Path, failure: str | None) -> None:
        """Raise the failures of all ranks, if any, on every rank."""
        if failures := [text for text in self._gather(failure) if text]:
            raise RuntimeError(f"checkpoint {target.name} was not saved: {'; '.join(failures)}")

    def _listed(self, writing: Path) -> dict[str, Any]:
        """`files`: size and crc32 of each; `writers`: the rank that wrote each. What no rank noted is read back, shared out."""
        mine = {str(path.relative_to(writing)): found for path, found in self._sums.items()}
        known = self._gather(mine)
        unknown = [name for name in self._broadcast(_files(writing)) if not any(name in part for part in known)]
        read = self._gather(_checksums(writing, self._my_part(unknown)))
        files = {name: found for part in (*known, *read) for name, found in part.items()}
        return {"files": files, "writers": {name: rank for rank, part in enumerate(known) for name in part}}

    def _commit(self, writing: Path, target: Path, listed: dict[str, Any]) -> None:
        content = {"step": int(target.name[5:]), "world_size": self._world.ddp_world_size, **self._told, **listed}
        if (loss := self._losses.get(int(target.name[5:]))) is not None:
            content["eval_loss"] = loss
        _replace(writing / MARKER, json.dumps(content, indent=1))
        for folder in (writing, *(path for path in writing.rglob("*") if path.is_dir())):
            sync(folder)
        writing.rename(target)
        sync(self._folder)
        _replace(self._folder / "latest", target.name + "\n")
        found = sorted(self._folder.glob("step-*"))
        if best := _least_loss(found, int(target.name[5:])):
            _replace(self._folder / "best", best[0] + "\n")
        sync(self._folder)
        self._remove([old for old in found[: -self._keep] if best is None or old.name != best[0]])

    def _remove(self, folders: Iterable[Path]) -> None:
        """Remove checkpoints on a thread: it takes up to a quarter of a save. The next removal and the end of the program wait."""
        aside = [folder.rename(folder.with_name(f"{OLD}{folder.name}")) for folder in folders]
        if aside:
            if self._removal is not None:
                self._removal.join()  # no more than one that is removed lies beside those that are kept
            self._removal = threading.Thread(target=_removed, args=(aside,))
            self._removal.start()

    def fault(self, folder: Path) -> str | None:
        """The fault of a checkpoint, or None. All ranks check it together, each a part of the files (see _my_check)."""
        try:
            fault = None
            for name, size, crc in self._my_check(marker(folder)):
                got = (folder / name).stat().st_size
                if got != size:
                    fault = f"{name} has {got} bytes of {size}"
                elif _crc(folder / name) != crc:
                    fault = f"{name} differs from what was written"
        except (OSError, ValueError, KeyError) as error:
            fault = f"{type(error).__name__}: {error}"
        return next((text for text in self._gather(fault) if text), None)

    def _my_check(self, content: dict[str, Any]) -> list[tuple[str, int, int]]:
        """The files that this rank checks: with as many ranks as then its own, which it loads next; else a part of all."""
        files = [(name, size, crc) for name, (size, crc) in sorted(content["files"].items())]
        writers = content.get("writers", {}) if content["world_size"] == self._world.ddp_world_size else {}
        others = self._my_part([one for one in files if one[0] not in writers])
        return [one for one in files if writers.get(one[0]) == self._world.ddp_rank] + others

    def _gather(self, value: Any) -> list[Any]:
        every: list[Any] = [None] * self._world.ddp_world_size
        dist.all_gather_object(every, value, group=self.group)
        return every

    def _broadcast(self, value: Any) -> Any:
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.group)
        return box[0]

    def _my_part(self, items: list[Any]) -> list[Any]:
        return items[self._world.ddp_rank :: self._world.ddp_world_size]


def _removed(folders: Iterable[Path]) -> None:
    for folder in folders:
        try:
            shutil.rmtree(folder)
        except OSError as error:
            if not folder.exists():
                continue  # the next start in this process was faster
            print(
                f"warning: {folder} was not removed: {error}; the next start tries again", file=sys.stderr, flush=True
            )


def _least_loss(folders: Iterable[Path], until: int) -> tuple[str, float] | None:
    """The checkpoint with the smallest validation loss, of those up to step `until`: its name and loss."""
    losses = []
    for folder in folders:
        try:
            told = marker(folder)
        except (OSError, ValueError):
            continue  # damaged: newest() warns about it
        if "eval_loss" in told and told["step"] <= until:
            losses.append((told["eval_loss"], folder.name))
    loss, name = min(losses, default=(0.0, ""))
    return (name, loss) if name else None


def marker(folder: Path) -> dict[str, Any]:
    """complete.json of a checkpoint: step, world_size, program, arguments, files."""
    content: dict[str, Any] = json.loads((folder / MARKER).read_text(encoding="utf-8"))
    return content


def rng_state() -> dict[str, Any]:
    """The state of this rank's random number generators: Python, NumPy when it is loaded, torch, the GPU."""
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    if "numpy" in sys.modules:
        name, keys, *rest = sys.modules["numpy"].random.get_state()
        state["numpy"] = (name, keys.tolist(), *rest)
    return state


def set_rng_state(state: dict[str, Any]) -> None:
    """Restore the generators from what rng_state() returned."""
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    if "numpy" in state and "numpy" in sys.modules:
        sys.modules["numpy"].random.set_state(state["numpy"])


def restore_rng(states: list[dict[str, Any]], world: Ranks, *, seed: int, step: int) -> None:
    """Restore this rank's generators. On another world size the states do not fit, and each rank gets a new seed."""
    if len(states) == world.ddp_world_size:
        set_rng_state(states[world.ddp_rank])
    else:
        seed_all(seed + 1_000_003 * (step + 1), world)


def seed_all(seed: int, world: Ranks) -> None:
    """Seed this rank's generators. Each rank gets another seed, because dropout must differ between ranks."""
    random.seed(seed + world.ddp_rank)
    torch.manual_seed(seed + world.ddp_rank)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed((seed + world.ddp_rank) % 2**32)


def rank_state(world: Ranks, at: dict[str, int]) -> dict[str, Any]:
    """This rank's part of a sharded checkpoint, without the shards: the run's position, and the generators."""
    return {"at": dict(at), "rng": rng_state(), "world_size": world.ddp_world_size}


def write_model(folder: Path, world: Ranks, shape: dict[str, Any]) -> None:
    """Write model.json, which `kit convert-checkpoint` needs in addition to the weights."""
    if world.is_main_process:
        (folder / MODEL).write_text(json.dumps(shape, indent=1) + "\n", encoding="utf-8")


def read_rank(folder: Path, world: Ranks, *, seed: int) -> dict[str, int]:
    """The run's position. Restores the generators, or seeds them anew on another world size."""
    path = folder / f"rank-{world.ddp_rank}.pt"
    state = torch.load(path if path.exists() else folder / "rank-0.pt", map_location="cpu", weights_only=True)
    if state["world_size"] == world.ddp_world_size:
        set_rng_state(state["rng"])
    else:
        restore_rng([], world, seed=seed, step=state["at"]["step"])
    at: dict[str, int] = state["at"]
    return at


def _files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def _checksums(folder: Path, names: list[str]) -> dict[str, list[int]]:
    return {name: _summed(folder / name) for name in names}


def _summed(path: Path) -> list[int]:
    sync(path)
    return [path.stat().st_size, _crc(path)]


def _crc(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            crc = zlib.crc32(block, crc)
    return crc


def _replace(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old text or the new one, never a part."""
    new = path.with_name(f".{path.name}.new")
    new.write_text(text, encoding="utf-8")
    sync(new)
    new.replace(path)
