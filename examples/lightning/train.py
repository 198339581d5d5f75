"""Lightning under the kit: SLURMEnvironment reads the ranks. The run stops on a signal with a checkpoint, and continues from it.

    kit submit examples/lightning

TERM comes with a preemption or `kit cancel`, USR1 before the time limit. The exit code, 128 + signal, tells the kit that the run
is not done. auto_requeue is off: Lightning would call scontrol, which no container has, and the kit itself queues the job again.
"""

import argparse
import os
import signal
import sys
from pathlib import Path

import lightning
import torch
from lightning.pytorch.plugins.environments import SLURMEnvironment


class StopOnSignal(lightning.Callback):
    """Saves and stops, in the same step on every rank. A signal does not reach all ranks in one step, so they ask each other."""

    def __init__(self, file: Path) -> None:
        self.file, self.received, self.stopped = file, 0, 0

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        for number in (signal.SIGTERM, signal.SIGUSR1):  # after Lightning has set its own
            signal.signal(number, self.take)

    def take(self, number: int, _frame: object) -> None:
        self.received = number

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:  # type: ignore[no-untyped-def]
        number = int(trainer.strategy.reduce(torch.tensor(float(self.received)), reduce_op="sum") > 0) and (
            self.received or signal.SIGTERM
        )
        if trainer.global_step % 20 == 0 and trainer.is_global_zero:
            print(f"step {trainer.global_step}: loss {float(outputs['loss']):.4f}", flush=True)
        if number and trainer.global_step < trainer.max_steps:
            self.stopped = number
            trainer.save_checkpoint(self.file.with_suffix(".tmp"))
            if trainer.is_global_zero:
                self.file.with_suffix(".tmp").replace(self.file)
            trainer.strategy.barrier()
            trainer.should_stop = True


class Sine(lightning.LightningModule):
    """A small network that learns a sum of sines."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        return torch.nn.functional.mse_loss(self.net(batch), batch.sin().sum(dim=1, keepdim=True))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Numbers(torch.utils.data.IterableDataset):
    """Batches from a step on, the same in every run. Lightning counts the steps, but does not advance a stream."""

    def __init__(self, module: Sine, rank: int) -> None:
        self.module, self.rank = module, rank

    def __iter__(self):  # type: ignore[no-untyped-def]
        step = self.module.global_step
        while True:
            step += 1
            yield torch.randn(32, 16, generator=torch.Generator().manual_seed(step * 1009 + self.rank))


def main() -> None:
    """Train, starting from the checkpoint if there is one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2000)
    options = parser.parse_args()
    folder = Path(os.environ["KIT_CHECKPOINT_DIR"])
    lightning.seed_everything(int(os.environ["KIT_SEED"]), verbose=False)
    file = folder / "stopped.ckpt"
    stop, module = StopOnSignal(file), Sine()
    trainer = lightning.Trainer(
        num_nodes=int(os.environ["KIT_NNODES"]),
        devices=int(os.environ["KIT_RANKS_PER_NODE"]),
        accelerator="auto" if torch.cuda.is_available() else "cpu",
        strategy="ddp",
        plugins=[SLURMEnvironment(auto_requeue=False)],
        max_steps=options.steps,
        default_root_dir=folder,
        callbacks=[stop],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    newest = file if file.exists() else None
    print(f"continues from {newest}" if newest else "starts at step 0", flush=True)
    data = torch.utils.data.DataLoader(Numbers(module, int(os.environ["RANK"])), batch_size=None)
    try:
        trainer.fit(module, data, ckpt_path=newest)
    except SystemExit:  # Lightning's own answer to a TERM before the first step, with code 0
        sys.exit(128 + signal.SIGTERM)
    if stop.stopped:
        print(f"stopped after step {trainer.global_step}", flush=True)
        sys.exit(128 + stop.stopped)
    probe = torch.randn(64, 16, generator=torch.Generator().manual_seed(1)).to(module.device)
    print(f"final loss {module.training_step(probe, 0).item():.6f} after step {trainer.global_step}", flush=True)


if __name__ == "__main__":
    main()
