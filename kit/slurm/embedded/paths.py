"""Every path and name of an embedded cluster. All derive from its folder, so that `down` needs no record to find them."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from kit.errors import UsageError

# Lower case, as ClusterName requires. The nodes' host names start with it, so RFC 1123 forbids underscores.
_NAME = r"[a-z][a-z0-9-]{0,39}"
# slurm.conf and plugstack.conf split at blanks; `#` starts a comment, `%` a pattern, and `,` separates list items.
_FOLDER = r"/[A-Za-z0-9/._+@~-]*"
# unix(7): sun_path holds 108 bytes including the final NUL.
_SOCKET_PATH_MAX = 107


def checked_name(name: str) -> str:
    """Return `name`; UsageError that says which names a cluster may have."""
    if not re.fullmatch(_NAME, name):
        raise UsageError(
            f"a cluster cannot be called {name!r}",
            hint="use lower-case letters, digits and '-', starting with a letter, at most 40",
        )
    return name


def node_names(cluster: str, count: int) -> tuple[str, ...]:
    """The host names of the nodes: `local-1`, `local-2`, …"""
    return tuple(f"{cluster}-{number}" for number in range(1, count + 1))


@dataclass(frozen=True)
class EmbeddedPaths:
    """The paths under one cluster's folder."""

    folder: Path

    @classmethod
    def check_folder(cls, folder: Path, *, node: str) -> EmbeddedPaths:
        """The layout of `folder`, resolved; UsageError if Slurm could not work in it. node: the longest node name."""
        layout = cls(folder.expanduser().resolve())
        if not re.fullmatch(_FOLDER, str(layout.folder)):
            raise UsageError(
                f"{layout.folder}: slurm.conf cannot hold this path",
                hint="choose a folder without blanks or punctuation: --dir PATH",
            )
        # slurmstepd's own socket, <spool>/<node>_<job>.<step>, has the longest path.
        longest = len(str(layout.spool / node / f"{node}_99999999.4294967295"))
        if longest > _SOCKET_PATH_MAX:
            raise UsageError(
                f"{layout.folder}: {longest - _SOCKET_PATH_MAX} characters too long for the sockets in it",
                hint="choose a shorter folder, --dir PATH, or a shorter --name",
            )
        return layout

    @property
    def record(self) -> Path:
        """The record of the cluster. If it exists, the folder is the kit's."""
        return self.folder / "cluster.json"

    @property
    def unfinished_record(self) -> Path:
        """The record while it is written."""
        return self.folder / "cluster.json.tmp"

    @property
    def slurm_conf(self) -> Path:
        """The value of SLURM_CONF for every Slurm command."""
        return self.folder / "slurm.conf"

    @property
    def hosts(self) -> Path:
        """The hosts file of the nodes."""
        return self.folder / "hosts"

    @property
    def munge_key(self) -> Path:
        """The cluster's own munge key."""
        return self.folder / "munge" / "munge.key"

    @property
    def munge_socket(self) -> Path:
        """munged's socket. slurm.conf names it, so every Slurm command finds it."""
        return self.folder / "munge" / "munge.socket"

    @property
    def gpus(self) -> Path:
        """The folder of the placeholder devices."""
        return self.folder / "gpus"

    @property
    def logs(self) -> Path:
        """The folder with one log per daemon."""
        return self.folder / "logs"

    @property
    def spool(self) -> Path:
        """slurmd's spool folder, with one folder per node."""
        return self.folder / "spool"

    @property
    def controller_state(self) -> Path:
        """slurmctld's StateSaveLocation."""
        return self.folder / "state"

    @property
    def node(self) -> Path:
        """A path that shows each node its own folder (a bind mount of `own`), and is empty on the host."""
        return self.folder / "node"

    def own(self, node: str) -> Path:
        """A node's own folder, as the host sees it."""
        return self.folder / "nodes" / node

    def log(self, daemon: str) -> Path:
        """A daemon's log."""
        return self.logs / f"{daemon}.log"

    def console(self, daemon: str) -> Path:
        """A daemon's output before it has read its configuration."""
        return self.logs / f"{daemon}.console"

    @property
    def interface(self) -> str:
        """The name of the host's end of the cluster's network: 11 of the 15 characters that Linux allows."""
        return "kit" + hashlib.sha256(bytes(self.folder)).hexdigest()[:8]
