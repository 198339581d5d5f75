"""The user's own reward: a function of a Python file, named as path/to/file.py:function.

    def reward(prompt: str, completion: str, problem: dict) -> float: ...

problem: the line of the problems' file. The reward is any finite number; 1 or more counts as right. Whatever the function raises or
returns instead ends the program with the line of the file and the problem.
"""

import importlib.util
import math
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .faults import Refused

Reward = Callable[[str, str, dict[str, Any]], float]


def opened(which: str) -> Reward:
    """The function, whose faults are Refused; Refused where the file or the function cannot be used."""
    name, colon, function = which.rpartition(":")
    path = Path(name)
    if not colon or path.suffix != ".py" or not function.isidentifier():
        raise Refused(
            f"--reward {which}: not of the form FILE.py:FUNCTION", hint="--reward /workspace/reward.py:reward"
        )
    if not path.is_file():
        raise Refused(
            f"--reward {which}: no such file", hint="a path as the program sees it: mount it into the container"
        )
    found = getattr(_module(path), function, None)
    if not callable(found):
        raise Refused(f"--reward {which}: {path} has no function {function}")

    def checked(prompt: str, completion: str, problem: dict[str, Any]) -> float:
        try:
            value = found(prompt, completion, problem)
        except Exception as error:
            raise Refused(f"{_place(error, path)}: {type(error).__name__}: {error}") from error
        if isinstance(value, bool) or not hasattr(value, "__float__"):
            raise Refused(f"--reward {which}: it returned {value!r}, which is no number", hint="return 1.0 or 0.0")
        if not math.isfinite(value):
            raise Refused(f"--reward {which}: it returned {value!r}, which is not finite")
        return float(value)

    return checked


def _module(path: Path) -> Any:
    """The file as a module. What it imports may lie beside it."""
    spec = importlib.util.spec_from_file_location("kit_user_reward", path)
    if spec is None or spec.loader is None:
        raise Refused(f"--reward {path}: Python cannot load it")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.absolute().parent))
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise Refused(f"{error.filename}, line {error.lineno}: not Python: {error.msg}") from None
    except Exception as error:
        raise Refused(f"{_place(error, path)}: {type(error).__name__}: {error}") from error
    return module


def _place(error: Exception, path: Path) -> str:
    """The file and the line of it that the error came from."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path]
    return f"{path}, line {lines[-1]}" if lines else str(path)
