"""Secrets: read by name at submit, kept in one file that only the user may read, and removed when the run ends.

No other place has the values: no script, no manifest, no Slurm record, no command line of a process.

The URLs of notices are kept in the same way, but in a separate file, since the ranks do not need them.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kit import config
from kit.errors import ConfigError, Fault
from kit.files import untrusted_files

if TYPE_CHECKING:
    from kit.schema.job import Job

FILE = ".secrets"
# The batch script's file for sending notices: the kit's Python, then NAME=URL lines.
URLS_FILE = ".notify"
# By which the two runs of a training over two clusters, and their relay, know each other.
RELAY_TOKEN = "KIT_RELAY_TOKEN"
# The prefix of such URLs among the names of secrets. No variable has a colon in its name.
_URL = "notify:"


def gather(job: Job, *, job_dir: Path, job_file: str, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Name -> value of the job's secrets. ConfigError if one is missing; it shows no value.

    The URLs for its batch script's notices are included, under names that only `write` uses.
    """
    environ = os.environ if environ is None else environ
    wanted = job.secrets
    values = _from_file(job_dir / Path(wanted.file).expanduser()) if wanted.file else {}
    faults = []
    for name in wanted.env:
        if name in environ:
            values[name] = environ[name]
        elif name not in values:
            problem = f"{name} is not set where 'kit submit' runs, and secrets.file has no such name"
            faults.append(Fault(file=job_file, key="secrets.env", problem=problem, hint=f"export {name}=..."))
    clashes = sorted(set(values) & set(job.env))
    if clashes:
        faults.append(
            Fault(
                file=job_file,
                key=f"env.{clashes[0]}",
                problem="a secret has the same name",
                hint="remove the line, or the secret",
            )
        )
    if faults:
        raise ConfigError.of(*faults)
    if job.notify.by == "batch":
        found = urls(job, job_dir=job_dir, job_file=job_file, environ=environ)
        values |= {f"{_URL}{name}": url for name, url in found.items()}
    return values


def urls(job: Job, *, job_dir: Path, job_file: str, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The URLs of the job's notices, by the names of their variables. ConfigError if one is missing; it shows no value."""
    environ = os.environ if environ is None else environ
    if not job.notify.on:
        return {}
    kept = _from_file(job_dir / Path(job.secrets.file).expanduser()) if job.secrets.file else {}
    values = {**kept, **environ}
    faults = [
        Fault(
            file=job_file,
            key="notify.to",
            problem=f"{name} is not set here, and secrets.file has no such name"
            if name not in values
            else f"{name} is not a URL",
            hint=f"export {name}=mailtos://...",
        )
        for name in job.notify.to
        if "://" not in values.get(name, "") or "\n" in values[name]
    ]
    if faults:
        raise ConfigError.of(*faults)
    return {name: values[name] for name in job.notify.to}


def write(folder: Path, values: Mapping[str, str]) -> None:
    """Write `<folder>/.secrets`, as shell lines, and `.notify`. Do nothing if there are no secrets, or no URLs."""
    of_ranks = {name: value for name, value in values.items() if not name.startswith(_URL)}
    _write(folder / FILE, "".join(f"export {name}={shlex.quote(value)}\n" for name, value in of_ranks.items()))
    told = [f"{name.removeprefix(_URL)}={value}\n" for name, value in values.items() if name.startswith(_URL)]
    _write(folder / URLS_FILE, "".join([f"{sys.executable}\n", *told]) if told else "")


def _write(path: Path, text: str) -> None:
    """Write a file that has mode 0600 from the start."""
    if not text:
        return
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as sink:
        sink.write(text)


def read_secrets(run_dir: Path) -> dict[str, str]:
    """Name -> value of the secrets in the folder of a run that has not ended; empty for any other run."""
    try:
        lines = untrusted_files.read_text(run_dir / FILE)
    except OSError:
        return {}
    words = shlex.split(lines)
    return dict(word.split("=", 1) for word in words if "=" in word)


def read_urls(run_dir: Path) -> dict[str, str]:
    """Name -> URL for the notices of a run that has not ended; empty for any other run."""
    try:
        lines = untrusted_files.read_text(run_dir / URLS_FILE).splitlines()[1:]
    except OSError:
        return {}
    return dict(line.split("=", 1) for line in lines if "=" in line)


def remove(run_dir: Path) -> None:
    """Remove the secret files of a run that will not start any more. For other runs, the batch script removes them at its end."""
    (run_dir / FILE).unlink(missing_ok=True)
    (run_dir / URLS_FILE).unlink(missing_ok=True)


def _from_file(path: Path) -> dict[str, str]:
    if path.suffix != ".toml":
        return _from_lines(path)
    table = config.load_toml(path)
    wrong = [name for name, value in table.items() if not isinstance(value, str) or not name.isidentifier()]
    if wrong:
        problem, hint = "a secret is text with a variable's name", 'NAME = "value"'
        raise ConfigError.of(*(Fault(file=config.shown(path), key=name, problem=problem, hint=hint) for name in wrong))
    return dict(table)


def _from_lines(path: Path) -> dict[str, str]:
    """The variables that a shell would set from this file, without expansions; it is often an existing .env."""
    try:
        lines = untrusted_files.read_text(path).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{config.shown(path)}: cannot be read: {error}") from None
    values, faults = {}, []
    for number, line in enumerate(lines, 1):
        name, value = _assignment(line)
        if name.isidentifier():
            values[name] = value
        elif name or value:
            problem = "this line is not NAME=VALUE; a value with blanks needs quotes"
            faults.append(Fault(file=config.shown(path), key=f"line {number}", problem=problem, hint="NAME='a value'"))
    if faults:
        raise ConfigError.of(*faults)
    return values


def _assignment(line: str) -> tuple[str, str]:
    """Name and value of a line; both empty for a blank line or a comment; '?' for anything else."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        return "?", ""
    words = words[1:] if words[:1] == ["export"] else words
    if not words:
        return "", ""
    name, equals, value = words[0].partition("=")
    return (name, value) if equals and len(words) == 1 else ("?", "")
