"""Your own training loop with Accelerate under the kit: it stops on a signal with a checkpoint, and continues from the newest.

    kit submit examples/accelerate

TERM comes with a preemption or `kit cancel`, USR1 before the time limit. The exit code, 128 + signal, tells the kit that the run
is not done. A signal does not reach all ranks in the same step, so after each step they ask each other.
"""

import argparse
import os
import signal
import sys
from pathlib import Path

import torch
from accelerate import Accelerator

received: list[int] = []


def take(number: int, _frame: object) -> None:
    """Remember the signal for the end of the step."""
    received.append(number)


def batch_of(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The numbers of a step, the same in every run."""
    draw = torch.Generator().manual_seed(step * 1009 + rank)
    x = torch.randn(32, 16, generator=draw)
    return x, x.sin().sum(dim=1, keepdim=True)


def save(accelerator: Accelerator, folder: Path, step: int) -> None:
    """Write a checkpoint into its own folder, which is complete before the pointer names it."""
    accelerator.save_state(str(folder / f"step-{step}"))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        (folder / "latest.tmp").write_text(str(step))
        (folder / "latest.tmp").replace(folder / "latest")


def main() -> None:
    """Train, starting from the newest checkpoint."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2000)
    options = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, take)
    folder = Path(os.environ["KIT_CHECKPOINT_DIR"])
    torch.manual_seed(int(os.environ["KIT_SEED"]))
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    # One backward pass whose gradients are dropped. DDP orders its buckets after the first pass, and the order of sums depends on
    # the buckets. So a resumed run computes to the bit what an uninterrupted one does.
    x, y = (part.to(accelerator.device) for part in batch_of(0, accelerator.process_index))
    accelerator.backward(torch.nn.functional.mse_loss(model(x), y))
    optimizer.zero_grad()
    first = 0
    if (folder / "latest").exists():
        first = int((folder / "latest").read_text())
        accelerator.load_state(str(folder / f"step-{first}"))
    print(f"continues from step {first}", flush=True)
    for step in range(first + 1, options.steps + 1):
        x, y = (part.to(accelerator.device) for part in batch_of(step, accelerator.process_index))
        loss = torch.nn.functional.mse_loss(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 0 and accelerator.is_main_process:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
        asked = int(accelerator.gather(torch.tensor([max(received, default=0)], device=accelerator.device)).max())
        if asked or step % 1000 == 0:
            save(accelerator, folder, step)
        if asked and step < options.steps:
            print(f"stopped after step {step}", flush=True)
            sys.exit(128 + asked)
    with torch.no_grad():
        x, y = (part.to(accelerator.device) for part in batch_of(0, 0))
        print(
            f"final loss {torch.nn.functional.mse_loss(model(x), y).item():.6f} after step {options.steps}", flush=True
        )


if __name__ == "__main__":
    main()
