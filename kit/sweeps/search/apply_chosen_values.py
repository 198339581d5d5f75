"""Writes the values that a search has chosen into a point's program, job and manifest. The point was planned with other values.

A file is replaced, not changed in place, because the points of a sweep share files with equal content. A second call has the same
result, so a start after a kill -9 completes an interrupted one.
"""

from __future__ import annotations

import hashlib
import shlex
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

import tomli_w

from kit.files import atomic_write, untrusted_files
from kit.record import manifest
from kit.render import sh
from kit.schema.run_paths import RunPaths
from kit.schema.sweep import Value
from kit.sweeps.points.program_options import text, with_option

_ARGS, _ENV = "args.", "env."


def apply(run_dir: Path, values: Mapping[str, Value]) -> None:
    """Write the values. RunError or OSError if a file cannot be read or written."""
    paths = RunPaths(run_dir)
    # The programs of replica groups are in their own folders.
    for path in [run_dir / "program.sh", *sorted(run_dir.glob("roles/replica-*/program.sh"))]:
        if path.is_file():
            atomic_write.write(
                path, _program(untrusted_files.read_text(path), values), mode=path.stat().st_mode & 0o777
            )
    job = tomllib.loads(untrusted_files.read_text(paths.job))
    job["args"] = _options(job.get("args", []), values)
    job["env"] = {**job.get("env", {}), **_variables(values)}
    written = tomli_w.dumps(job)
    atomic_write.write(paths.job, written)
    made = manifest.read_manifest(paths.manifest)
    digest = {paths.job.name: hashlib.sha256(written.encode()).hexdigest()}
    known = {name: digest.get(name, one) for name, one in made.records.items()}
    made.model_copy(update={"point": dict(values), "records": known}).write(paths.manifest)


def _options(words: list[str], values: Mapping[str, Value]) -> list[str]:
    for key, value in values.items():
        if key.startswith(_ARGS):
            words = with_option(words, key.removeprefix(_ARGS), value)
    return words


def _variables(values: Mapping[str, Value]) -> dict[str, str]:
    return {
        key.removeprefix(_ENV): " ".join(map(text, value)) if isinstance(value, tuple) else text(value)
        for key, value in values.items()
        if key.startswith(_ENV)
    }


def _program(script: str, values: Mapping[str, Value]) -> str:
    """program.sh with changed arrays, in the form that render.sh writes."""
    script = _replaced(script, "KIT_PROGRAM", lambda words: _options(words, values))
    own = _variables(values)
    return _replaced(
        script,
        "KIT_PROGRAM_ENV",
        lambda words: [
            *(word for word in words if word.partition("=")[0] not in own),
            *(f"{name}={value}" for name, value in own.items()),
        ],
    )


def _replaced(script: str, name: str, change: Callable[[list[str]], list[str]]) -> str:
    before, assigned, rest = script.partition(f"\n{name}=(")
    if not assigned:
        return script
    body, closed, after = rest.partition("\n)\n") if rest.startswith("\n") else rest.partition(")\n")
    if not closed:
        return script
    return f"{before}\n{name}={sh(change(shlex.split(body)))}\n{after}"
