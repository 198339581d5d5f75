"""`kit port`, `kit notebook`, `kit code`: a port of a job's node, from here and from a laptop over ssh."""

from __future__ import annotations

import contextlib
import http.client
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit import shell
from kit.slurm.embedded import EmbeddedCluster
from tests.cluster.conftest import short_folder
from tests.cluster.lab import TIMEOUT_S
from tests.cluster.ssh_lab import Far, far_lab, python_for_users

pytestmark = [pytest.mark.cluster, pytest.mark.root]

# Every byte there is, and more of them than a line or a pipe holds.
SERVER = """
import http.server, os, time
class Answers(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[::-1])
if os.environ["RANK"] != "0":
    time.sleep(600)
http.server.ThreadingHTTPServer(("127.0.0.1", 18423), Answers).serve_forever()
"""


@pytest.fixture(scope="module")
def far(cluster: EmbeddedCluster) -> Iterator[Far]:
    with short_folder() as folder, far_lab(cluster, folder) as lab:
        yield lab


@contextlib.contextmanager
def opened(far: Far, *argv: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A command that serves: its URL, and itself; it gets a Ctrl-C at the end."""
    words = [sys.executable, "-m", "kit", *argv]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, cwd=far.project, env=far.env, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            url = process.stdout.readline().strip()
            assert url, process.stderr.read()
            yield url, process
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=60)


def running(far: Far, name: str, text: str, *options: str) -> str:
    (far.project / f"{name}.py").write_text(text)
    run = far.submit("--set", f"script={name}.py", *options)
    far.wait(run, "RUNNING")
    return run


def test_a_port_of_a_job_leads_here_byte_for_byte(far: Far) -> None:
    run = running(far, "server", SERVER)
    sent = bytes(range(256)) * 2048
    with opened(far, "port", run, "18423", "--local", "0") as (url, process):
        number = int(url.rpartition(":")[2])
        until = time.monotonic() + TIMEOUT_S
        while True:
            with contextlib.suppress(OSError, http.client.HTTPException):
                asked = urllib.request.Request(f"http://127.0.0.1:{number}/", data=sent, method="POST")
                assert urllib.request.urlopen(asked, timeout=60).read() == sent[::-1]
                break
            assert time.monotonic() < until
        far.kit("cancel", run)
        far.kit("cancel", run)
        # With the job it ends by itself.
        assert process.wait(timeout=TIMEOUT_S) == 0
    with socket.socket() as tried:
        assert tried.connect_ex(("127.0.0.1", number)) != 0


def test_a_port_that_is_none_is_refused(far: Far) -> None:
    run = running(far, "sleeps", "import time; time.sleep(600)")
    for given, said in (("0", "not a port"), ("ssh", "not a port"), ("80:nobody", "neither a role nor a node")):
        done = far.kit("port", run, given, check=False)
        assert done.returncode != 0
        assert said in done.stderr
    done = far.kit("code", run, check=False)
    assert done.returncode != 0
    assert "there is no VS Code server in the job's image" in done.stderr
    far.kit("cancel", run)


@pytest.mark.slow
def test_a_notebook_lets_in_who_has_its_token_and_ends_with_its_command(far: Far) -> None:
    place = far.folder / "jupyter"
    # Without pip: Debian has that of its own Python in a package apart.
    shell.run([python_for_users(), "-m", "venv", "--without-pip", str(place)])
    install = [sys.executable, "-m", "pip", "--python", str(place), "install", "--quiet", "jupyter_server"]
    if shell.run(install, check=False, timeout=TIMEOUT_S).returncode != 0:
        pytest.skip("jupyter_server cannot be installed here")
    run = running(far, "sleeps", "import time; time.sleep(600)", "--set", f'setup=["source {place}/bin/activate"]')
    with opened(far, "notebook", run) as (url, _):
        found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/\?token=([\w-]{32})", url)
        assert found, url
        base = f"http://127.0.0.1:{found[1]}/api/status"
        asked = urllib.request.Request(base, headers={"Authorization": f"token {found[2]}"})
        assert urllib.request.urlopen(asked, timeout=60).status == 200
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(base, timeout=60)
        words = b"\n".join(_command_lines())
        assert found[2].encode() not in words
        assert b"jupyter-server" in words
    until = time.monotonic() + TIMEOUT_S
    while any(b"jupyter-server" in line for line in _command_lines()):
        assert time.monotonic() < until
        time.sleep(0.5)
    assert far.listed()[run]["state"] == "RUNNING"
    far.kit("cancel", run)


def _command_lines() -> list[bytes]:
    """Those of all processes; one may end while it is read."""
    lines = []
    for proc in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            lines.append((proc / "cmdline").read_bytes())
    return lines
