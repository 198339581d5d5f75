"""Calls the user's reward function, for rewards.py: python -m lib.reward_process PARENT QUESTIONS ANSWERS FILE FUNCTION.

QUESTIONS and ANSWERS are open file descriptors, with a line of JSON for each call. The function prints to the program's own output.
This process ends when QUESTIONS is closed, or when its parent ends.
"""

import ctypes
import importlib.util
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from .faults import Refused
from .rewards import fault_of

PR_SET_PDEATHSIG = 1  # prctl(2), from linux/prctl.h


def main() -> None:
    """Answer questions until their pipe is closed."""
    parent, questions, answers = map(int, sys.argv[1:4])
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # a function that hangs does not notice a closed pipe
    if os.getppid() != parent:
        return
    # Slurm signals every process of a step. The program stops by itself and then ends this process. Set handlers, since ignored
    # signals would stay ignored in the programs that the function starts.
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    os.set_inheritable(questions, False)
    os.set_inheritable(answers, False)
    path, function = Path(sys.argv[4]), sys.argv[5]

    with os.fdopen(questions, "rb") as lines, os.fdopen(answers, "w", encoding="utf-8") as out:
        try:
            found = _function(path, function)
            print("{}", file=out, flush=True)
        except Refused as error:
            print(json.dumps({"fault": error.message, "hint": error.hint}), file=out)
            return
        for line in lines:
            print(json.dumps(_answer(found, json.loads(line), path, function)), file=out, flush=True)


def _answer(found: Any, question: dict[str, Any], path: Path, function: str) -> dict[str, Any]:
    try:
        value = found(question["prompt"], question["completion"], question["problem"])
    except Exception as error:  # noqa: BLE001 - sent as the answer
        return {"fault": f"{_place(error, path)}: {type(error).__name__}: {error}"}
    if fault := fault_of(value):
        return {"fault": f"--reward {path}:{function}: {fault}", "hint": "return 1.0 or 0.0"}
    return {"reward": float(value)}


def _function(path: Path, function: str) -> Any:
    """Load the function's file as a module. It may import modules that lie next to it."""
    spec = importlib.util.spec_from_file_location("kit_user_reward", path)
    if spec is None or spec.loader is None:
        raise Refused(f"--reward {path}: Python cannot load it")
    module = importlib.util.module_from_spec(spec)
    sys.modules["kit_user_reward"] = module  # dataclasses and pickle look it up
    sys.path.insert(0, str(path.absolute().parent))
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise Refused(f"{error.filename}, line {error.lineno}: not Python: {error.msg}") from None
    except Exception as error:
        raise Refused(f"{_place(error, path)}: {type(error).__name__}: {error}") from error
    found = getattr(module, function, None)
    if not callable(found):
        raise Refused(f"--reward {path}:{function}: {path} has no function {function}")
    return found


def _place(error: Exception, path: Path) -> str:
    """The file and the line in it that raised the error."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path]
    return f"{path}, line {lines[-1]}" if lines else str(path)


if __name__ == "__main__":
    main()
