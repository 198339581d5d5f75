"""`kit cluster up --conf KEY=VALUE`: keys of slurm.conf that a site may set, and keys that the embedded cluster needs for itself.

Keys are case-insensitive, as in Slurm. A value that Slurm does not know is not found here: slurmctld ends at its start and reports
it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from kit.errors import UsageError

# These are not keys of slurm.conf but files that slurmctld reads from the same folder; the first one if JobSubmitPlugins=lua.
JOB_SUBMIT = "job_submit.lua"
COPIED = (JOB_SUBMIT, "topology.conf")

_ADDRESSES = "the kit chooses free ports and addresses"
_FILES = "it stays in the cluster's folder, so that 'kit cluster down' finds it"
_DAEMONS = "the daemons run as the user who starts the cluster"
_AUTH = "the cluster has a munge of its own"
_GPUS = "nodes offer GPUs through it"
_ACCOUNTING = "--accounting sets it"
_CGROUPS = "--cgroups sets it"

# Keys that would break the cluster, in lower case, each with the reason.
_REFUSED: Mapping[str, str] = {
    "clustername": "--name gives the cluster its name",
    **dict.fromkeys(("slurmctldhost", "slurmctldport", "slurmdport", "slurmctldaddr", "srunportrange"), _ADDRESSES),
    **dict.fromkeys(("slurmuser", "slurmduser"), _DAEMONS),
    **dict.fromkeys(("authtype", "authinfo", "credtype", "authalttypes"), _AUTH),
    **dict.fromkeys(
        ("statesavelocation", "slurmdspooldir", "slurmctldpidfile", "slurmdpidfile", "slurmctldlogfile", "slurmdlogfile"),
        _FILES,
    ),
    "plugstackconfig": "--pyxis sets it",
    "plugindir": "the plugins are those of this machine's Slurm",
    "include": "give the keys themselves, a --conf each",
    **dict.fromkeys(("selecttype", "grestypes"), _GPUS),
    **dict.fromkeys(("proctracktype", "cgroupplugin"), _CGROUPS),
    **dict.fromkeys(("nodename", "nodeset", "downnodes"), "--nodes makes the nodes"),
    **dict.fromkeys(("accountingstoragetype", "accountingstoragehost", "accountingstorageport"), _ACCOUNTING),
    "jobsubmitplugins": f"--conf {JOB_SUBMIT}=FILE loads a script of yours",
}  # fmt: skip

# Slurm starts these programs by their path, on the nodes or next to slurmctld.
_PROGRAMS = frozenset(
    {"prolog", "epilog", "taskprolog", "taskepilog", "prologslurmctld", "epilogslurmctld", "srunprolog", "srunepilog",
     "healthcheckprogram", "rebootprogram", "mailprog"}
)  # fmt: skip
# Values that must keep one of the kit's own words.
_KEPT_WORDS = {"slurmdparameters": "config_overrides"}
_KEY = re.compile(r"[A-Za-z][A-Za-z0-9]*|job_submit\.lua|topology\.conf")
# A newline would start another line of slurm.conf, `#` a comment, and a final `\` continues the line.
_VALUE = re.compile(r"[^\x00-\x1f\x7f#]*[^\x00-\x1f\x7f#\\]")


def parse(given: Iterable[str]) -> dict[str, str]:
    """Each `KEY=VALUE` of the command line, by key. UsageError if the `=` is missing, or if a key is given twice."""
    settings: dict[str, str] = {}
    for text in given:
        key, separator, value = text.partition("=")
        if not separator:
            raise UsageError(f"--conf {text}: no '='", hint="--conf SlurmdTimeout=60")
        if key.lower() in map(str.lower, settings):
            raise UsageError(f"--conf {key}: given twice", hint=f"keep one --conf {key}=…")
        settings[key] = value
    return checked(settings)


def checked(conf: Mapping[str, str]) -> dict[str, str]:
    """The settings, with paths made absolute. UsageError for a setting that would break the cluster."""
    return {key: _checked(key, value) for key, value in conf.items()}


def _checked(key: str, value: str) -> str:
    if not _KEY.fullmatch(key) or not _VALUE.fullmatch(value):
        raise UsageError(f"--conf {key}={value}: not a line of slurm.conf", hint="--conf SlurmdTimeout=60")
    name = key.lower()
    if name in _REFUSED:
        raise UsageError(f"--conf {key}: it would break the cluster: {_REFUSED[name]}", hint=f"leave out --conf {key}")
    if name in COPIED:
        return str(_file(key, value))
    if name in _PROGRAMS:
        path = _file(key, value)
        if not os.access(path, os.X_OK):
            raise UsageError(f"--conf {key}: {path} is not executable", hint=f"chmod +x {path}")
        return str(path)
    word = _KEPT_WORDS.get(name)
    if word and word not in value.split(","):
        raise UsageError(f"--conf {key}: without {word} the nodes do not start", hint=f"--conf {key}={word},{value}")
    if name == "partitionname" and value.split(maxsplit=1)[0].lower() == "main":
        raise UsageError(
            "--conf PartitionName: the cluster has a partition main already",
            hint="--conf 'PartitionName=urgent Nodes=ALL PriorityTier=10'",
        )
    return value


def _file(key: str, value: str) -> Path:
    path = Path(value).expanduser().absolute()
    if not path.is_file():
        raise UsageError(f"--conf {key}: {path}: no such file", hint="give the path of a file on this machine")
    if re.search(r"\s", str(path)):
        raise UsageError(
            f"--conf {key}: {path}: slurm.conf cannot hold a path with blanks", hint="move or link the file"
        )
    return path


def applied(text: str, conf: Mapping[str, str]) -> str:
    """slurm.conf in which the settings replace its own lines. Other settings are appended."""
    added = []
    for key, value in conf.items():
        if key in COPIED and key != JOB_SUBMIT:
            continue
        line = "JobSubmitPlugins=lua" if key == JOB_SUBMIT else f"{key}={value}"
        # A partition never replaces another one, since there may be several such lines.
        ours = None if key.lower() == "partitionname" else re.compile(rf"(?mi)^{re.escape(key)}=.*$")
        if ours and ours.search(text):
            text = ours.sub(line.replace("\\", "\\\\"), text)
        else:
            added.append(line)
    return text + "".join(f"{line}\n" for line in ["", "# --conf", *added]) if added else text
