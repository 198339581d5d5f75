"""Transformers' Trainer under the kit: it stops on a signal with a checkpoint, and continues from the newest.

    kit submit examples/transformers

TERM comes with a preemption or `kit cancel`, USR1 before the time limit. The exit code, 128 + signal, tells the kit that the run
is not done. A signal does not reach all ranks in the same step, so after each step they ask each other.
"""

import argparse
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint


class StopOnSignal(TrainerCallback):
    """Saves and stops, in the same step on every rank."""

    def __init__(self) -> None:
        self.received = 0
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self.take)

    def take(self, number: int, _frame: object) -> None:
        self.received = number

    def on_step_end(self, args, state, control, **_):  # type: ignore[no-untyped-def]
        received = torch.tensor([self.received])
        if dist.is_initialized():
            dist.all_reduce(received, op=dist.ReduceOp.MAX)
        self.received = int(received)
        control.should_save = control.should_save or bool(self.received)
        control.should_training_stop = control.should_training_stop or bool(self.received)
        return control


class Counting(torch.utils.data.Dataset):
    """Sequences that count up from different starts: item i is the same in every run."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        words = (torch.arange(16) + index * 7919) % 64
        return {"input_ids": words, "labels": words}


def main() -> None:
    """Train, starting from the newest checkpoint."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2000)
    options = parser.parse_args()
    folder = Path(os.environ["KIT_CHECKPOINT_DIR"])
    torch.manual_seed(int(os.environ["KIT_SEED"]))
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2))
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=options.steps,
        per_device_train_batch_size=4,
        learning_rate=1e-3,
        save_strategy="steps",
        save_steps=1000,
        save_total_limit=2,
        logging_steps=20,
        seed=int(os.environ["KIT_SEED"]),
        report_to=[],
        use_cpu=not torch.cuda.is_available(),
        disable_tqdm=True,
    )
    stop = StopOnSignal()
    trainer = Trainer(model=model, args=arguments, train_dataset=Counting(), callbacks=[stop])
    newest = get_last_checkpoint(str(folder)) if folder.is_dir() else None
    print(f"continues from {newest}" if newest else "starts at step 0", flush=True)
    trainer.train(resume_from_checkpoint=newest)
    if stop.received and trainer.state.global_step < options.steps:
        print(f"stopped after step {trainer.state.global_step}", flush=True)
        sys.exit(128 + stop.received)
    probe = Counting()
    with torch.no_grad():
        batch = {key: torch.stack([probe[i][key] for i in range(64)]).to(trainer.args.device) for key in probe[0]}
        print(f"final loss {model(**batch).loss.item():.6f} after step {trainer.state.global_step}", flush=True)


if __name__ == "__main__":
    main()
