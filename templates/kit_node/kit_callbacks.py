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

import sys

from kit_rank import progress

__all__ = ["lightning", "torchtitan", "transformers"]


class _Phase:
    """The phase between two calls of a framework, where a `with` block cannot be used."""

    def __init__(self):
        self._open = self._name = None

    def begin(self, name):
        """Enter the phase `name` until the next call. None: the loop computes."""
        if name == self._name:
            return
        if self._open is not None:
            self._open.__exit__(None, None, None)
        self._name, self._open = name, None
        if name is not None:
            self._open = progress.phase(name)
            self._open.__enter__()


def lightning():
    """A callback for Lightning's Trainer, from the package that the program has imported."""
    if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
        from pytorch_lightning.callbacks import Callback  # noqa: PLC0415 - one of the two is installed
    else:
        from lightning.pytorch.callbacks import Callback  # noqa: PLC0415

    class Reports(Callback):
        def __init__(self):
            self._phase, self._step = _Phase(), 0

        def on_train_start(self, trainer, _module):
            self._phase.begin(None)
            self._step = trainer.global_step
            progress.step(self._step)
            self._phase.begin("data")

        def on_train_batch_start(self, *_):
            self._phase.begin(None)

        def on_train_batch_end(self, trainer, *_):
            # With gradient accumulation, most batches are not a step.
            if trainer.global_step != self._step:
                self._step = trainer.global_step
                progress.step(self._step)
            self._phase.begin("data")

        def on_validation_start(self, *_):
            self._phase.begin("evaluate")

        on_test_start = on_predict_start = on_validation_start

        def on_validation_end(self, trainer, _module):
            fits = trainer.state.fn == "fit" and not trainer.sanity_checking
            self._phase.begin("data" if fits else None)

        on_test_end = on_predict_end = on_validation_end

        def on_save_checkpoint(self, *_):
            self._phase.begin("save")

        def on_train_end(self, *_):
            self._phase.begin("save")

    return Reports()


def transformers():
    """A callback for Transformers' Trainer."""
    from transformers import TrainerCallback  # noqa: PLC0415 - installed only where this is called

    class Reports(TrainerCallback):
        def __init__(self):
            self._phase = _Phase()

        def on_train_begin(self, _args, state, _control, **_):
            self._phase.begin(None)
            progress.step(state.global_step)
            self._phase.begin("data")

        def on_step_begin(self, *_, **__):
            self._phase.begin(None)

        def on_substep_end(self, *_, **__):
            self._phase.begin(None)

        def on_step_end(self, _args, state, control, **_):
            self._phase.begin(None)
            progress.step(state.global_step)
            self._next(control)

        def on_epoch_end(self, _args, _state, control, **_):
            self._next(control)

        def _next(self, control):
            # DefaultFlowCallback runs first, and has set both values.
            self._phase.begin("evaluate" if control.should_evaluate else "save" if control.should_save else "data")

        def on_prediction_step(self, *_, **__):
            # The program itself calls evaluate() or predict().
            self._phase.begin("evaluate")

        def on_evaluate(self, _args, _state, control, **_):
            self._phase.begin("save" if control.should_save else None)

        def on_predict(self, *_, **__):
            self._phase.begin(None)

        def on_save(self, *_, **__):
            self._phase.begin("data")

        def on_train_end(self, *_, **__):
            self._phase.begin("save")

    return Reports()


def torchtitan():
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


def _within(owner, name, phase):
    inner = getattr(owner, name)

    def within(*args, **options):
        with progress.phase(phase):
            return inner(*args, **options)

    setattr(owner, name, within)


def _after(owner, name, then):
    inner = getattr(owner, name)

    def followed(*args, **options):
        returned = inner(*args, **options)
        then(*args, **options)
        return returned

    setattr(owner, name, followed)


def _read(batches):
    while True:
        with progress.phase("data"):
            try:
                batch = next(batches)
            except StopIteration:
                return
        yield batch
