"""Makes mutants: small faults in the central files, one at a time, to see whether their tests notice.

    make mutants                                   the files of FILES, at most 20 mutants of each
    make mutants FILES="kit/allocation.py" ARGS="--most 0 --minutes 30"
    make mutants ARGS="--most 0 --minutes 90"      all mutants of all files, as in benchmarks/README.md

Each mutant is written into a copy of the working tree, never into the tree itself. The tests of its file run there, beginning with
the one that noticed the mutant before it. Files are tried in parallel (--jobs), each in its own copy. A mutant survives if the
tests pass, and is printed with its file and line. tests/mutants.toml names mutants that may survive, with the reason. Exit code 1:
a survivor is not named there, or a named one is noticed by the tests, or more survive than MOST_SHARE.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KNOWN = Path("tests/mutants.toml")
# The largest share of survivors among all mutants of a language that were tried, named or not.
MOST_SHARE = {"python": 0.03, "bash": 0.10}
# The central files, each with the tests that must notice a fault in it.
FILES: dict[str, tuple[str, ...]] = {
    "kit/allocation.py": ("tests/unit/test_plan.py", "tests/unit/test_allocation.py", "tests/golden/test_messages.py"),
    "kit/images/image_lock.py": ("tests/unit/test_image_lock.py", "tests/unit/test_plan.py"),
    "kit/planning/complete_job.py": ("tests/unit/test_plan.py", "tests/unit/test_roles.py", "tests/golden"),
    "kit/planning/placement.py": ("tests/unit/test_roles.py", "tests/unit/test_plan.py", "tests/golden"),
    "kit/planning/role_rules.py": ("tests/unit/test_roles.py", "tests/golden/test_messages.py"),
    "templates/core/lib/environment.sh": ("tests/scripts/test_environment.py", "tests/scripts/test_batch.py"),
    "templates/core/lib/rank_variables.sh": ("tests/scripts/test_rank_variables.py", "tests/scripts/test_worker.py"),
    "templates/core/lib/retry.sh": ("tests/scripts/test_retry.py",),
    "templates/parts/restarts/part.sh": ("tests/scripts/test_retry.py",),
    "templates/core/lib/role_policy.sh": ("tests/scripts/test_role_policy.py",),
    "templates/parts/trust/lib/trust.sh": ("tests/scripts/test_trust.py",),
}
_COMPARED: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.In: "not in",
    ast.NotIn: "in",  # codespell:ignore notin
    ast.Is: "is not", ast.IsNot: "is",
}  # fmt: skip
_COMPUTED: dict[type[ast.operator], str] = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "//", ast.FloorDiv: "*", ast.Mod: "*",
}  # fmt: skip
# For bash: the pattern to find, and its replacement. A word boundary leaves options of commands unchanged.
_BASH = (
    (r" -eq ", " -ne "), (r" -ne ", " -eq "), (r" -lt ", " -le "), (r" -le ", " -lt "), (r" -gt ", " -ge "), (r" -ge ", " -gt "),
    (r" -z ", " -n "), (r" -n (?=\")", " -z "), (r" == ", " != "), (r" != ", " == "), (r" =~ ", " != "), (r" && ", " || "),
    (r" \|\| ", " && "), (r"\bif ! ", "if "), (r"\[\[ ! ", "[[ "), (r" \+ ", " - "), (r"(?<=\w) >= ", " > "),
    (r"(?<=\w) < (?=\w)", " <= "), (r"(?<=\w) > (?=\d|\w+ )", " >= "),
    (r"\breturn 0$", "return 1"), (r"\breturn [1-9]\d*$", "return 0"),
    (r"\bcontinue$", "break"), (r"\bunset ", ": "), (r"\bexport ", ": "), (r"(?<=:-)1(?=\})", "2"), (r"(?<=:-)0(?=\})", "1"),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A fault: bytes [first, last) of a file become `text`."""

    file: str
    line: int
    first: int
    last: int
    before: str
    text: str


def mutants(file: str, content: bytes) -> list[Mutant]:
    """All mutants of a file, by line."""
    found = _of_bash(file, content) if file.endswith(".sh") else _of_python(file, content)
    return sorted((one for one in found if one.text != one.before), key=lambda one: (one.first, one.text))


def _of_python(file: str, content: bytes) -> Iterator[Mutant]:
    starts = [0]
    for line in content.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def at(line: int, column: int) -> int:
        return starts[line - 1] + column

    def between(left: ast.expr, right: ast.expr, text: str) -> Mutant:
        """The text between two expressions, without brackets."""
        first = at(left.end_lineno or left.lineno, left.end_col_offset or 0)
        last = at(right.lineno, right.col_offset)
        found = re.search(rb"[^\s()\[\]]+(?: (?:not|in))?", content[first:last])
        assert found
        first, last = first + found.start(), first + found.end()
        return Mutant(
            file=file,
            line=content.count(b"\n", 0, first) + 1,
            first=first,
            last=last,
            before=content[first:last].decode(),
            text=text,
        )

    def whole(node: ast.expr | ast.stmt, text: str) -> Mutant:
        first, last = at(node.lineno, node.col_offset), at(node.end_lineno or node.lineno, node.end_col_offset or 0)
        return Mutant(
            file=file, line=node.lineno, first=first, last=last, before=content[first:last].decode(), text=text
        )

    tree = ast.parse(content)
    # mypy checks whether a dataclass is frozen.
    decorators = {
        part for node in ast.walk(tree) for one in getattr(node, "decorator_list", []) for part in ast.walk(one)
    }
    for node in (node for node in ast.walk(tree) if node not in decorators):
        match node:
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                yield between(left, right, _COMPARED[type(op)])
            case ast.BoolOp(op=op, values=[left, right, *_]):
                yield between(left, right, "and" if isinstance(op, ast.Or) else "or")
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _COMPUTED and not _is_text(left, right):
                yield between(left, right, _COMPUTED[type(op)])
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield whole(node, ast.get_source_segment(content.decode(), operand) or "True")
            case ast.Constant(value=bool(value)):
                yield whole(node, str(not value))
            case ast.Constant(value=int(value)):
                yield whole(node, str(value + 1))
            case ast.Return(value=ast.expr()):
                yield whole(node, "return None")
            case ast.Continue():
                yield whole(node, "break")
            case ast.If(test=test) | ast.IfExp(test=test) if not isinstance(
                test, ast.Compare | ast.BoolOp | ast.UnaryOp
            ):
                yield whole(test, f"not ({ast.get_source_segment(content.decode(), test)})")


def _is_text(*parts: ast.expr) -> bool:
    return any(isinstance(part, ast.JoinedStr) or isinstance(getattr(part, "value", None), str) for part in parts)


def _of_bash(file: str, content: bytes) -> Iterator[Mutant]:
    place = 0
    for number, raw in enumerate(content.splitlines(keepends=True), 1):
        line = raw.decode()
        if not line.lstrip().startswith("#"):
            for pattern, text in _BASH:
                for found in re.finditer(pattern, line.rstrip("\n")):
                    first, last = (place + len(line[:n].encode()) for n in found.span())
                    yield Mutant(file=file, line=number, first=first, last=last, before=found[0], text=text)
        place += len(raw)


# ---- the copy and its tests ----


def copied(target: Path) -> None:
    """Copy the working tree without the files that git ignores."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout
    for name in listed.decode().split("\0"):
        source = ROOT / name
        if name and (source.is_file() or source.is_symlink()):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name, follow_symlinks=False)
    # Some tests ask git for the tracked files.
    for words in (
        ["init", "-q"],
        ["add", "-A"],
        ["-c", "user.name=kit", "-c", "user.email=kit@localhost", "commit", "-qm", "copy"],
    ):
        subprocess.run(["git", *words], cwd=target, check=True)
    (target / ".venv").symlink_to(ROOT / ".venv")


def passed(tree: Path, tests: tuple[str, ...], seconds: float) -> bool:
    """Whether the tests pass in that tree. A fault that makes them hang counts as noticed."""
    there = [one for one in tests if (tree / one).exists()]
    # One test often notices all mutants of a line, so the test that failed last runs first.
    argv = [
        ".venv/bin/python",
        "-m",
        "pytest",
        "-x",
        "-q",
        "--failed-first",
        "-o",
        f"cache_dir={tree}/.noticed",
        *there,
    ]
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(tree)}
    with subprocess.Popen(
        argv, cwd=tree, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        try:
            return process.wait(seconds) == 0
        except subprocess.TimeoutExpired:
            return False
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


@dataclass(kw_only=True)
class Tried:
    """The result of a file's mutants: how many there are, how many were tried, and which of those survived."""

    file: str
    every: int
    tried: list[Mutant] = field(default_factory=list)
    left: list[Mutant] = field(default_factory=list)


def survivors(file: str, most: int, deadline: float) -> Tried:
    """Try a file's mutants in a temporary copy of the tree for this file only."""
    content = (ROOT / file).read_bytes()
    tests, every = FILES.get(file, ()), mutants(file, content)
    if not tests:
        raise SystemExit(f"{file}: none of the central files; one of {', '.join(FILES)}")
    found = Tried(file=file, every=len(every))
    chosen = every if not most or most >= len(every) else sorted(random.Random(0).sample(every, most), key=every.index)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder)
        copied(tree)
        path = tree / file
        began = time.monotonic()
        if not passed(tree, tests, 600):
            raise SystemExit(f"{file}: its tests fail without a mutant: {' '.join(tests)}")
        seconds = 3 * (time.monotonic() - began) + 10
        path.write_bytes(b"exit 1\n" if file.endswith(".sh") else b"raise SystemExit(1)\n")
        if passed(tree, tests, seconds):
            raise SystemExit(f"{file}: its tests pass without it, so they do not read it: {' '.join(tests)}")
        for mutant in chosen:
            if time.monotonic() > deadline:
                break
            path.write_bytes(content[: mutant.first] + mutant.text.encode() + content[mutant.last :])
            found.tried.append(mutant)
            if passed(tree, tests, seconds):
                found.left.append(mutant)
                _, before, becomes = named(mutant)
                print(f"  survives  {mutant.file}:{mutant.line}: {before}\n        as  {becomes}", flush=True)
    return found


def known() -> dict[tuple[str, str, str], str]:
    """The mutants that may survive, as file, line and replacement -> the reason."""
    table = tomllib.loads((ROOT / KNOWN).read_text(encoding="utf-8"))
    return {(one["file"], one["line"], one["becomes"]): one["reason"] for one in table["survivor"]}


def named(mutant: Mutant) -> tuple[str, str, str]:
    """The mutant's key in tests/mutants.toml: its lines before and after, which stay valid when other lines of the file change."""
    content = (ROOT / mutant.file).read_bytes()
    first = content.rfind(b"\n", 0, mutant.first) + 1
    last = content.find(b"\n", mutant.last) % (len(content) + 1)
    becomes = content[first : mutant.first] + mutant.text.encode() + content[mutant.last : last]
    return mutant.file, content[first:last].decode().strip(), becomes.decode().strip()


def main() -> int:
    """Run the program, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", help="of the central files; default: all")
    parser.add_argument(
        "--most", type=int, default=20, help="mutants of each file, drawn evenly and the same each time; 0: all"
    )
    parser.add_argument("--minutes", type=float, default=60, help="start none after so long")
    parser.add_argument("--jobs", type=int, default=2, help="files side by side")
    args = parser.parse_args()
    deadline, allowed = time.monotonic() + 60 * args.minutes, known()
    found = []
    with ThreadPoolExecutor(args.jobs) as pool:
        for one in pool.map(lambda file: survivors(file, args.most, deadline), args.files or list(FILES)):
            found.append(one)
            reasons = [mutant for mutant in one.left if named(mutant) in allowed]
            said = f"; {len(reasons)} named in {KNOWN}" if reasons else ""
            print(f"{one.file}: {len(one.left)} of {len(one.tried)} survive ({one.every} there are){said}", flush=True)
    return judged(found, allowed)


def judged(found: list[Tried], allowed: dict[tuple[str, str, str], str]) -> int:
    """Print the totals and the problems. Returns the exit code."""
    wrong = False
    for language, share in MOST_SHARE.items():
        of = [one for one in found if one.file.endswith(".sh") == (language == "bash")]
        tried, left = (sum(len(getattr(one, name)) for one in of) for name in ("tried", "left"))
        if not tried:
            continue
        unnamed = sum(named(mutant) not in allowed for one in of for mutant in one.left)
        print(
            f"{language}: {left} of {tried} survive, {left / tried:.1%} (at most {share:.0%}); {unnamed} without a reason"
        )
        wrong = wrong or bool(unnamed) or left / tried > share
    noticed = {named(mutant) for one in found for mutant in one.tried if mutant not in one.left}
    for entry in sorted(noticed & allowed.keys() - {named(mutant) for one in found for mutant in one.left}):
        wrong = True
        print(f"{KNOWN}: the tests notice it by now: {entry[0]}: {entry[2]}")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
