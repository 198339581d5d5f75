"""TOML files and `--set a.b=c` become one Job.

One precedence rule: command line > job > QOS row > cluster > launcher > defaults.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from kit import data_folders
from kit.errors import ConfigError, Fault, did_you_mean, nearest
from kit.spec.cluster import Cluster, QosRow
from kit.spec.form import shown as shown_value
from kit.spec.job import Job
from kit.spec.launcher import Launcher
from kit.spec.mount import Mount, MountSet
from kit.validation import COMMAND_LINE, config_error, dotted, toml

M = TypeVar("M", bound=BaseModel)
Table = dict[str, Any]
Layer = tuple[Mapping[str, Any], str]
# data_folders.find within one project: kind, name, who asks, under which key.
Find = Callable[[str, str, str, str], data_folders.Entry]


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """A job with all that it names, read and checked. asked: its [resources] as the user wrote them, without anybody's defaults."""

    job: Job
    job_file: str
    job_dir: Path
    project: Path
    cluster: Cluster
    cluster_name: str
    launcher: Launcher
    launcher_dir: Path
    mounts: tuple[Mount, ...]
    asked: Mapping[str, Any]
    # The user's batch template: name shown in errors, contents.
    template: tuple[str, str] | None = None


def load_toml(path: Path) -> Table:
    """A TOML file as a table; ConfigError when it is missing, unreadable or no TOML."""
    text = _text_of(path)
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"{shown(path)}: not valid TOML: {error}", hint='text is written in "quotes", a table\'s name in [brackets]'
        ) from None
    except RecursionError:
        raise _too_deep(shown(path)) from None
    if _nested(table) > _DEEPEST:
        raise _too_deep(shown(path))
    return table


def _text_of(path: Path) -> str:
    """A regular file's text: a FIFO would wait for a writer, and a device may never end."""
    try:
        if path.exists() and not path.is_file():
            what = "a folder" if path.is_dir() else "not a regular file"
            raise ConfigError(
                f"{shown(path)}: this is {what}, and a TOML file is expected", hint="name the file itself"
            )
        # Editors on Windows put a byte order mark first.
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(
            f"{shown(path)}: no such file", hint="run 'kit init' for a first job file, or name another one"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{shown(path)}: the file is not UTF-8 text", hint="save it as UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{shown(path)}: cannot be read: {reason(error)}", hint=f"ls -l {shown(path)}") from None


# No table of the kit is deeper than a dozen levels; what is deeper than this would end in Python's own limit somewhere.
_DEEPEST = 100


def _nested(table: Table) -> int:
    """Levels of tables and lists inside each other, counted no further than is allowed."""
    level: list[dict[str, Any] | list[Any]] = [table]
    depth = 0
    while level and depth <= _DEEPEST:
        depth += 1
        level = [
            inner
            for one in level
            for inner in (one.values() if isinstance(one, dict) else one)
            if isinstance(inner, dict | list)
        ]
    return depth


def _too_deep(file: str) -> ConfigError:
    return ConfigError(f"{file}: more than {_DEEPEST} tables and lists inside each other", hint="kit schema job")


def reason(error: OSError | UnicodeDecodeError) -> str:
    """Why a file could not be read, in words."""
    return "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else (error.strerror or str(error)).lower()


def load_model(path: Path, model: type[M]) -> M:
    """A TOML file as a model; ConfigError with all faults at once. A file that has not changed is not read again."""
    try:
        found = path.stat()
    except OSError:
        return validate(load_toml(path), model, file=shown(path))
    loaded = _load_version(path, model, (found.st_mtime_ns, found.st_size, found.st_ino))
    assert isinstance(loaded, model)
    return loaded


@lru_cache(maxsize=256)
def _load_version(path: Path, model: type[BaseModel], version: tuple[int, ...]) -> BaseModel:
    return validate(load_toml(path), model, file=shown(path))


def validate(table: Mapping[str, Any], model: type[M], *, file: str) -> M:
    """A table as a model; ConfigError with all faults, each blamed on `file`."""
    try:
        return model.model_validate(dict(table))
    except ValidationError as error:
        raise config_error(error, model, lambda _: file) from None


@dataclass(frozen=True, kw_only=True)
class Sources:
    """A job file and its cluster, read once. `resolve` makes the job, as written or as a point of a sweep.

    files: the job file's own keys, below them those of the files that it builds on, lowest first.
    """

    files: tuple[Layer, ...]
    set_here: Table
    overrides: tuple[str, ...]
    job_file: Path
    project: Path
    place: Cluster
    cluster: data_folders.Entry

    def merged(self, point: Mapping[str, Any] | None = None) -> Table:
        """The job's keys from all layers, unchecked."""
        return merge_all(self._layers(point or {}, "", self._launcher(point or {})))

    def resolve(self, point: Mapping[str, Any] | None = None, *, label: str = "") -> Resolved:
        """The job with all that it names. ConfigError with every fault at once.

        point: keys above all others. label: how a fault names the place that they come from.
        """
        above = point or {}
        entry = self._launcher(above)
        layers = self._layers(above, label, entry)
        file, cluster_file = self._files
        job = _merge_and_validate(layers, self.overrides, file)
        return Resolved(
            job=job,
            job_file=file,
            job_dir=self._job_dir,
            project=self.project,
            cluster=self.place,
            cluster_name=self.cluster.name,
            launcher=load_model(entry.path, Launcher),
            launcher_dir=entry.folder,
            mounts=_mounts(job, self.place, self._find, file, cluster_file),
            asked=merge(merge(self.written, self.set_here), above).get("resources", {}),
            template=_template(job, self._job_dir, file),
        )

    def _layers(self, point: Mapping[str, Any], label: str, entry: data_folders.Entry) -> list[Layer]:
        """Lowest first, each with the name that a fault in it gets."""
        file, cluster_file = self._files
        above = merge(self.set_here, point)
        asked_by = label if "qos" in point else COMMAND_LINE if "qos" in self.set_here else file
        return [
            (load_model(entry.path, Launcher).defaults, f"{self._shown(entry.path)} [defaults]"),
            (self.place.defaults, f"{cluster_file} [defaults]"),
            (_qos_layer(self.place, self.written, above, asked_by), f"{cluster_file} [qos]"),
            *self.files,
            (self.set_here, COMMAND_LINE),
            *([(point, label)] if point else []),
        ]

    def _launcher(self, point: Mapping[str, Any]) -> data_folders.Entry:
        below = self.written.get("launcher", self.place.defaults.get("launcher"))
        name = point.get("launcher", self.set_here.get("launcher", below))
        file, _ = self._files
        if not isinstance(name, str):
            known = ", ".join(data_folders.names("launchers", project_dir=self.project))
            problem = "nothing says how the ranks start" if name is None else f"{shown_value(name)} is not a name"
            raise ConfigError.of(
                Fault(file=file, key="launcher", problem=problem, allowed=known, hint='launcher = "ddp"')
            )
        return self._find("launchers", name, file, "launcher")

    # One job may be resolved a thousand times, for the points of a sweep: what touches the disk is asked once.

    @cached_property
    def written(self) -> Table:
        """The keys of all job files."""
        return merge_all(self.files)

    @cached_property
    def _files(self) -> tuple[str, str]:
        """How faults name the job file and the cluster's file."""
        return shown(self.job_file), shown(self.cluster.path)

    @cached_property
    def _shown(self) -> Callable[[Path], str]:
        return lru_cache(maxsize=None)(shown)

    @cached_property
    def _job_dir(self) -> Path:
        return self.job_file.parent.resolve()

    @cached_property
    def _find(self) -> Find:
        return lru_cache(maxsize=None)(
            lambda kind, name, file, key: data_folders.find(
                kind, name, project_dir=self.project, asked_by=file, key=key
            )
        )


def read_job(
    job_file: Path, *, cluster: str | None, overrides: Sequence[str] = (), project: Path | None = None
) -> Sources:
    """Read a job file and its cluster's file.

    cluster: a name of clusters/, default 'local'. overrides: 'a.b=c' each; c is TOML, or text where it is not.
    """
    return _read(job_files(job_file), job_file, cluster=cluster, overrides=overrides, project=project)


def job_path(given: Path) -> Path:
    """The job file of a path: a folder stands for its job.toml."""
    return given / "job.toml" if given.is_dir() else given


def default_cluster(project: Path) -> str:
    """The cluster when none is named: KIT_CLUSTER's, the user's, the only one that project and user define; else `local`.

    The user's is `cluster = "NAME"` in config.toml of the user's configuration folder (`data_folders.user_config`).
    """
    if named := os.environ.get("KIT_CLUSTER", ""):
        return named
    own = data_folders.user_config() / "config.toml"
    if own.is_file() and (named := str(load_toml(own).get("cluster", ""))):
        return named
    defined = data_folders.own_names("clusters", project_dir=project)
    return defined[0] if len(defined) == 1 else "local"


def job_files(job_file: Path) -> tuple[Layer, ...]:
    """A job file's keys, below them those of the files that `extends` names, lowest first, each file once."""
    return tuple(layer for _, layer in _extended(job_file, (), {}))


# How many files may build on each other.
_MOST_ABOVE = 50
_Placed = tuple[Path, Layer]


def _extended(job_file: Path, above: tuple[Path, ...], known: dict[Path, tuple[_Placed, ...]]) -> tuple[_Placed, ...]:
    """above: the files that led here. known: what was read already."""
    path = job_file.resolve()
    if path in known:
        return known[path]
    table = load_toml(job_file)
    named = table.pop("extends", ())
    named = (named,) if isinstance(named, str) else named
    here = (*above, path)
    if not (isinstance(named, tuple | list) and all(isinstance(name, str) for name in named)):
        problem = f"{shown_value(named)} is not the path of a job file, relative to this one, or a list of such paths"
        raise _not_extended(job_file, problem)
    if len(here) > _MOST_ABOVE:
        raise _not_extended(job_file, f"more than {_MOST_ABOVE} files build on each other")
    below: dict[Path, Layer] = {}
    for name in named:
        other = job_file.parent / Path(name).expanduser()
        if other.resolve() in here:
            raise _not_extended(job_file, f"{shown_value(name)} builds on this file itself")
        for one, layer in _extended(other, here, known):
            below.pop(one, None)  # a file that two others build on has its place where the later of them has it
            below[one] = layer
    known[path] = (*below.items(), (path, (table, shown(job_file))))
    return known[path]


def _not_extended(file: Path, problem: str) -> ConfigError:
    return ConfigError.of(Fault(file=shown(file), key="extends", problem=problem, hint='extends = "base.toml"'))


def job_of(
    written: Table,
    job_file: Path,
    *,
    cluster: str | None,
    overrides: Sequence[str] = (),
    project: Path | None = None,
) -> Sources:
    """The same for a job that is a table already. job_file: what faults call it, in the folder that its paths start from."""
    files = ((written, shown(job_file)),)
    return _read(files, job_file, cluster=cluster, overrides=overrides, project=project)


def _read(
    files: tuple[Layer, ...], job_file: Path, *, cluster: str | None, overrides: Sequence[str], project: Path | None
) -> Sources:
    project = project or data_folders.project(job_file.parent)
    entry = cluster_entry(cluster, project)
    return Sources(
        files=files,
        set_here=parse_overrides(overrides),
        overrides=tuple(overrides),
        job_file=job_file,
        project=project,
        place=load_model(entry.path, Cluster),
        cluster=entry,
    )


def cluster_entry(named: str | None, project: Path) -> data_folders.Entry:
    """The file of a cluster: of `--cluster`, else of the default one. ConfigError, which says who named it, for an unknown one."""
    if named:
        return data_folders.find("clusters", named, project_dir=project, asked_by="--cluster", key="cluster")
    asked_by = "KIT_CLUSTER" if os.environ.get("KIT_CLUSTER") else shown(data_folders.user_config() / "config.toml")
    return data_folders.find(
        "clusters", default_cluster(project), project_dir=project, asked_by=asked_by, key="cluster"
    )


def load_job(
    job_file: Path, *, cluster: str | None, overrides: Sequence[str] = (), project: Path | None = None
) -> Resolved:
    """Read a job file and all that it names. ConfigError with every fault of the job at once."""
    return read_job(job_file, cluster=cluster, overrides=overrides, project=project).resolve()


def parse_overrides(overrides: Sequence[str]) -> Table:
    """`["a.b=1", "c=x"]` -> `{"a": {"b": 1}, "c": "x"}`."""
    table: Table = {}
    for text in overrides:
        key, equals, value = text.partition("=")
        parts = key.strip().split(".")
        if not equals or not all(parts):
            raise ConfigError.of(
                Fault(
                    file=COMMAND_LINE,
                    key=key,
                    problem=f"{shown_value(text)} is not written as KEY=VALUE",
                    hint=f"{COMMAND_LINE} resources.nodes=2",
                )
            )
        inner = table
        for part in parts[:-1]:
            inner = inner.setdefault(part, {})
            if not isinstance(inner, dict):
                problem = f"{part} is given a value and keys of its own"
                raise ConfigError.of(
                    Fault(file=COMMAND_LINE, key=key, problem=problem, hint=f"drop one {COMMAND_LINE}")
                )
        inner[parts[-1]] = _value(value)
    if _nested(table) > _DEEPEST:
        raise _too_deep(COMMAND_LINE)
    return table


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> Table:
    """Tables merge key by key; any other value of `above` replaces that of `below`."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def merge_all(layers: Sequence[Layer]) -> Table:
    """All layers as one table, lowest first."""
    table: Table = {}
    for layer, _ in layers:
        table = merge(table, layer)
    return table


def shown(path: Path) -> str:
    """A path as a person would write it: relative to the working folder where it is inside."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    except RecursionError:
        raise _too_deep(COMMAND_LINE) from None


def _merge_and_validate(layers: Sequence[Layer], overrides: Sequence[str], job_file: str) -> Job:
    table = merge_all(layers)

    def file_of(location: tuple[str | int, ...]) -> str:
        keys = [str(part) for part in location]
        held = [(_depth(layer, keys), file) for layer, file in layers]
        deepest = max(depth for depth, _ in held)
        return [file for depth, file in held if depth == deepest][-1] if deepest else job_file

    try:
        return Job.model_validate(table)
    except ValidationError as error:
        literal = _as_text(table, error, overrides)
        if literal is None:
            raise config_error(error, Job, file_of) from None
    try:
        return Job.model_validate(literal)
    except ValidationError as error:
        raise config_error(error, Job, file_of) from None


def _as_text(table: Table, error: ValidationError, overrides: Sequence[str]) -> Table | None:
    """`--set resources.time=30`: where text is wanted and TOML read a number, take the text as it was typed."""
    wanted = {dotted(e["loc"]) for e in error.errors() if e["type"] == "string_type"}
    typed = {key.strip(): value for key, _, value in (o.partition("=") for o in overrides) if key.strip() in wanted}
    if not typed:
        return None
    for key, value in typed.items():
        nested: Any = value
        for part in reversed(key.split(".")):
            nested = {part: nested}
        table = merge(table, nested)
    return table


def _depth(layer: Any, keys: Sequence[str]) -> int:
    """How many of the keys a layer holds, one inside the other. An empty table holds nothing."""
    for depth, key in enumerate(keys):
        if isinstance(layer, list) and key.isdigit():
            return len(keys)
        if not isinstance(layer, Mapping) or key not in layer or layer[key] == {}:
            return depth
        layer = layer[key]
    return len(keys)


def _qos_layer(cluster: Cluster, written: Table, above: Table, asked_by: str) -> Table:
    """The job keys that the chosen row of the QOS table fills in. asked_by: what a fault in its name is blamed on."""
    name = above.get("qos", written.get("qos", cluster.defaults.get("qos", cluster.default_qos)))
    if name is None:
        return {}
    if not isinstance(name, str) or name not in cluster.qos:
        raise ConfigError.of(_no_such_qos(cluster, name, asked_by))
    row: QosRow = cluster.qos[name]
    slurm = {"account": row.account, "partition": row.partition, "qos": None if row.qos is False else row.qos or name}
    resources_ = {"memory": row.memory, "cpus_per_node": row.cpus_per_node, "time": row.time}
    return {
        "qos": name,
        "slurm": {k: v for k, v in slurm.items() if v is not None},
        "resources": {k: v for k, v in resources_.items() if v is not None},
    }


def _no_such_qos(cluster: Cluster, name: object, asked_by: str) -> Fault:
    if not cluster.qos:
        return Fault(file=asked_by, key="qos", problem="the cluster has no QOS table", hint="remove the line")
    near = nearest(str(name), cluster.qos) or next(iter(cluster.qos))
    question = did_you_mean(str(name), cluster.qos)
    return Fault(
        file=asked_by,
        key="qos",
        problem=f"the cluster's QOS table has no row {shown_value(name)}" + (f"; {question}" if question else ""),
        allowed=", ".join(cluster.qos),
        hint=f"{COMMAND_LINE} qos={near}" if asked_by == COMMAND_LINE else f"qos = {toml(near)}",
    )


def _template(job: Job, job_dir: Path, job_file: str) -> tuple[str, str] | None:
    if job.slurm.template is None:
        return None
    path = job_dir / Path(job.slurm.template).expanduser()
    try:
        return shown(path), path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problem = f"the batch template {shown_value(job.slurm.template)} cannot be read: {reason(error)}"
        hint = f"kit template eject {job.slurm.template}, which writes the kit's own to start from"
        raise ConfigError.of(Fault(file=job_file, key="slurm.template", problem=problem, hint=hint)) from None


def _mounts(job: Job, cluster: Cluster, find: Find, job_file: str, cluster_file: str) -> tuple[Mount, ...]:
    """The job's mounts with every logical name looked up in the mount set."""
    logical = [m for m in job.mounts if isinstance(m, str)]
    known: dict[str, Mount] = {}
    set_name = job.mount_set or cluster.mounts
    if set_name is not None:
        asked_by, key = (job_file, "mount_set") if job.mount_set else (cluster_file, "mounts")
        entry = find("mounts", set_name, asked_by, key)
        known = load_model(entry.path, MountSet).root
    unknown = [
        Fault(
            file=job_file,
            key=f"mounts[{job.mounts.index(name)}]",
            problem=f"no mount is called {name!r}"
            if set_name
            else "the cluster has no mount set that could say what this name is",
            allowed=", ".join(known),
            hint=f"add [{name}] to mounts/{set_name}.toml"
            if set_name
            else f'mounts = [{{ source = "/data", target = "/{name}" }}]',
        )
        for name in logical
        if name not in known
    ]
    if unknown:
        raise ConfigError.of(*unknown)
    return tuple(known[m] if isinstance(m, str) else m for m in job.mounts)
