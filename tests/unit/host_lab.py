"""A cluster of stand-ins that is this machine, or a login node that a connection without ssh reaches. Both have the same files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from kit.hosts import clusters
from kit.ssh import shell_program
from kit.ssh.answers import Reply
from kit.ssh.connection import Connection, LineError
from tests.unit.test_remote import sh
from tests.unit.test_submission import TAKES

# Takes every job, and keeps a line `kit|NUMBER|SCRIPT|COMMENT` for each. Refuses scripts that the file `refused` names.
SBATCH = f"""#!/bin/bash
case "$*" in *--version*) echo slurm 22.05.8; exit ;; *--test-only*) cat >/dev/null; exit ;; esac
refused=$(cat FOLDER/refused 2>/dev/null)
case ${{!#}} in */"${{refused:-none}}") echo 'sbatch: error: Invalid account' >&2; exit 1 ;; esac
{TAKES}
echo "$*" >>FOLDER/sbatch.calls
take "$@"; echo $n
"""
SQUEUE = """#!/bin/sh
case $* in *%o*%k*) cat FOLDER/jobs ;; *%o*) cut -d '|' -f 1-3 FOLDER/jobs ;; esac
"""
TOOLS = {
    "sbatch": SBATCH,
    "squeue": SQUEUE,
    "scancel": '#!/bin/sh\necho "$@" >>FOLDER/cancelled\n',
    "srun": "#!/bin/sh\n",
    "scontrol": "#!/bin/sh\n",
    "sinfo": "#!/bin/sh\necho slurm 22.05.8\n",
    "sacct": "#!/bin/sh\n",
}


class HereConnection(Connection):
    """In the place of ssh: a program runs in a shell of this machine. cuts: answers that are lost after a submit ran."""

    cuts = 0

    def _ask(
        self,
        name: str,
        constants: Mapping[str, object],
        data: Iterable[bytes],
        environment: Mapping[str, str] | None,
        timeout: float | None,
    ) -> Reply:
        text = shell_program.text(name, constants, mark="mark", environment=environment or {})
        reply = sh(text, Path.home(), data=b"".join(data))
        if name == "submit" and HereConnection.cuts:
            HereConnection.cuts -= 1
            raise LineError("cut")
        return reply


class Lab:
    """folder: of the project. runs: of the cluster `there`. tools: stand-ins for Slurm's commands, and what they were asked."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.runs, self.tools = folder / "project", folder / "far" / "runs", folder / "tools"

    def calls(self, name: str) -> list[str]:
        """The lines of a stand-in's file."""
        path = self.tools / name
        return path.read_text().splitlines() if path.exists() else []

    def refuse(self, script: str) -> None:
        """Let sbatch refuse a script with this name, or these last parts of its path."""
        (self.tools / "refused").write_text(f"{script}\n")


@pytest.fixture(params=["local", "ssh"])
def lab(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """The cluster `there` as this machine, then over ssh."""
    made = Lab(tmp_path)
    for folder in (made.tools, made.folder / "clusters", tmp_path / "home"):
        folder.mkdir(parents=True)
    for name, text in TOOLS.items():
        (made.tools / name).write_text(text.replace("FOLDER", str(made.tools)))
        (made.tools / name).chmod(0o755)
    (made.tools / "jobs").touch()
    monkeypatch.setenv("PATH", f"{made.tools}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(clusters, "_known", {})
    monkeypatch.setattr("kit.ssh.connection.Connection", HereConnection)
    monkeypatch.setattr("kit.hosts.remote_send._AGAIN_S", (0.0, 0.0))
    monkeypatch.chdir(made.folder)
    over = '[ssh]\nhost = "login.there"\n' if request.param == "ssh" else ""
    text = f'{over}[node]\ncpus = 8\ngpus = 4\nmemory = "64G"\n[container]\nruntime = "bubblewrap"\n'
    (made.folder / "clusters" / "there.toml").write_text(f"{text}[paths]\nruns = '{made.runs}'\n")
    return made
