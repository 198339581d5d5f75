"""Reads a job file and its cluster once, and makes the job from them, as written or as a point of a sweep."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from kit import data_folders
from kit.config import job_references, prime_rl_file, program_arguments, script_header
from kit.config.extends import job_files
from kit.config.layers import Layer, merge, merge_all, merge_and_validate, parse_overrides, set_by
from kit.config.program_arguments import ProgramWords
from kit.config.site_parts import SitePart, read_site_parts
from kit.config.toml_file import Table, load_model, load_toml, shown
from kit.errors import ConfigError, Fault, nearest
from kit.schema.cluster import Cluster
from kit.schema.job import Job
from kit.schema.launcher import Launcher
from kit.schema.mount import Mount
from kit.schema.set_by import LayerKind, SetBy
from kit.schema.wrong_value_messages import shown as shown_value
from kit.validation import COMMAND_LINE, toml

# The layers below the job's files: launcher, cluster, QOS row.
_BELOW_FILES = 3


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """A job with everything that it names, read and checked. asked: the user's own [resources], without defaults.

    asked_slurm: the user's own [slurm]. set_by: the layer that decided each key. words: what the command line changes in args.
    args_change: args without and with these words; None without words.
    """

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
    asked_slurm: Mapping[str, Any]
    # The user's batch template: its name in errors, its contents.
    template: tuple[str, str] | None = None
    site_parts: tuple[SitePart, ...] = ()
    set_by: tuple[SetBy, ...] = ()
    words: ProgramWords = field(default_factory=ProgramWords)
    args_change: tuple[tuple[str, ...], tuple[str, ...]] | None = None


@dataclass(frozen=True, kw_only=True)
class Sources:
    """A job file and its cluster, read once. `resolve` makes the job, as written or as a point of a sweep.

    files: the job file's own keys, and below them those of the files that it extends, lowest first. kept_launcher: the recorded
    launcher of a run, used in place of today's. words: what the command line changes in the program's arguments.
    """

    files: tuple[Layer, ...]
    set_here: Table
    overrides: tuple[str, ...]
    job_file: Path
    project: Path
    place: Cluster
    cluster: data_folders.Entry
    words: ProgramWords = field(default_factory=ProgramWords)
    kept_launcher: data_folders.Entry | None = None

    def merged(self, point: Mapping[str, Any] | None = None) -> Table:
        """The job's keys from all layers, unchecked."""
        return merge_all(self._layers(point or {}, "", self._launcher(point or {})))

    def resolve(self, point: Mapping[str, Any] | None = None, *, label: str = "") -> Resolved:
        """The job with everything that it names. ConfigError with all faults at once.

        point: keys above all others. label: the name of their place in faults.
        """
        above = point or {}
        entry = self._launcher(above)
        layers = self._layers(above, label, entry)
        file, cluster_file = self._files
        job = merge_and_validate(layers, self.overrides, file)
        template = job_references.template(job, self._job_dir, file)
        files = len(self.files)
        if template is not None and (asked := script_header.keys(*template, inherit=job.inherit)):
            # What the script asks Slurm for is what the job gets. Only the command line is above it.
            layers.insert(_BELOW_FILES + files, (asked, template[0]))
            files += 1
            job = merge_and_validate(layers, self.overrides, file)
        self._require_one_program(job)
        mine = merge(merge(self.written, self.set_here), above)
        return Resolved(
            job=job,
            job_file=file,
            job_dir=self._job_dir,
            project=self.project,
            cluster=self.place,
            cluster_name=self.cluster.name,
            launcher=load_model(entry.path, Launcher),
            launcher_dir=entry.folder,
            mounts=job_references.mounts(job, self.place, self._find, file, cluster_file),
            asked=mine.get("resources", {}),
            asked_slurm=mine.get("slurm", {}),
            template=template,
            site_parts=self._site_parts,
            set_by=set_by(layers, self._kinds(layers, entry, files)),
            words=self.words,
            args_change=self._args_change(layers),
        )

    def _require_one_program(self, job: Job) -> None:
        """Refuse words for the program of a job with several."""
        if not self.words:
            return
        if job.roles:
            of_roles = {name: role.args for name, role in job.roles.items()}
            raise ConfigError.of(program_arguments.roles_fault(self.words, of_roles, "roles"))
        if job.stages:
            of_stages = {name: (one.model_extra or {}).get("args", job.args) for name, one in job.stages.items()}
            raise ConfigError.of(program_arguments.roles_fault(self.words, of_stages, "stages"))

    def _args_change(self, layers: Sequence[Layer]) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
        """The arguments without and with the words."""
        if not self.words:
            return None
        place = next(at for at, (_, name) in enumerate(layers) if name == program_arguments.PLACE)
        return tuple(merge_all(layers[:place]).get("args", ())), tuple(layers[place][0].get("args", ()))

    def _kinds(self, layers: Sequence[Layer], entry: data_folders.Entry, count: int) -> list[tuple[LayerKind, str]]:
        """Kind and name of each of `_layers`. count: of those that are files."""
        _, _, (qos, _), *above = layers
        fixed: list[tuple[LayerKind, str]] = [
            ("launcher", entry.name),
            ("cluster", self.cluster.name),
            ("qos", str(qos.get("qos", ""))),
        ]
        return [
            *fixed,
            *(("file", name) for _, name in above[:count]),
            *(self._kind_above(name) for _, name in above[count:]),
        ]

    def _kind_above(self, name: str) -> tuple[LayerKind, str]:
        if name == program_arguments.PLACE:
            return "words", str(self.words)
        return ("set" if name == COMMAND_LINE else "point"), name

    def _layers(self, point: Mapping[str, Any], label: str, entry: data_folders.Entry) -> list[Layer]:
        """The layers, lowest first, each with its name in faults."""
        file, cluster_file = self._files
        above = merge(self.set_here, point)
        asked_by = label if "qos" in point else COMMAND_LINE if "qos" in self.set_here else file
        layers: list[Layer] = [
            (load_model(entry.path, Launcher).defaults, f"{self._shown(entry.path)} [defaults]"),
            (self.place.defaults, f"{cluster_file} [defaults]"),
            (job_references.qos_layer(self.place, self.written, above, asked_by), f"{cluster_file} [qos]"),
            *self.files,
            (self.set_here, COMMAND_LINE),
        ]
        if self.words:
            args = merge_all(layers).get("args", [])
            # Anything else than a list of text is the fault of its own layer.
            right = isinstance(args, list | tuple) and all(isinstance(one, str) for one in args)
            changed = {"args": list(program_arguments.merged(args, self.words))} if right else {}
            layers.append((changed, program_arguments.PLACE))
        return [*layers, *([(point, label)] if point else [])]

    def _launcher(self, point: Mapping[str, Any]) -> data_folders.Entry:
        below = self.written.get("launcher", self.place.defaults.get("launcher"))
        name = point.get("launcher", self.set_here.get("launcher", below))
        file, _ = self._files
        if not isinstance(name, str):
            known = ", ".join(data_folders.names("launchers", project_dir=self.project))
            problem = (
                "the job names no launcher: it says how the ranks start"
                if name is None
                else f"{shown_value(name)} is not a name"
            )
            misspelt = nearest("launcher", self.written.keys() - Job.model_fields.keys())
            given = self.written.get(misspelt) if misspelt else None
            if name is None and isinstance(given, str):
                problem += f"; did you mean 'launcher' by {misspelt!r}?"
            meant = nearest(str(given), known.split(", ")) or "ddp"
            hint = f"launcher = {toml(meant)}"
            raise ConfigError.of(Fault(file=file, key="launcher", problem=problem, allowed=known, hint=hint))
        if self.kept_launcher is not None and self.kept_launcher.name == name:
            return self.kept_launcher
        return self._find("launchers", name, file, "launcher")

    # One job may be resolved a thousand times, for the points of a sweep, so data from the disk are cached.

    @cached_property
    def written(self) -> Table:
        """The keys of all job files."""
        return merge_all(self.files)

    @cached_property
    def _files(self) -> tuple[str, str]:
        """The names of the job file and of the cluster's file in faults."""
        return shown(self.job_file), shown(self.cluster.path)

    @cached_property
    def _shown(self) -> Callable[[Path], str]:
        return lru_cache(maxsize=None)(shown)

    @cached_property
    def _site_parts(self) -> tuple[SitePart, ...]:
        asked = self.place.parts.folder is not None
        return read_site_parts(self.place, self.cluster.path, self._files[1]) if asked else ()

    @cached_property
    def _job_dir(self) -> Path:
        return self.job_file.parent.resolve()

    @cached_property
    def _find(self) -> job_references.Find:
        return lru_cache(maxsize=None)(
            lambda kind, name, file, key: data_folders.find(
                kind, name, project_dir=self.project, asked_by=file, key=key
            )
        )


def read_job(
    job_file: Path, *, cluster: str | None, overrides: Sequence[str] = (), project: Path | None = None
) -> Sources:
    """Read a job file, or a batch script in place of one, and the cluster's file.

    cluster: a name of clusters/, default 'local'. overrides: 'a.b=c' each; c is TOML, or text if it is not valid TOML.
    """
    if job_file.suffix != ".toml" and script_header.is_script(job_file):
        files: tuple[Layer, ...] = ((script_header.job_of_script(job_file), shown(job_file)),)
        return _read(files, job_file, cluster=cluster, overrides=overrides, project=project)
    files = job_files(job_file)
    *_, (table, file) = files
    if not prime_rl_file.is_one(table):
        return _read(files, job_file, cluster=cluster, overrides=overrides, project=project)
    folder = project or data_folders.project(Path.cwd())
    sources = _read(
        (*files[:-1], (prime_rl_file.job_of(table, file, project=folder), file)),
        job_file,
        cluster=cluster,
        overrides=overrides,
        project=folder,
    )
    return replace(sources, set_here=prime_rl_file.overrides_of(sources.set_here, table))


def job_path(given: Path) -> Path:
    """The job file for a path: for a folder, its job.toml."""
    return given / "job.toml" if given.is_dir() else given


def default_cluster(project: Path) -> str:
    """The default cluster: KIT_CLUSTER's, the user's, the only one that project and user define, else `local`.

    The user's is `cluster = "NAME"` in config.toml of the user's configuration folder (`data_folders.user_config`).
    """
    if named := os.environ.get("KIT_CLUSTER", ""):
        return named
    own = data_folders.user_config() / "config.toml"
    if own.is_file() and (named := str(load_toml(own).get("cluster", ""))):
        return named
    defined = data_folders.own_names("clusters", project_dir=project)
    return defined[0] if len(defined) == 1 else "local"


def job_of(
    written: Table,
    job_file: Path,
    *,
    cluster: str | None,
    overrides: Sequence[str] = (),
    project: Path | None = None,
) -> Sources:
    """The sources of a job given as a table. job_file: its name in faults; relative paths start from its folder."""
    files = ((written, shown(job_file)),)
    return _read(files, job_file, cluster=cluster, overrides=overrides, project=project)


def _read(
    files: tuple[Layer, ...], job_file: Path, *, cluster: str | None, overrides: Sequence[str], project: Path | None
) -> Sources:
    project = project or data_folders.project(job_file.parent)
    entry = cluster_entry(cluster, project)
    keys, words = program_arguments.split(overrides)
    return Sources(
        files=files,
        set_here=parse_overrides(keys),
        overrides=keys,
        words=words,
        job_file=job_file,
        project=project,
        place=load_model(entry.path, Cluster),
        cluster=entry,
    )


def cluster_entry(named: str | None, project: Path) -> data_folders.Entry:
    """The file of the cluster that `--cluster` names, or of the default one.

    ConfigError, which says who named it, for an unknown one.
    """
    if named:
        return data_folders.find("clusters", named, project_dir=project, asked_by="--cluster", key="cluster")
    asked_by = "KIT_CLUSTER" if os.environ.get("KIT_CLUSTER") else shown(data_folders.user_config() / "config.toml")
    return data_folders.find(
        "clusters", default_cluster(project), project_dir=project, asked_by=asked_by, key="cluster"
    )


def load_job(
    job_file: Path, *, cluster: str | None, overrides: Sequence[str] = (), project: Path | None = None
) -> Resolved:
    """Read a job file and everything that it names. ConfigError with all faults of the job at once."""
    return read_job(job_file, cluster=cluster, overrides=overrides, project=project).resolve()
