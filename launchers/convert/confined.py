"""Unpickling that runs no code: it finds the classes that a checkpoint's own files need, and a stand-in for any other.

A checkpoint's .metadata and common.pt are pickles, and a pickle may name any function. Functions that a foreign checkpoint names
must not run. Classes of a framework that is not installed (Megatron-LM's enumerations) cannot be loaded.
"""

import pickle
from collections.abc import Callable, Mapping
from enum import EnumMeta
from pathlib import Path
from typing import Any

import torch

_ALLOWED = {
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.distributed.checkpoint.planner": {
        "BytesIOWriteData",
        "SavePlan",
        "TensorWriteData",
        "WriteItem",
        "WriteItemType",
    },
    "torch.serialization": {"_get_layout"},
    "torch._utils": {"_rebuild_tensor_v2", "_rebuild_tensor"},
    "torch": {"Size", "device"},
    "pathlib": {"Path", "PosixPath", "PurePosixPath"},
    "collections": {"OrderedDict", "defaultdict"},
    "argparse": {"Namespace"},
}


class StandIn:
    """Replaces an object whose class is not known here."""

    def __init__(self, *_args: Any, **_values: Any) -> None:
        pass

    def __call__(self, *_args: Any, **_values: Any) -> "StandIn":
        return self

    def __setstate__(self, _state: Any) -> None:
        pass

    def __hash__(self) -> int:
        return id(self)


def _member(of: Any, name: str) -> Any:
    """Replace getattr, with which Python 3.11.2 (Debian 12) pickles a member of an enumeration. Allows nothing else."""
    return of[name] if isinstance(of, EnumMeta) else StandIn()


def _restore_class(one: type, before: Mapping[str, Any]) -> list[str]:
    """Restore the attributes of a class. Returns the names of those that had changed."""
    now, nothing = dict(vars(one)), object()
    changed = [name for name in {**before, **now} if now.get(name, nothing) is not before.get(name, nothing)]
    for name in changed:
        if name in before:
            setattr(one, name, before[name])
        else:
            delattr(one, name)
    return changed


class Unpickler(pickle.Unpickler):
    """pickle's Unpickler, which finds only `_ALLOWED` and torch's data types and storage types."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._classes: dict[type, dict[str, Any]] = {}

    def load(self) -> Any:
        """Load as pickle does. UnpicklingError where the pickle has set an attribute of a class, as its opcode BUILD can."""
        try:
            content = super().load()
        finally:
            names = [
                f"{one.__name__}.{name}"
                for one, before in self._classes.items()
                for name in _restore_class(one, before)
            ]
        if names:
            raise pickle.UnpicklingError(f"it sets {names[0]}, an attribute of a class")
        return content

    def find_class(self, module: str, name: str) -> Any:
        """The class or function that a pickle asks for, or StandIn where it is not allowed."""
        found = self._find(module, name)
        if isinstance(found, type):
            self._classes.setdefault(found, dict(vars(found)))
        return found

    def _find(self, module: str, name: str) -> Any:
        if name in _ALLOWED.get(module, ()):
            return super().find_class(module, name)
        if (module, name) == ("builtins", "getattr"):
            return _member
        if module == "torch" and (isinstance(getattr(torch, name, None), torch.dtype) or name.endswith("Storage")):
            return getattr(torch, name)
        return StandIn


def metadata(path: Path) -> Any:
    """The Metadata in a .metadata file. pickle.UnpicklingError and other errors where it is damaged."""
    with path.open("rb") as file:
        return Unpickler(file).load()


class _Module:
    """The pickle_module that torch.load takes."""

    Unpickler = Unpickler
    UnpicklingError = pickle.UnpicklingError
    load: Callable[..., Any] = staticmethod(lambda file, **options: Unpickler(file, **options).load())


def common(path: Path) -> Any:
    """The content of a .pt file, with stand-ins for everything but plain data."""
    return torch.load(path, map_location="cpu", pickle_module=_Module, weights_only=False)
