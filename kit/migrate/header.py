"""Reads the #SBATCH lines of a script as Slurm does: up to the first command, without expanding anything."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kit.migrate import names_in_lines
from kit.migrate.report import LineEntry, Migration, Places
from kit.schema import sbatch_lines, sbatch_options
from kit.schema.sbatch_lines import name_of

_SAME = {
    "account": "account", "constraint": "constraint", "error": "error", "exclude": "exclude", "licenses": "licenses",
    "mail-type": "mail_type", "mail-user": "mail_user", "nodelist": "nodelist", "output": "output", "partition": "partition",
    "qos": "qos", "reservation": "reservation",
}  # fmt: skip
_ANSWER = "the kit reads sbatch's answer"
_BY_THE_KIT = {"parsable": _ANSWER, "quiet": _ANSWER, "verbose": _ANSWER}
_INSTEAD = {
    "array": "kit sweep, with a [sweep] table",
    "dependency": "kit submit --after RUN",
    "wait": "kit submit --wait",
    "begin": "kit submit at that time",
}


@dataclass(frozen=True, kw_only=True)
class HeaderOptions:
    """What a header says apart from its keys.

    counts: options of sbatch_lines.SIZES. chdir: the folder of the batch script, and the places of the line that names it.
    """

    counts: dict[str, str]
    chdir: tuple[str, Places] | None = None


def read_header(text: str, report: Migration, job: dict[str, Any]) -> HeaderOptions:
    """Write the header's keys into the job, with an entry for each line."""
    lines = list(_lines(text))
    last = {name: (number, position) for number, _, options in lines for position, (name, _) in enumerate(options)}
    counts: dict[str, str] = {}
    chdir: tuple[str, Places] | None = None
    for number, places, options in lines:
        for position, (name, value) in enumerate(options):
            shown = f"--{name}={value}" if value else f"--{name}"
            if last[name] != (number, position) and name not in _SEVERAL:
                places.out(f"{shown}: the header gives --{name} again further down, and Slurm takes the last")
            elif "$" in value and name != "job-name":
                places.unread(f"{shown}: Slurm does not expand variables here: it gets the text itself")
            elif name in sbatch_lines.SIZES:
                counts[name] = value
                places.key(f"{shown}: [resources], per node")
            elif name == "chdir":
                chdir = value, places
                places.key(f"{shown}: as a line 'cd {value}' at the top of the script")
            else:
                _option(shown, places, job, name, value)
        places.sort(key=lambda one: one.kind != "unread")
    for number, places, _ in lines:
        begin = len("\n".join(text.split("\n")[: number - 1]).encode()) + (number > 1)
        line = text.split("\n")[number - 1]
        span = (begin, begin + len(line.encode()))
        report.entries.append(LineEntry(lines=(number, number), span=span, text=line.strip(), places=places))
    return HeaderOptions(counts=counts, chdir=chdir)


# Each of them counts.
_SEVERAL = frozenset({"export"})


def _lines(text: str) -> Iterator[tuple[int, Places, list[tuple[str, str]]]]:
    """Each line that begins with #SBATCH: its number, its places, and the options that Slurm reads there."""
    for line in sbatch_lines.lines(text):
        places = Places()
        if line.after_command:
            places.out("Slurm does not read it: it comes after a command")
        elif line.separator:
            places.unread("a heterogeneous job: a job of the kit has one shape of nodes")
        elif line.problem:
            places.unread(line.problem)
        elif not line.options:
            places.out("the line has no option")
        yield line.number, places, list(line.options)


def _option(shown: str, places: Places, job: dict[str, Any], name: str, value: str) -> None:
    slurm, resources = job["slurm"], job["resources"]
    if name in _SAME:
        slurm[_SAME[name]] = value
        where = f"{shown}: slurm.{_SAME[name]}"
        where += "; the ranks' output is in logs/ of the run folder" if name in ("output", "error") else ""
        places.key(where)
    elif name == "job-name":
        job["name"] = name_of(value)
        changed = "" if job["name"] == value else f" = {job['name']}, because names of the kit are in lower case"
        places.key(f"{shown}: name{changed}")
    elif name in ("time", "switches"):
        resources[name] = value
        places.key(f"{shown}: resources.{name}")
    elif name in ("requeue", "exclusive") and not value:
        slurm[name] = True
        places.key(f"{shown}: slurm.{name}")
    elif name == "no-requeue":
        places.kit(f"{shown}: the kit asks for no requeue unless the job does")
    elif name == "signal" and (wanted := sbatch_options.signal_of(value)):
        slurm["signal"] = wanted if "@" in wanted else f"{wanted}@60"
        batch = "; without the kit the batch script alone gets it" if value.upper().startswith("B:") else ""
        places.key(f"{shown}: slurm.signal, which the ranks get{batch}")
    elif name == "export":
        read_export(shown, value, places, job)
        if value.upper() not in ("ALL", "NIL"):
            _login(shown, places)
    else:
        _other(shown, places, job, name, value)


def _other(shown: str, places: Places, job: dict[str, Any], name: str, value: str) -> None:
    """An option without a key of its own."""
    if name == "open-mode" and value in ("append", "a"):
        places.kit(f"{shown}: the kit appends to its log")
    elif name == "open-mode":
        places.check(f"{shown}: the kit appends to its log, and does not truncate it")
    elif name == "get-user-env":
        _login(shown, places)
    elif name in _BY_THE_KIT:
        places.kit(f"{shown}: {_BY_THE_KIT[name]}")
    elif name in _INSTEAD:
        places.unread(f"{shown}: no key says it: {_INSTEAD[name]}")
    else:
        _further(shown, places, job)


def _login(shown: str, places: Places) -> None:
    """sbatch(1) reads the login's environment for --get-user-env, and for each --export but ALL and NIL alone."""
    places.check(f"{shown}: the ranks get no variables of your login; name them in inherit, or read them in setup")


def read_export(shown: str, value: str, places: Places, job: dict[str, Any]) -> None:
    """--export of sbatch or srun: names of the submitting shell go into inherit, values into [env]."""
    for item in value.split(","):
        name, is_set, text = item.partition("=")
        if item.upper() in ("ALL", "NONE", "NIL"):
            places.kit(f"{shown}: of your shell, the kit hands over the variables in inherit and no others")
        elif names_in_lines.SECRET.fullmatch(name):
            job["secrets"].setdefault("env", []).append(name)
            places.check(f"{name}: secrets.env: export it in your own shell; its value is not copied into a file")
        elif is_set:
            job["env"][name] = text
            places.key(f"{shown}: env.{name}")
        else:
            job.setdefault("inherit", []).append(name)
            places.key(f"{shown}: inherit has {name}")


def _further(shown: str, places: Places, job: dict[str, Any]) -> None:
    from kit.schema.wrong_value_messages import Invalid

    try:
        job["slurm"].setdefault("extra", []).append(sbatch_options.further(shown))
    except Invalid as error:
        places.unread(f"{shown}: {error}")
    else:
        places.key(f"{shown}: slurm.extra")
