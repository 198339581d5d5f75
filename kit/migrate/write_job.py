"""Writes the job file and the report of a migration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kit import data_folders
from kit.config.toml_file import validate
from kit.errors import ConfigError, Fault, UsageError
from kit.files import untrusted_files
from kit.migrate import cluster_file, compare, read_script
from kit.migrate.reading import MOST_BYTES
from kit.migrate.report import Migration
from kit.schema.job import Job

REPORT = "migrated.txt"
_HEAD = "# Made by `kit migrate {script}`; {report} has each line of the script. All keys: `kit schema job`.\n"
_ORDER = ("name", "launcher", "image", "script", "module", "command", "args")


def migrate(script: Path, *, output: Path | None, cluster: str | None, force: bool) -> Migration:
    """Read a script, and write job.toml, cluster.toml and the report into a folder; default: the script's own.

    A refused script gets only the report. A script that says nothing new of its cluster gets no cluster.toml. UsageError for files
    that exist or cannot be read.
    """
    try:
        text = untrusted_files.read_text(script, most=MOST_BYTES)
    except OSError as error:
        raise UsageError(f"{script}: {error}", hint="name an sbatch script") from None
    folder = output or script.parent
    written = (folder / name for name in ("job.toml", cluster_file.NAME, REPORT))
    there = [path for path in written if path.exists() and not _is_report(path)]
    if there and not force:
        raise UsageError(
            f"{there[0]}: the file exists already", hint="--force writes over it, -o FOLDER writes elsewhere"
        )
    report = read_script.read_script(script, text)
    _validate(report)
    folder.mkdir(parents=True, exist_ok=True)
    if report.outcome == "refused":
        report.job = report.cluster = {}
    else:
        job_file = folder / "job.toml"
        untrusted_files.write_text(job_file, as_toml(report))
        if folder.absolute() != script.absolute().parent:
            report.open.append(f"{job_file}: not in the script's folder, where the paths of the script begin")
        own_entry = cluster_file.write(report, folder, cluster, data_folders.project(job_file.parent))
        compare.compare(text, job_file, cluster, report, own_entry=own_entry)
        report.next.append(f"kit submit {job_file}{' --cluster NAME' if own_entry else ''}")
    untrusted_files.write_text(folder / REPORT, report.as_text())
    return report


def _is_report(path: Path) -> bool:
    """Whether a file is a report of this command: it may be written again."""
    first = untrusted_files.head(path, 4096).decode(errors="replace").partition("\n")[0]
    return path.name == REPORT and first.rstrip().endswith((": whole", ": workaround", ": refused"))


def _validate(report: Migration) -> None:
    """Refuse a script with a value that no job takes, such as a pattern of file names that only a step has."""
    if report.outcome == "refused":
        return
    try:
        validate(_table(report), Job, file=report.script)
    except ConfigError as error:
        report.refused += [f"{fault.key}: {fault.problem}" for fault in error.faults]


def as_toml(report: Migration) -> str:
    """The job file's text. Without an image of the script's, the job runs without a container, as the script did."""
    import tomli_w

    return _HEAD.format(script=report.script, report=REPORT) + tomli_w.dumps(_table(report))


def _table(report: Migration) -> dict[str, Any]:
    job: dict[str, Any] = {name: report.job[name] for name in _ORDER if name in report.job}
    job |= {name: value for name, value in report.job.items() if name not in job}
    if "image" not in job:
        job["container"] = {**job.get("container", {}), "runtime": "bare"}
    return job


def check(report: Migration) -> None:
    """ConfigError, with each line that was not read, for a script that has become no job."""
    if report.outcome != "refused":
        return
    hint = f"change it, and run kit migrate again; {REPORT} has every line"
    faults = [
        Fault(file=entry.file or report.script, key=f"line {entry.lines[0]}", problem=place.what, hint=hint)
        for entry in report.entries
        for place in entry.places
        if place.kind == "unread"
    ]
    faults += [Fault(file=report.script, key="script", problem=reason, hint=hint) for reason in report.refused]
    raise ConfigError.of(*faults)
