"""Finds Megatron-LM's pretrain_gpt.py, checks that the files that it needs are there, and runs it in this process.

    torchrun --nproc-per-node=8 run.py --num-layers 24 --hidden-size 1024 …

MEGATRON_LM names the checkout. Without it, the program looks in /opt/Megatron-LM, /workspace/Megatron-LM and the working folder.
All arguments are Megatron-LM's own and are passed on unchanged. Where torch has no CUDA, on_cpus.py puts a few before them.

With --exit-signal-handler Megatron-LM saves and ends at a TERM, with code 0. The signal before a time limit is a USR1. This program
turns it into a TERM, and exits with code 138, by which the batch script tells a stopped run from one that is done.
"""

import enum
import importlib.util
import os
import runpy
import signal
import sys
from importlib import import_module
from pathlib import Path
from types import FrameType

SCRIPT = "pretrain_gpt.py"
# Files that pretrain_gpt.py imports from its own folder, by release. A copy of the script alone fails after all ranks have loaded.
COMPANIONS = ("gpt_builders.py", "model_provider.py")


def find() -> Path:
    """The checkout that holds pretrain_gpt.py. Where there is none, the error says how to get one."""
    named = os.environ.get("MEGATRON_LM")
    places = [Path(named)] if named else [Path("/opt/Megatron-LM"), Path("/workspace/Megatron-LM"), Path.cwd()]
    for place in places:
        if (place / SCRIPT).is_file():
            return place
    raise SystemExit(
        f"no {SCRIPT} in {', '.join(map(str, places))}. Put a checkout of Megatron-LM into the image at /opt/Megatron-LM, or "
        'mount one and name it: [env] MEGATRON_LM = "/path/in/the/container"'
    )


def check(folder: Path) -> None:
    """Exit with an error, before any rank loads, where the checkout is incomplete."""
    text = (folder / SCRIPT).read_text(encoding="utf-8")
    missing = [name for name in COMPANIONS if f"from {name[:-3]} import" in text and not (folder / name).is_file()]
    if missing:
        raise SystemExit(
            f"{folder}: {', '.join(missing)} is missing beside {SCRIPT}: copy the whole checkout, not the script alone"
        )
    sys.path.insert(0, str(folder))
    if importlib.util.find_spec("megatron") is None or importlib.util.find_spec("megatron.training") is None:
        raise SystemExit(
            f"{folder}: there is no megatron.training. megatron-core from PyPI holds megatron.core only; the training package "
            "comes with the checkout: run 'pip install --no-build-isolation .' in it in the image's build, or mount the folder"
        )


class _Probe(enum.Enum):
    ONE = 1


def pickle_enums_by_value() -> None:
    """Pickle enums as other Pythons do. Python 3.11.0 to 3.11.3 write a call of getattr or a bare name, which torch.load refuses.

    Megatron-LM puts enums and a signal into its checkpoints, so with such a Python it could not load what it had saved.
    """
    if _Probe.ONE.__reduce_ex__(2)[0] is getattr:
        for kind in (enum.Enum, signal.Signals):  # Signals has its own way
            setattr(kind, "__reduce_ex__", lambda member, _: (member.__class__, (member.value,)))  # noqa: B010 - mypy


def on_cpus() -> None:
    """If torch is built without CUDA, make the CPU answer CUDA's calls, and choose the parts that need no CUDA kernel.

    If torch is built for GPUs and finds none, the node has a fault. Nothing is changed then, so that Megatron-LM ends at once.
    """
    if importlib.util.find_spec("torch") is None or import_module("torch").backends.cuda.is_built():
        return
    if os.environ.get("KIT_DEVICE") == "cuda":
        import_module("lib.device").use_gpu("auto")  # says what is missing, and ends
    pretence = import_module("on_cpus")
    print(f"torch has no CUDA: Megatron-LM runs on the CPU, with {' '.join(pretence.OPTIONS)}", file=sys.stderr)
    sys.argv[1:1] = pretence.OPTIONS
    pretence.pretended()


def become(script: Path) -> None:
    """Run it as the main program. A successful end after a USR1 gets the exit code of a stopped run."""
    received: list[int] = []

    def pass_on(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGUSR1, pass_on)
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    if received:
        raise SystemExit(128 + signal.SIGUSR1)


def several_connections() -> None:
    """Remove the launcher's CUDA_DEVICE_MAX_CONNECTIONS=1 for the two FSDPs: Megatron-LM refuses it there."""
    fsdp = {"--use-megatron-fsdp", "--use-torch-fsdp2"}
    if fsdp & {*sys.argv} and os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1":
        del os.environ["CUDA_DEVICE_MAX_CONNECTIONS"]


def main() -> None:
    """Check, then run pretrain_gpt.py as the main program."""
    folder = find()
    check(folder)
    several_connections()
    pickle_enums_by_value()
    on_cpus()
    become(folder / SCRIPT)


if __name__ == "__main__":
    main()
