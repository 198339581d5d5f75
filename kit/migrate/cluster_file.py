"""Writes what a script says about its cluster: a first cluster file, or the difference to the one that the project has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kit import config, data_folders
from kit.allocation import kilobytes
from kit.errors import ConfigError
from kit.files import untrusted_files
from kit.migrate.report import Migration
from kit.schema.cluster import Cluster
from kit.schema.sbatch_sizes import Sizes
from kit.slurm.detect_cluster import row_name

NAME = "cluster.toml"
_HEAD = "# Made by `kit migrate {script}`: "
_WHOLE = (
    "what the script says about its cluster, for clusters/NAME.toml of the project.\n# The sizes of the job stand for those of a "
    "node: on a login node, `kit cluster detect NAME` reads them from Slurm.\n"
)
_DIFFERENCE = "what the script says and\n# {known} does not. Add to it what holds for all jobs.\n"
_ROW = ("partition", "account", "qos")
# Lines and variables that are often the same for all jobs of a cluster.
_MODULE = re.compile(r"\s*(module|ml)\s")
_FABRIC = re.compile(r"(NCCL|GLOO|FI|UCX|OMPI_MCA|RCCL|PSM2)_\w+")


def describe(job: Mapping[str, Any], sizes: Sizes) -> dict[str, Any]:
    """The tables of a cluster file that a script decides: [node] and a row of the QOS table. job: its keys, as read."""
    asked, slurm = job["resources"], job["slurm"]
    node: dict[str, Any] = {"cpus": asked.get("cpus_per_node") or sizes.tasks, "gpus": sizes.gpus}
    if kilobytes(asked.get("memory") or "0"):
        node["memory"] = asked["memory"]
    if re.match(r"(gres/)?gpu\b", sizes.given.get("gres", "")):
        node["gres"] = "gres:gpu"
    tables: dict[str, Any] = {"node": node}
    if row := {key: slurm[key] for key in _ROW if key in slurm}:
        name = row_name(next(iter(row.values())))
        tables |= {"default_qos": name, "qos": {name: {"qos": False, **row}}}
    if job.get("image"):
        tables["container"] = {"runtime": "pyxis"}
    return tables


def write(report: Migration, folder: Path, cluster: str | None, project: Path) -> data_folders.Entry | None:
    """Write cluster.toml where there is anything to say, and the next step into the report.

    Returns the entry of the new file if project and user have no cluster file; else the file holds only the difference to theirs.
    """
    path = folder / NAME
    path.unlink(missing_ok=True)  # of an earlier migration with --force, which may have had more to say
    try:
        known = config.cluster_entry(cluster, project)
        if cluster is None and known.name == "local" and known.root == data_folders.packaged().resolve():
            table = {"description": f"from {report.script}", **report.cluster}
            untrusted_files.write_text(path, _HEAD.format(script=report.script) + _WHOLE + _text(table, report))
            report.next.append(f"copy {path} to clusters/NAME.toml, with the name of your cluster in place of NAME")
            return data_folders.Entry(name="NAME", path=path, root=folder)
        rules = config.load_model(known.path, Cluster)
    except ConfigError:
        return None  # The comparison names the fault.
    if missing := _missing(report.cluster, rules):
        head = _HEAD.format(script=report.script) + _DIFFERENCE.format(known=config.shown(known.path))
        untrusted_files.write_text(path, head + _text(missing, report))
        report.next.append(f"read {path}: lines that {config.shown(known.path)} lacks")
    return None


def _missing(asked: Mapping[str, Any], rules: Cluster) -> dict[str, Any]:
    """What the script needs and the cluster's file does not have."""
    node, has = asked["node"], rules.node
    more = {name: node[name] for name in ("cpus", "gpus") if node[name] > getattr(has, name)}
    if "memory" in node and has.memory and kilobytes(node["memory"]) > kilobytes(has.memory):
        more["memory"] = node["memory"]
    if node["gpus"] and "gres" in node and not has.gres.startswith("gres:"):
        more["gres"] = node["gres"]
    rows = {name: row for name, row in asked.get("qos", {}).items() if not _has_row(row, rules)}
    named = {f"{name}-2" if name in rules.qos else name: row for name, row in rows.items()}
    return {**({"node": more} if more else {}), **({"qos": named} if named else {})}


def _has_row(row: Mapping[str, Any], rules: Cluster) -> bool:
    return any(
        all((name if key == "qos" and one.qos is None else getattr(one, key)) == value for key, value in row.items())
        for name, one in rules.qos.items()
    )


def _text(table: Mapping[str, Any], report: Migration) -> str:
    """The table as TOML. What is in job.toml, and perhaps the cluster's, is a comment: in both files it would run twice."""
    import tomli_w

    above = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    below = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    modules = [line for line in report.job.get("setup", []) if _MODULE.match(line)]
    fabric = {name: value for name, value in report.job.get("env", {}).items() if _FABRIC.fullmatch(name)}
    parts = (
        tomli_w.dumps(above),
        _comment("these lines", {"setup": modules}) if modules else "",
        f"\n{tomli_w.dumps(below)}" if below else "",
        "\n" + _comment("these variables", {"network": fabric}) if fabric else "",
    )
    return "".join(parts)


def _comment(what: str, table: Mapping[str, Any]) -> str:
    import tomli_w

    lines = [
        f"If every job of the cluster needs {what}, move them here from job.toml:",
        *tomli_w.dumps(table).splitlines(),
    ]
    return "".join(f"# {line}\n" for line in lines)
