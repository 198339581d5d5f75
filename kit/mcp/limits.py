"""Limits of what `kit mcp` may do, from a file of the user's own. No tool writes it, and no argument of a tool changes a limit."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from kit import config, data_folders
from kit.errors import ConfigError, Fault, UsageError
from kit.schema.schema_base import Model

FILE = "mcp.toml"
_EXAMPLE = "max_nodes = 2\ngpu_hours_per_day = 64"


class Limits(Model):
    """The limits. A number that is missing limits nothing. Hours are those that a job may use at most: nodes x time limit."""

    read_only: bool = Field(default=False, description="Refuse every tool that submits or cancels.")
    max_nodes: int | None = Field(default=None, ge=1, description="Nodes of one run at most, with its spares.")
    gpu_hours_per_day: float | None = Field(default=None, ge=0, description="GPU-hours of any 24 hours, at most.")
    gpu_hours_in_all: float | None = Field(default=None, ge=0, description="GPU-hours in all, at most.")
    node_hours_per_day: float | None = Field(default=None, ge=0, description="Node-hours of any 24 hours, at most.")
    node_hours_in_all: float | None = Field(default=None, ge=0, description="Node-hours in all, at most.")
    clusters: tuple[str, ...] | None = Field(default=None, description="Clusters to submit to; default: all.")
    images: tuple[str, ...] | None = Field(default=None, description="Images to run in; default: all.")
    cancel: Literal["own", "mine"] = Field(
        default="own",
        description="Runs that may be cancelled: own, those that kit mcp submitted; mine, all runs of this user.",
    )


def default_file() -> Path:
    """The user's file: ~/.config/kit/mcp.toml."""
    return data_folders.user_config() / FILE


def read_limits(file: Path, *, project: Path) -> Limits:
    """The limits in a file. ConfigError if there is none, or a wrong one. UsageError if it is in the project, where agents edit."""
    if file.resolve().is_relative_to(project.resolve()):
        raise UsageError(
            f"{file}: limits in the project can be changed by whoever edits the project",
            hint=f"kit mcp --limits {default_file()}",
        )
    if not file.is_file():
        problem = "there is no file with limits, so nothing can be submitted or cancelled"
        raise ConfigError.of(Fault(file=str(file), key="", problem=problem, hint=_EXAMPLE.replace("\n", "\n       ")))
    return config.load_model(file, Limits)


def require_writable(limits: Limits, file: Path) -> None:
    """ConfigError in read-only mode."""
    if limits.read_only:
        problem = "this server only reads: its user has forbidden submits and cancels"
        raise ConfigError.of(Fault(file=str(file), key="read_only", problem=problem, hint="read_only = false"))


def faults(limits: Limits, *, nodes: int, cluster: str, images: frozenset[str], file: str) -> list[Fault]:
    """The limits that a run exceeds by itself, whatever was spent before."""
    problems = []
    if limits.max_nodes is not None and nodes > limits.max_nodes:
        problems.append(
            Fault(key="max_nodes", problem=f"the run has {nodes} nodes, and {limits.max_nodes} are allowed",
                  hint=f"resources.nodes = {limits.max_nodes}")
        )  # fmt: skip
    if limits.clusters is not None and cluster not in limits.clusters:
        problems.append(_not_allowed("clusters", "cluster", cluster, limits.clusters))
    if limits.images is not None:
        problems += [_not_allowed("images", "image", one, limits.images) for one in sorted(images - {*limits.images})]
    return [Fault(**{**vars(one), "file": file}) for one in problems]


def _not_allowed(key: str, noun: str, name: str, allowed: tuple[str, ...]) -> Fault:
    named = ", ".join(allowed) or "none"
    return Fault(
        key=key, problem=f"{noun} {name!r} is not allowed here", allowed=named, hint=f"{noun} = {named.split(',')[0]!r}"
    )
