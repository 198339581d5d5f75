"""The login node of a cluster over ssh: its rules, the connection to it, and the mirror of its run folders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kit.ssh import run_folder_mirror as mirrors
from kit.ssh.run_folder_mirror import Mirror

if TYPE_CHECKING:
    from kit.schema.cluster import Cluster
    from kit.ssh.connection import Connection


@dataclass
class LoginNode:
    """What a request to a cluster over ssh needs. name, rules: of the cluster."""

    name: str
    rules: Cluster
    connection: Connection
    mirror: Mirror

    @property
    def folders(self) -> dict[str, object]:
        """The constants RUNS and STORE of a program that runs there."""
        return mirrors.folders(self.rules)

    def runs_there(self) -> str:
        """The folder of runs on the cluster; as its file writes it, before the first answer."""
        known = self.mirror.there()
        return known.runs if known else self.rules.runs
