"""`make setup` as an ordinary user: the kit is made, and what needs root is said in one line with its command."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit import shell
from tests.support import REPO

_NOBODY = 65534
# A project as small as can be, with a build backend of its own: pip installs it into a real .venv without a network.
_PYPROJECT = """\
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "small"
version = "1"
scripts = { kit = "small:main" }
"""
_BACKEND = """\
import zipfile

def build_editable(folder, config_settings=None, metadata_directory=None):
    info = "small-1.dist-info"
    texts = {
        "small.py": "def main():\\n    print('made')\\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\\nName: small\\nVersion: 1\\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\\nGenerator: own\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
        f"{info}/entry_points.txt": "[console_scripts]\\nkit = small:main\\n",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(f"{folder}/small-1-py3-none-any.whl", "w") as wheel:
        for name, text in texts.items():
            wheel.writestr(name, text)
    return "small-1-py3-none-any.whl"
"""


@pytest.fixture
def project() -> Iterator[Path]:
    """A folder of an ordinary user with the real scripts/."""
    folder = Path(tempfile.mkdtemp(prefix="kit-setup-", dir="/tmp"))
    try:
        shutil.copytree(REPO / "scripts", folder / "scripts")
        (folder / "pyproject.toml").write_text(_PYPROJECT)
        (folder / "backend.py").write_text(_BACKEND)
        (folder / "requirements").mkdir()
        (folder / "requirements/dev.lock").write_text("# nothing\n")
        if os.geteuid() == 0:
            for path in (folder, *folder.rglob("*")):
                os.chown(path, _NOBODY, _NOBODY)
        yield folder
    finally:
        shutil.rmtree(folder)


def _set_up(project: Path) -> shell.Completed:
    """setup.sh by a user who has neither root nor a right to it, and who is no member of the group docker."""
    argv = [str(project / "scripts/setup.sh")]
    if os.geteuid() == 0:
        argv = ["setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups", *argv]
    elif shell.run(["sudo", "-n", "true"], check=False).returncode == 0:
        pytest.skip("this user may become root")
    env = {"PATH": os.environ["PATH"], "HOME": str(project), "LC_ALL": "C"}
    return shell.run(argv, cwd=project, env=env, check=False, timeout=300)


def test_an_ordinary_user_gets_the_kit_and_one_line_about_what_needs_root(project: Path) -> None:
    packages = project / "scripts/system-packages.txt"
    text = packages.read_text()
    packages.write_text(f"{text}no-such-program  no-such-package\n")
    done = _set_up(project)
    assert done.returncode == 0, done.stderr
    assert shell.run([str(project / ".venv/bin/kit")]).stdout == "made"
    about_root = [line for line in done.stderr.splitlines() if "root" in line]
    assert len(about_root) == 1
    assert "as root: apt-get install " in about_root[0]
    assert "no-such-package" in about_root[0]
    assert "engine" not in done.stderr
    assert "docker" not in done.stderr
    assert done.stderr.splitlines()[-1] == "setup: done: .venv/bin/kit"

    packages.write_text("git  git\n")
    done = _set_up(project)
    assert done.returncode == 0, done.stderr
    assert "root" not in done.stderr
    assert "up to date" in done.stderr


def test_without_a_python_that_has_venv_the_error_says_what_to_install(project: Path) -> None:
    programs = project / "programs"
    programs.mkdir()
    for name in ("bash", "cat", "sort", "sha256sum", "id", "grep", "git", "dirname", "env", "setpriv"):
        found = shell.which(name)
        assert found is not None
        (programs / name).symlink_to(found)
    (project / "scripts/system-packages.txt").write_text("git  git\n")
    argv = [str(project / "scripts/setup.sh")]
    if os.geteuid() == 0:
        argv = ["setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups", *argv]
    done = shell.run(argv, cwd=project, env={"PATH": str(programs)}, check=False, timeout=60)
    assert done.returncode == 4
    assert "no Python 3.11 or newer with venv; as root: apt-get install python3 python3-venv" in done.stderr


def test_an_engine_starts_although_its_old_number_is_another_process_now(tmp_path: Path) -> None:
    """dockerd itself refuses: "pid file found, ensure docker is not running"."""
    text = (REPO / "scripts" / "engine.sh").read_text()
    for name, value in (("PIDFILE", "pid"), ("LOG", "log"), ("SOCKET", "socket")):
        text = re.sub(rf"readonly {name}=.*", f"readonly {name}={tmp_path / value}", text)
    text = text.replace("/run/systemd/system", str(tmp_path / "no-systemd")).replace("EUID", "KIT_TEST_UID")
    (tmp_path / "engine.sh").write_text(text)
    (tmp_path / "pid").write_text(f"{os.getpid()}\n")
    programs = {
        "dockerd": f"[ ! -e {tmp_path}/pid ] || exit 1; echo $$ >{tmp_path}/pid; touch {tmp_path}/up",
        "curl": f"[ -e {tmp_path}/up ]",
    }
    for name, lines in programs.items():
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{lines}\n")
        path.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "KIT_TEST_UID": "0"}
    done = shell.run(["bash", str(tmp_path / "engine.sh"), "up"], env=env, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    assert "a Docker Engine answers now" in done.stderr
