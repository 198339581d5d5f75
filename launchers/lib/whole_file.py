"""A file of a checkpoint that every rank needs: the first rank reads it, and sends it to the others."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from .ranks import Ranks


def load(path: Path, world: Ranks) -> Any:
    """torch.load into host memory, on all ranks. Called by all of them. Its bytes are read once, also from a shared file system."""
    loaded: Any = None
    box: list[Any] = [None, None]  # the state without its values, and an error
    if world.is_main_process:
        try:
            loaded = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # noqa: BLE001 - raised below on every rank, so that none waits for this one
            box[1] = error
        else:
            box[0] = _each_tensor(loaded, lambda tensor: torch.empty_like(tensor, device="meta"))
    dist.broadcast_object_list(box, src=0, group=world.control)
    form, error = box
    if error is not None:
        raise error
    return _each_tensor(loaded if world.is_main_process else form, lambda tensor: _sent(tensor, world))


def _each_tensor(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A nested state with each tensor changed, in the same order on all ranks."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return type(value)((key, _each_tensor(one, change)) for key, one in value.items())
    if isinstance(value, list | tuple):
        return type(value)(_each_tensor(one, change) for one in value)
    return value


def _sent(tensor: torch.Tensor, world: Ranks) -> torch.Tensor:
    """The first rank's tensor. The others pass its form. It travels as bytes, by the training's own backend."""
    if world.ddp_world_size == 1 or not tensor.numel():
        return tensor if world.is_main_process else torch.empty_like(tensor, device="cpu")
    whole = tensor.contiguous() if world.is_main_process else torch.empty(tensor.shape, dtype=tensor.dtype)
    moved = whole.reshape(-1).view(torch.uint8).to(world.device)
    dist.broadcast(moved, src=0)
    return moved.cpu().view(whole.dtype).view(whole.shape)
