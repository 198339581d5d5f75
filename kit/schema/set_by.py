"""Records which layer of configuration set each key of a job. Reruns and comparisons use it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from kit.schema.schema_base import Model

LayerKind = Literal["launcher", "cluster", "qos", "file", "set", "words", "point"]

# Layers with the user's own requests, independent of the cluster: the job's files, the command line, values of a point or stage.
USERS: frozenset[LayerKind] = frozenset({"file", "set", "words", "point"})


class SetBy(Model):
    """The keys of the resolved job that one layer decided: no higher layer sets them."""

    kind: LayerKind
    name: str = Field(
        description="The launcher, cluster, QOS row or file; '--set'; the words after '--'; the point or stage."
    )
    keys: tuple[str, ...] = Field(description="With dots: resources.nodes.")

    def __str__(self) -> str:
        return self.name if self.kind in USERS else f"{self.kind} {self.name}"
