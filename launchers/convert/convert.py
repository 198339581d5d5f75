"""Converts a sharded checkpoint to one .pt file or to a Hugging Face folder. `kit convert-checkpoint` runs this in an image.

    PYTHONPATH=launchers python launchers/convert/convert.py runs/gpt-1/checkpoints model.pt --to pytorch
    PYTHONPATH=launchers python launchers/convert/convert.py runs/gpt-1/checkpoints/step-00000100 model/ --to huggingface --heads 8

Reads, with torch alone: the distributed checkpoints of torch (.metadata, *.distcp) and of megatron (also common.pt, metadata.json),
and the checkpoints of launchers/ddp, sft, rl and diloco.
Writes a line of JSON to stdout at the end. Exit code 7: the checkpoint or the request is refused. See docs/guides/checkpoints.md.
"""

import argparse
import json
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

import shapes
import write_huggingface
import write_pytorch
from lib.faults import Refused, tell
from lib.progress import ProgressPrinter
from output import Output
from plain import opened

REFUSED = 7


def parse() -> argparse.Namespace:
    """Parse the command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("source", type=Path, help="a checkpoint, or the folder that the run saves them in")
    made.add_argument("target", type=Path)
    made.add_argument("--to", choices=("pytorch", "huggingface"), required=True)
    made.add_argument("--force", action="store_true", help="replace the target")
    made.add_argument("--shard-size", type=int, default=10**9, metavar="BYTES", help="of a .safetensors file, at most")
    made.add_argument("--heads", type=int, help="attention heads")
    made.add_argument("--context", type=int, help="the longest sequence")
    made.add_argument("--norm-eps", type=float, help="of RMSNorm")
    made.add_argument("--rope-base", type=float, help="of the rotary positions")
    made.add_argument("--json-lines", action="store_true", help="progress, warnings and errors as JSON")
    return made.parse_args()


def convert(args: argparse.Namespace, progress: ProgressPrinter) -> dict[str, Any]:
    """Convert the checkpoint, and return a description of the result."""
    with Output(args.target, force=args.force) as output:
        source = opened(args.source, progress)
        for name in source.dropped:
            progress.warn(f"{name} is not a tensor and is left out")
        output.need(source.bytes)
        given = shapes.Given(heads=args.heads, context=args.context, norm_eps=args.norm_eps, rope_base=args.rope_base)
        config = shapes.config(source, given)
        if args.to == "huggingface":
            shape = shapes.of(source, given)
            groups = write_huggingface.check(source, shape)
            assert shape is not None  # check() refuses a model without a shape
            size = args.shard_size
            written = write_huggingface.write(output.new, source, shape, groups, shard_size=size, progress=progress)
            files = [path.name for path in written]
        else:
            if config.get("heads", 0) is None:
                progress.warn("the number of attention heads is not known: it is null in model_config; or give --heads")
            write_pytorch.write(output.new, source, config, progress)
            files = [args.target.name]
        output.commit()
        return {
            "source": str(source.folder),
            "target": str(args.target),
            "to": args.to,
            "tensors": len(source.pieces),
            "bytes": source.bytes,
            "files": files,
            "model_config": config,
        }


def main() -> int:
    """Run the program, and return its exit code."""
    args = parse()
    signal.signal(signal.SIGTERM, _exit_on_signal)
    try:
        print(json.dumps(convert(args, ProgressPrinter(as_json=args.json_lines))))
    except Refused as error:
        message, hint = error.message, error.hint
    except OSError as error:
        message, hint = f"{error.filename or args.target}: {error.strerror}", ""
    else:
        return 0
    tell(message, hint, as_json=args.json_lines)
    return REFUSED


def _exit_on_signal(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)  # unwinds, so that no incomplete output is left


if __name__ == "__main__":
    sys.exit(main())
