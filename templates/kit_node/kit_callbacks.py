"""Reports steps and phases of programs whose training loop belongs to a framework, by kit_rank.

    from kit_callbacks import lightning
    Trainer(callbacks=[lightning()])               # Lightning, as `lightning` or `pytorch_lightning`

    from kit_callbacks import transformers
    Trainer(..., callbacks=[transformers()])       # Transformers' Trainer, and TRL's

    import kit_callbacks
    kit_callbacks.torchtitan()                     # wraps its classes: it has no callbacks; launchers/torchtitan calls this

A step is an optimizer step. The callbacks report the phases data, compute, evaluate and save. After the loop they report save,
because nothing tells when the last save begins. They work with any Python and release of the frameworks, and need no installation.
"""

from __future__ import annotations

import sys

from kit_rank import progress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from typing import Any

__all__ = ["lightning", "torchtitan", "transformers"]


class _Phase:
    """The phase between two calls of a framework, where a `with` block cannot be used."""

    def __init__(self) -> None:
        self._open: AbstractContextManager[None] | None = None
        self._name: str | None = None

    def begin(self, name: str | None) -> None:
        """Enter the phase `name` until the next call. None: the loop computes."""
        if name == self._name:
            return
        if self._open is not None:
            self._open.__exit__(None, None, None)
        self._name, self._open = name, None
        if name is not None:
            self._open = progress.phase(name)
            self._open.__enter__()


def lightning() -> Any:
    """A callback for Lightning's Trainer, from the package that the program has imported."""
    if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
        from pytorch_lightning.callbacks import Callback  # noqa: PLC0415 - one of the two is installed
    else:
        from lightning.pytorch.callbacks import Callback  # noqa: PLC0415

    class LightningReports(Callback):  # type: ignore[misc] # the framework's class, which this machine need not have
        def __init__(self) -> None:
            self._phase, self._step = _Phase(), 0

        def on_train_start(self, trainer: Any, _module: object) -> None:
            self._phase.begin(None)
            self._step = trainer.global_step
            progress.step(self._step)
            self._phase.begin("data")

        def on_train_batch_start(self, *_: object) -> None:
            self._phase.begin(None)

        def on_train_batch_end(self, trainer: Any, *_: object) -> None:
            # With gradient accumulation, most batches are not a step.
            if trainer.global_step != self._step:
                self._step = trainer.global_step
                progress.step(self._step)
            self._phase.begin("data")

        def on_validation_start(self, *_: object) -> None:
            self._phase.begin("evaluate")

        on_test_start = on_predict_start = on_validation_start

        def on_validation_end(self, trainer: Any, _module: object) -> None:
            fits = trainer.state.fn == "fit" and not trainer.sanity_checking
            self._phase.begin("data" if fits else None)

        on_test_end = on_predict_end = on_validation_end

        def on_save_checkpoint(self, *_: object) -> None:
            self._phase.begin("save")

        def on_train_end(self, *_: object) -> None:
            self._phase.begin("save")

    return LightningReports()


def transformers() -> Any:
    """A callback for Transformers' Trainer."""
    from transformers import TrainerCallback  # noqa: PLC0415 - installed only where this is called

    class TransformersReports(TrainerCallback):  # type: ignore[misc] # as above
        def __init__(self) -> None:
            self._phase = _Phase()

        def on_train_begin(self, _args: object, state: Any, _control: object, **_: object) -> None:
            self._phase.begin(None)
            progress.step(state.global_step)
            self._phase.begin("data")

        def on_step_begin(self, *_: object, **__: object) -> None:
            self._phase.begin(None)

        def on_substep_end(self, *_: object, **__: object) -> None:
            self._phase.begin(None)

        def on_step_end(self, _args: object, state: Any, control: Any, **_: object) -> None:
            self._phase.begin(None)
            progress.step(state.global_step)
            self._next(control)

        def on_epoch_end(self, _args: object, _state: object, control: Any, **_: object) -> None:
            self._next(control)

        def _next(self, control: Any) -> None:
            # DefaultFlowCallback runs first, and has set both values.
            self._phase.begin("evaluate" if control.should_evaluate else "save" if control.should_save else "data")

        def on_prediction_step(self, *_: object, **__: object) -> None:
            # The program itself calls evaluate() or predict().
            self._phase.begin("evaluate")

        def on_evaluate(self, _args: object, _state: object, control: Any, **_: object) -> None:
            self._phase.begin("save" if control.should_save else None)

        def on_predict(self, *_: object, **__: object) -> None:
            self._phase.begin(None)

        def on_save(self, *_: object, **__: object) -> None:
            self._phase.begin("data")

        def on_train_end(self, *_: object, **__: object) -> None:
            self._phase.begin("save")

    return TransformersReports()


def torchtitan() -> None:
    """Make TorchTitan's classes report, from v0.1.0 on. Call this once, before its Trainer is built."""
    import torch.distributed.checkpoint as dcp  # noqa: PLC0415 - installed only where this is called
    from torchtitan.components import dataloader  # noqa: PLC0415

    try:
        from torchtitan.components.checkpointer.base import BaseCheckpointManager as Manager  # noqa: PLC0415 - 0.3
    except ImportError:
        from torchtitan.components.checkpoint import CheckpointManager as Manager  # noqa: PLC0415
    # The manager is called after every step, and saves after some.
    _after(Manager, "save", lambda _self, curr_step, *_, **__: progress.step(curr_step))
    _within(dcp, "save", "save")
    _within(dcp, "async_save", "save")
    try:
        from torchtitan.components.validate import Validator  # noqa: PLC0415
    except ImportError:
        pass  # v0.1 has none
    else:
        _within(Validator, "validate", "evaluate")
    loader = dataloader.ParallelAwareDataloader
    batches = loader.__iter__
    loader.__iter__ = lambda self: _read(batches(self))


def _within(owner: Any, name: str, phase: str) -> None:
    inner = getattr(owner, name)

    def within(*args: Any, **options: Any) -> Any:
        with progress.phase(phase):
            return inner(*args, **options)

    setattr(owner, name, within)


def _after(owner: Any, name: str, then: Callable[..., object]) -> None:
    inner = getattr(owner, name)

    def followed(*args: Any, **options: Any) -> Any:
        returned = inner(*args, **options)
        then(*args, **options)
        return returned

    setattr(owner, name, followed)


def _read(batches: Iterator[Any]) -> Iterator[Any]:
    while True:
        with progress.phase("data"):
            try:
                batch = next(batches)
            except StopIteration:
                return
        yield batch
