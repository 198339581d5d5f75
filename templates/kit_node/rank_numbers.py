"""Runs a rank's program unchanged, and writes digests of what it computes to ranks/rank-<n>.jsonl, for `kit rerun --rotate`.

    python rank_numbers.py train.py --lr 1      python rank_numbers.py -m package.train

Each optimizer step adds a line. `forward` is a digest of the outputs of all modules on this rank. `gradient` is a digest of the
gradients on this rank, before they are summed over ranks. A digest is the sum of the tensors' bits as integers: each bit counts,
in whatever order a machine adds. `gradient` leaves out sharded parameters (FSDP2), which get their gradients outside of autograd.
The computation itself is not changed. Without torch the program runs unchanged, and nothing is written.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import runpy
import sys
from typing import Any, TextIO


class Numbers:
    """The digests of this rank since its last optimizer step."""

    def __init__(self, torch: Any, path: str) -> None:
        self._torch, self._path = torch, path
        # Tensors of torch, which this file does not import.
        self._sums: dict[str, Any] = {}
        self._step = 0
        self._hooked: set[int] = set()
        self._file: TextIO | None = None

    def watch(self) -> None:
        """Start to watch all modules and optimizers of this process."""
        torch = self._torch
        torch.nn.modules.module.register_module_forward_pre_hook(self._before)
        torch.nn.modules.module.register_module_forward_hook(self._after)
        # torch.optim hides the module of this name.
        importlib.import_module("torch.optim.optimizer").register_optimizer_step_post_hook(self._stepped)

    def _before(self, module: Any, _inputs: object) -> None:
        if id(module) in self._hooked:
            return
        self._hooked.add(id(module))
        for parameter in module.parameters(recurse=False):
            if parameter.requires_grad and id(parameter) not in self._hooked:
                self._hooked.add(id(parameter))
                parameter.register_hook(lambda gradient: self._add("gradient", gradient))

    def _after(self, _module: object, _inputs: object, output: object) -> None:
        for tensor in output if isinstance(output, (tuple, list)) else (output,):
            if isinstance(tensor, self._torch.Tensor):
                self._add("forward", tensor)

    def _add(self, name: str, tensor: Any) -> None:
        """Add a tensor to a digest. No number is fetched here, because on a GPU that would wait for it."""
        torch = self._torch
        if torch.compiler.is_compiling() or tensor.is_meta:
            return
        with torch.no_grad():
            flat = tensor.detach().contiguous().view(-1)
            if flat.is_complex():
                flat = torch.view_as_real(flat).view(-1)
            kinds = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}
            bits = flat.view(kinds[flat.element_size()]).sum(dtype=torch.int64)
            before = self._sums.get(name)
            # The order of the tensors counts, too.
            self._sums[name] = bits if before is None else before.to(bits.device) * 31 + bits

    def _stepped(self, *_: object) -> None:
        self._step += 1
        found = {name: int(value.item()) for name, value in sorted(self._sums.items())}
        self._sums = {}
        if self._file is None:
            os.makedirs(os.path.dirname(self._path), exist_ok=True)  # noqa: PTH103, PTH120 - as in kit_rank
            self._file = open(self._path, "a", buffering=1)  # noqa: PTH123, SIM115
        self._file.write(json.dumps({"step": self._step, **found}) + "\n")


def main(words: list[str]) -> None:
    """Run the program in this process."""
    if importlib.util.find_spec("torch") is not None:
        import torch  # noqa: PLC0415 - a machine may have none

        rank = os.environ.get("RANK", "0")
        Numbers(torch, os.path.join(os.environ["KIT_RUN_DIR"], "ranks", f"rank-{rank}.jsonl")).watch()  # noqa: PTH118
    if words[0] == "-m":
        sys.argv = words[1:]
        sys.path[0] = os.getcwd()  # noqa: PTH109
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path[0] = os.path.dirname(os.path.abspath(words[0]))  # noqa: PTH100, PTH120
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
