"""Options that the programs share. Their defaults come from variables that the kit sets, so a job file need not repeat them."""

import argparse
import math
import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .model import GPTShape


def _environ(name: str, default: str) -> str:
    return os.environ.get(name) or default


def _span(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    return int(first), int(last or first)


def _numbers(text: str) -> set[int]:
    return {int(number) for number in text.split(",")}


def parser(docstring: str | None) -> argparse.ArgumentParser:
    """A parser with the run's options. The program adds its own."""
    made = argparse.ArgumentParser(description=docstring, formatter_class=argparse.RawDescriptionHelpFormatter)
    run = made.add_argument_group("run")
    run.add_argument(
        "--config", type=Path, metavar="FILE", help="TOML with options by their names; those given here win"
    )
    run.add_argument("--seed", type=int, default=int(_environ("KIT_SEED", "1")), help="KIT_SEED, else 1")
    run.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="auto: cuda when there is a GPU, or KIT_DEVICE",
    )
    run.add_argument(
        "--run-dir", type=Path, default=Path(_environ("KIT_RUN_DIR", "run")), help="KIT_RUN_DIR, else ./run"
    )
    run.add_argument("--log-every", type=int, default=0, metavar="STEPS", help="a record each; 0: none")
    run.add_argument(
        "--profile-steps",
        type=_span,
        metavar="FIRST-LAST",
        help="write a trace of these steps; KIT_PROFILE_STEPS",
        default=os.environ.get("KIT_PROFILE_STEPS") or None,
    )
    run.add_argument(
        "--profile-ranks",
        type=_numbers,
        metavar="R,R",
        help="KIT_PROFILE_RANKS, else 0",
        default=_environ("KIT_PROFILE_RANKS", "0"),
    )
    saving = made.add_argument_group("checkpoint")
    saving.add_argument("--checkpoint-dir", type=Path, help="KIT_CHECKPOINT_DIR, else RUN_DIR/checkpoints")
    saving.add_argument(
        "--checkpoint-every",
        type=int,
        default=int(_environ("KIT_CHECKPOINT_EVERY", "0")),
        metavar="STEPS",
        help="KIT_CHECKPOINT_EVERY, else 0: at the end of each epoch, or of the run",
    )
    saving.add_argument(
        "--checkpoint-keep",
        type=int,
        default=int(_environ("KIT_CHECKPOINT_KEEP", "3")),
        help="KIT_CHECKPOINT_KEEP, else 3",
    )
    saving.add_argument(
        "--checkpoint-async",
        action=argparse.BooleanOptionalAction,
        default=_environ("KIT_CHECKPOINT_ASYNC", "0") == "1",
        help="write in the background; KIT_CHECKPOINT_ASYNC=1 turns it on",
    )
    saving.add_argument(
        "--checkpoint-memory-every",
        type=int,
        default=int(_environ("KIT_CHECKPOINT_MEMORY_EVERY", "0")),
        metavar="STEPS",
        help="also in the memory of the job's nodes; KIT_CHECKPOINT_MEMORY_EVERY, else 0: never",
    )
    return made


def add_tokens(made: Any) -> None:
    """Add the options that decide a text's tokens, for preparing a text and for programs that tokenize it themselves."""
    made.add_argument("--tokenizer", metavar="WHICH", help="bytes (default), a .json or .tiktoken file, or a folder")
    made.add_argument(
        "--separator", metavar="TOKEN", help="after each document; none; else the tokenizer's end of text"
    )
    made.add_argument("--text-key", default="text", metavar="KEY", help="of the text in .jsonl and .parquet")
    made.add_argument("--validation", type=float, default=0.05, metavar="SHARE", help="of the documents, held out")
    made.add_argument("--skip-bad", action="store_true", help="leave out what cannot be read, counted; else it ends")


def add_text(made: Any) -> None:
    """Add the options of the text that a program trains on."""
    made.add_argument("--data", type=Path, help="prepared data, .bin/.idx, or text; else Python's standard library")
    add_tokens(made)
    made.add_argument("--vocabulary", type=int, metavar="N", help="of .bin/.idx without --tokenizer: ids are below it")
    made.add_argument(
        "--attend", choices=("across", "within"), default="across", help="whether a token sees documents before its own"
    )


def add_gpt(made: argparse.ArgumentParser) -> None:
    """Add the options of the programs that train a GPT on text."""
    what = made.add_argument_group("model and data")
    add_text(what)
    what.add_argument(
        "--init-from",
        type=Path,
        metavar="DIR",
        help="begin with a Llama, Qwen2 or Qwen3 of Hugging Face, shape and all",
    )
    what.add_argument("--layers", type=int, default=4)
    what.add_argument("--heads", type=int, default=4)
    what.add_argument("--dim", type=int, default=128)
    what.add_argument("--context", type=int, default=128, help="tokens in a sequence")
    what.add_argument("--workers", type=int, default=0, help="loader processes for each rank")
    how = made.add_argument_group("training")
    how.add_argument("--steps", type=int, default=200, help="optimizer steps")
    how.add_argument("--batch-size", type=int, default=32, help="sequences for each optimizer step, over all ranks")
    how.add_argument("--accumulate", type=int, default=1, help="micro-steps for each optimizer step")
    add_pace(how, lr=3e-3, tuned=2e-5, warmup=20)
    how.add_argument("--test-windows", type=int, default=256, help="held-out sequences for validation and final loss")
    how.add_argument(
        "--eval-every", type=int, default=0, metavar="STEPS", help="validate, and keep the best checkpoint; 0: never"
    )
    made.set_defaults(log_every=10)


class Rate(float):
    """A default of --lr: for new weights, and `tuned` for those of a model of Hugging Face, which a higher rate would ruin."""

    tuned: float

    def __new__(cls, new: float, tuned: float) -> "Rate":
        """Make one of two rates."""
        made = super().__new__(cls, new)
        made.tuned = tuned
        return made


def add_rate(made: argparse._ActionsContainer, lr: float, tuned: float | None, what: str) -> None:
    """Add --lr. tuned: see Rate; None: the program starts from new weights only. what: the meaning of the rate."""
    default = lr if tuned is None else Rate(lr, tuned)
    otherwise = "" if tuned is None else f"; {lr}, or {tuned} for a model of Hugging Face"
    made.add_argument("--lr", type=float, default=default, help=what + otherwise)


def add_pace(
    made: argparse._ActionsContainer, *, lr: float, warmup: int, tuned: float | None = None, weight_decay: float = 0.1
) -> None:
    """Add the options of learning rate, weight decay and clipping. The arguments are their defaults; tuned: see Rate."""
    add_rate(made, lr, tuned, "the highest")
    made.add_argument("--warmup", type=int, default=warmup, help="optimizer steps of linear warm-up to --lr")
    made.add_argument(
        "--schedule",
        choices=("cosine", "wsd"),
        default="cosine",
        help="after warm-up: fall along a cosine; or hold --lr, and fall linearly over the share --decay of all steps",
    )
    made.add_argument("--decay", type=float, default=0.2, metavar="SHARE", help="of the steps, for wsd; 0: hold --lr")
    made.add_argument("--min-lr", type=float, default=0.0, help="where the rate ends")
    made.add_argument("--weight-decay", type=float, default=weight_decay)
    made.add_argument("--clip", type=float, default=1.0, help="largest gradient norm; 0: no clipping")


def add_compile(made: argparse.ArgumentParser) -> None:
    """Add the option of the programs whose model torch.compile supports."""
    made.add_argument("--compile", action="store_true", help="torch.compile the model (on CPU: needs a C++ compiler)")


def add_size(made: argparse.ArgumentParser) -> None:
    """Add the options of the programs that train a policy for models that are large: memory and time of a step."""
    how = made.add_argument_group("size")
    how.add_argument(
        "--precision", choices=("fp32", "bf16"), default="fp32", help="of computing; sums and updates are fp32"
    )
    how.add_argument("--compile", action="store_true", help="torch.compile the model (on CPU: needs a C++ compiler)")
    how.add_argument("--recompute", action="store_true", help="compute activations again in backward, to save memory")


def add_policy(made: argparse.ArgumentParser) -> None:
    """Add the options of the programs that train a policy: its first weights, and how its answers are sampled."""
    what = made.add_argument_group("model")
    what.add_argument(
        "--model",
        type=Path,
        metavar="CHECKPOINT",
        help="start from it, or a Llama, Qwen2 or Qwen3 of Hugging Face, shape and all; else from a new one",
    )
    what.add_argument("--layers", type=int, default=2)
    what.add_argument("--heads", type=int, default=4)
    what.add_argument("--dim", type=int, default=32)
    what.add_argument("--seq-len", type=int, default=32, help="tokens of a prompt and its completion, at most")
    what.add_argument("--temperature", type=float, default=1.0, help="of the sampled answers")


def add_chats(made: Any) -> None:
    """Add the options that turn messages into tokens."""
    made.add_argument("--tokenizer", metavar="WHICH", help="that of a Hugging Face --model, else bytes (default)")
    made.add_argument(
        "--chat-template", metavar="WHICH", help="chatml, llama3, bytes, or a file; else the tokenizer's own"
    )
    made.add_argument(
        "--validation", type=float, default=0.05, metavar="SHARE", help="of the chats or problems, held out"
    )
    made.add_argument("--skip-bad", action="store_true", help="leave out what cannot be read, counted; else it ends")


def add_task(made: Any) -> None:
    """Add the options of the rewarded task. All programs of launchers/rl must get the same values."""
    made.add_argument("--problems", type=Path, metavar="FILE", help=".jsonl of problems, with --reward; else sums")
    made.add_argument("--reward", metavar="FILE.py:FUNCTION", help="reward(prompt, completion, problem) -> a number")
    made.add_argument(
        "--reward-timeout", type=float, default=120, metavar="SECONDS", help="for one call of the reward function"
    )
    made.add_argument("--max-tokens", type=int, default=4, help="longest answer")
    add_chats(made)


# Options of add_task that the task's digest covers.
TASK = ("problems", "reward", "reward_timeout", "max_tokens", "tokenizer", "chat_template")
POLICY_SHAPE = ("layers", "heads", "dim", "seq_len")  # of add_policy: a checkpoint given by --model has its own


def shape(args: argparse.Namespace, vocabulary: int = 256) -> "GPTShape":
    """The shape that these options ask for. vocabulary: the size of the data's."""
    from .model import GPTShape  # noqa: PLC0415 - lib/prepare.py has these options and needs no torch

    return GPTShape(layers=args.layers, heads=args.heads, dim=args.dim, context=args.seq_len, vocabulary=vocabulary)


def cosine(warmup: int, steps: int, floor: float = 0.0) -> Callable[[int], float]:
    """The factor of the learning rate by step: linear to 1 over `warmup` steps, then a cosine from 1 to `floor` at `steps`."""

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        done = min((step - warmup) / max(steps - warmup, 1), 1.0)
        return floor + (1 - floor) * (1 + math.cos(math.pi * done)) / 2

    return factor


def wsd(warmup: int, steps: int, decay: int, floor: float = 0.0) -> Callable[[int], float]:
    """Warm-up, stable, decay: linear to 1 over `warmup` steps, then 1, then linear to `floor` over the last `decay` steps."""

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        done = min(max(step - (steps - decay), 0) / max(decay, 1), 1.0)
        return 1 - (1 - floor) * done

    return factor


def schedule(args: argparse.Namespace, steps: int) -> Callable[[int], float]:
    """The factor of --lr by step that the options of add_pace ask for, over `steps` optimizer steps."""
    floor = args.min_lr / args.lr if args.lr else 0.0
    if args.schedule == "wsd":
        return wsd(args.warmup, steps, round(args.decay * steps), floor)
    return cosine(args.warmup, steps, floor)


def pretrained(args: argparse.Namespace) -> bool:
    """Whether the options name a model of Hugging Face to start from."""
    folders = [vars(args).get(name) for name in ("init_from", "model")]
    return any(folder is not None and (folder / "config.json").is_file() for folder in folders)


def _check_pace(made: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Choose the default rate, and end the program where rates contradict each other."""
    if isinstance(args.lr, Rate):
        args.lr = args.lr.tuned if pretrained(args) else float(args.lr)
    if "min_lr" in args and not 0 <= args.min_lr <= args.lr:
        made.error(f"--min-lr {args.min_lr} is not between 0 and --lr {args.lr}")
    if "decay" in args and not 0 <= args.decay <= 1:
        made.error(f"--decay {args.decay} is not a share of the steps: 0 to 1")


def parse(made: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the command line over the --config file, and set the checkpoint folder."""
    args = made.parse_args()
    if args.config is not None:
        given = _flat(tomllib.loads(args.config.read_text(encoding="utf-8")))
        if unknown := sorted(given.keys() - vars(args).keys()):
            made.error(f"{args.config}: not an option of this program: {', '.join(unknown)}")
        made.set_defaults(**given)
        args = made.parse_args()
    if "clip" in args and args.clip == 0:
        args.clip = math.inf  # clip_grad_norm_ of torch and of megatron then returns the norm and changes nothing
    if "lr" in args:
        _check_pace(made, args)
    if args.checkpoint_dir is None:
        args.checkpoint_dir = Path(_environ("KIT_CHECKPOINT_DIR", str(args.run_dir / "checkpoints")))
    return args


def _flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """`[checkpoint] every = 5` is the option checkpoint_every."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= _flat(value, f"{prefix}{key}_") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def port(role: str, name: str, otherwise: int) -> int:
    """The port that the kit assigned to a role of this job under `name`. Outside of a job: `otherwise`."""
    return int(_environ(f"KIT_ROLE_{_upper(role)}_PORT_{_upper(name)}", str(otherwise)))


def addresses(role: str) -> list[str]:
    """The addresses of the nodes of a role of this job. Outside of a job: this machine's own."""
    return _environ(f"KIT_ROLE_{_upper(role)}_NODES", "127.0.0.1").split()


def _upper(name: str) -> str:
    return name.upper().replace("-", "_")
