"""kit serve: who is let in, what is served, fifty readers of a run that continues, and its pages in a real browser."""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import requests

from kit import shell
from tests import browser
from tests.unit.test_reports import BEGAN, make
from tests.unit.test_sweep_results import write_sweep

pytest.importorskip("uvicorn", reason="kit serve: pip install 'slurm-kit[serve]'")
from starlette.applications import Starlette

from kit.serve.access import Access

pytest.importorskip("vl_convert", reason="vl-convert-python is not installed: pip install 'slurm-kit[report]'")


@contextmanager
def server(folder: Path, *options: str) -> Iterator[str]:
    """The command itself, over the runs in folder/runs; its URL."""
    # Slurm is asked of no cluster: `local` is not up here.
    env = {**os.environ, "XDG_DATA_HOME": str(folder / "data")}
    with (folder / "stderr").open("w") as said:
        argv = [sys.executable, "-m", "kit", "serve", "--runs", "runs", *options]
        process = subprocess.Popen(argv, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=said, text=True)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url, (folder / "stderr").read_text()
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(20) == 143
        finally:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("serve")
    make(folder / "runs" / "gpt-1", 16)
    make(folder / "runs" / "gpt-2", 16)
    (folder / "secret.txt").write_text("not a run")
    write_sweep(
        folder / "runs", [({"args.--lr": lr}, [{"kind": "final", "step": 1, "loss": lr}], 0) for lr in (0.1, 0.2)]
    )
    return folder


@pytest.fixture(scope="module")
def url(project: Path) -> Iterator[str]:
    with server(project) as found:
        yield found


def raw(url: str, lines: str) -> bytes:
    """The answer to a request as it is written; a library would mend it."""
    with socket.create_connection(("127.0.0.1", urlsplit(url).port or 0), timeout=20) as opened:
        opened.sendall(lines.replace("\n", "\r\n").encode())
        answer = b""
        while part := opened.recv(65536):
            answer += part
    return answer


def test_pages(url: str) -> None:
    """The list, a run, a sweep, two runs side by side, the data, the script, the metrics."""
    paths = (
        "",
        "runs/gpt-1",
        "sweeps/digits-1",
        "compare?run=gpt-1&run=gpt-2",
        "vega.js",
        "metrics",
        "runs/gpt-1/report.json",
    )
    found = {path: requests.get(url + path, timeout=60) for path in paths}
    assert {path: answer.status_code for path, answer in found.items()} == dict.fromkeys(paths, 200)
    assert all(f'href="runs/gpt-{n}"' in found[""].text for n in (1, 2))
    assert 'href="sweeps/digits-1"' in found[""].text
    assert "KeyError" in found["runs/gpt-1"].text
    assert "<script>alert" not in found["runs/gpt-1"].text
    assert found["runs/gpt-1/report.json"].json()["title"] == "gpt-1"
    assert all(answer.headers["x-frame-options"] == "DENY" for answer in found.values())
    assert all("server" not in answer.headers for answer in found.values())


def test_metrics_are_openmetrics(url: str) -> None:
    """Read back by the parser of those who wrote the format."""
    from prometheus_client.openmetrics.parser import text_string_to_metric_families

    answer = requests.get(f"{url}metrics", timeout=60)
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    families = {one.name: one for one in text_string_to_metric_families(answer.text)}  # type: ignore[no-untyped-call]
    states = {sample.labels["state"]: sample.value for sample in families["kit_runs"].samples}
    assert states["FAILED"] == 2
    steps = {sample.labels["run"]: sample.value for sample in families["kit_run_step"].samples}
    assert steps["gpt-1"] == 2000


@pytest.mark.parametrize("path", ["", "runs/gpt-1", "metrics", "vega.js", "events?page=list", "nothing"])
def test_with_a_bad_token_nothing(url: str, path: str) -> None:
    """All paths are the same to whoever has no token: none, a shorter one, one with another end, and one in another place."""
    token = urlsplit(url).path.strip("/")
    base = url.removesuffix(f"{token}/")
    tries = [
        "",
        token[:-1],
        token[:-1] + ("a" if token[-1] != "a" else "b"),
        token + "a",
        token.swapcase(),
        "%00",
        "é",
        "%ff",
        "x/" + token,
        "/" + token,
    ]
    for one in tries:
        answer = requests.get(
            f"{base}{one}/{path}", timeout=20, headers={"Authorization": f"Bearer {token}", "Cookie": f"token={token}"}
        )
        assert (answer.status_code, answer.text) == (404, "Not Found"), one
    assert (
        requests.post(f"{base}{token[:-1]}/runs/gpt-1/cancel", headers={"X-Kit": "control"}, timeout=20).status_code
        == 404
    )


def test_a_token_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every path: the comparison is the library's, and nothing is looked up before it."""
    seen: list[tuple[bytes, bytes]] = []
    real = secrets.compare_digest

    def compare(a: bytes, b: bytes) -> bool:
        seen.append((a, b))
        return real(a, b)

    monkeypatch.setattr("secrets.compare_digest", compare)
    app = Access(Starlette(), token="secret")
    for path in ("/", "/secre/x", "/secret2", "//secret"):
        refused = app._refused({"type": "http", "path": path, "method": "GET", "headers": []})
        assert refused is not None
        assert refused.status_code == 404
    assert seen == [(one, b"secret") for one in (b"", b"secre", b"secret2", b"")]


@pytest.mark.parametrize(
    "path",
    [
        "runs/..", "runs/../../secret.txt", "runs/..%2f..%2fsecret.txt", "runs/%2e%2e/%2e%2e/secret.txt",
        "runs/..%5c..%5csecret.txt", "../secret.txt", "..%2fsecret.txt", "//etc/passwd", "%2fetc%2fpasswd",
        "runs/%2fetc%2fpasswd", "runs/gpt",
        "runs/gpt-1%00",
        "runs/gpt-1/report.json/../../../secret.txt", "sweeps/..", "sweeps/gpt-1", "runs/digits-1", "compare?run=../..&run=gpt-1",
        "compare?run=gpt-1", "events?page=run/../..", "events?page=run", "events?page=", "compare?" + "&".join(["run=gpt-1"] * 40),
    ],
)  # fmt: skip
def test_no_path_leads_out(url: str, path: str) -> None:
    """Sent as it stands: a run is named by its whole id, and nothing in the server opens a path that a reader named."""
    answer = raw(url, f"GET {urlsplit(url).path}{path} HTTP/1.1\nHost: 127.0.0.1\nConnection: close\n\n")
    assert re.match(rb"HTTP/1.1 (404|400) ", answer), answer[:200]
    assert b"not a run" not in answer
    assert b"root:" not in answer


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:80",
        "127.0.0.1.evil.example",
        "localhost.evil",
        "169.254.169.254",
        "",
        "a\nHost: 127.0.0.1",
    ],
)
def test_another_name_for_this_machine_is_refused(url: str, host: str) -> None:
    """A site whose name was rebound to 127.0.0.1 has its own name in Host, even were the token known to it."""
    answer = raw(url, f"GET {urlsplit(url).path} HTTP/1.1\nHost: {host}\nConnection: close\n\n")
    assert re.match(rb"HTTP/1.1 (403|400) ", answer), answer[:200]
    assert b"gpt-1" not in answer


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_it_only_reads(url: str, method: str) -> None:
    answer = requests.request(method, f"{url}runs/gpt-1/cancel", headers={"X-Kit": "control"}, timeout=20)
    assert answer.status_code == 405
    assert "--control" in answer.text


def test_control_is_for_pages_of_this_server(project: Path) -> None:
    """A form, a script or an image of another site cannot cancel a run, were the token known to it."""
    with server(project, "--control") as found:
        where = f"http://{urlsplit(found).netloc}"
        mine = {"X-Kit": "control", "Origin": where, "Sec-Fetch-Site": "same-origin"}
        path = f"{found}runs/gpt-1/cancel"
        for wrong in (
            {**mine, "Origin": "http://evil.example"},
            {**mine, "Origin": "null"},
            {**mine, "Origin": where.replace("127.0.0.1", "localhost")},
            {**mine, "Sec-Fetch-Site": "cross-site"},
            {**mine, "Sec-Fetch-Site": "same-site"},
            {"Origin": where, "Content-Type": "application/x-www-form-urlencoded"},
            {**mine, "Host": "evil.example", "Origin": "http://evil.example"},
        ):
            assert requests.post(path, headers=wrong, timeout=20).status_code == 403, wrong
        assert requests.get(path, timeout=20).status_code in {404, 405}
        assert requests.options(path, headers=mine, timeout=20).status_code == 405, "no other site is granted anything"
        answer = requests.post(path, headers=mine, timeout=60)
        assert (answer.status_code, answer.text) == (200, "job 7 has ended already: FAILED")
        answer = requests.post(f"{found}runs/gpt-1/resume", headers=mine, timeout=60)
        assert answer.status_code == 409, "its image is gone"
        assert requests.post(f"{found}runs/..%2f/cancel", headers=mine, timeout=60).status_code in {404, 409}
        assert 'data-action="resume"' in requests.get(f"{found}runs/gpt-1", timeout=60).text
    assert "cancel gpt-1: job 7 has ended already" in (project / "stderr").read_text()


def test_a_unix_socket_is_its_users_alone(project: Path) -> None:
    """Mode 0600, gone at the end; one that a killed server left is taken over, one in use and any other file are not."""
    path = project / "kit.sock"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()
    with server(project, "--socket", "kit.sock") as found:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        target = f"http://localhost{urlsplit(found).path}"
        for token, code in ((target, b"200"), ("http://localhost/wrong/", b"404")):
            with socket.socket(socket.AF_UNIX) as opened:
                opened.connect(str(path))
                opened.sendall(
                    f"GET {urlsplit(token).path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
                )
                assert opened.recv(12).endswith(code)
        done = shell.run(
            [sys.executable, "-m", "kit", "serve", "--socket", "kit.sock"], cwd=project, check=False, timeout=60
        )
        assert (done.returncode, "a server listens there" in done.stderr) == (2, True)
    assert not path.exists()
    path.write_text("mine")
    done = shell.run(
        [sys.executable, "-m", "kit", "serve", "--socket", "kit.sock"], cwd=project, check=False, timeout=60
    )
    assert (done.returncode, path.read_text()) == (2, "mine")
    path.unlink()


def test_only_this_machine_is_listened_on(url: str) -> None:
    port = f":{urlsplit(url).port:04X}"
    listening = [
        line.split()[1]
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
        if line.split()[3] == "0A"
    ]
    assert [one for one in listening if one.endswith(port)] == [f"0100007F{port}"]


def test_without_its_packages_there_is_a_command(tmp_path: Path) -> None:
    code = "import sys\nsys.modules['uvicorn'] = None\nsys.argv = ['kit', 'serve']\nfrom kit.cli import main\nmain()\n"
    done = shell.run([sys.executable, "-c", code], cwd=tmp_path, check=False, timeout=60)
    assert done.returncode == 4
    assert (
        done.stderr
        == "kit: error: kit serve needs uvicorn, which is not installed\n  try: pip install 'slurm-kit[serve]'\n".strip()
    )


def test_fifty_readers_and_a_run_that_goes_on(tmp_path: Path) -> None:
    """All fifty are told of every change within the time of a few looks, read the page anew, and find in it what was reported."""
    run = make(tmp_path / "runs" / "gpt-1", 16)
    with server(tmp_path) as found:
        heard, last = asyncio.run(_readers(found, run, 50, steps=3))
    assert all(number >= 1 for number in heard), heard
    assert last == [[2003, 0.125]] * 50


async def _readers(url: str, run: Path, number: int, *, steps: int) -> tuple[list[int], list[object]]:
    parts = urlsplit(url)
    heard = [0] * number
    here = asyncio.Semaphore(0)
    done = asyncio.Event()

    async def reader(n: int) -> None:
        source, sink = await asyncio.open_connection(parts.hostname, parts.port, limit=1 << 24)
        sink.write(f"GET {parts.path}events?page=run/gpt-1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        while line := await source.readline():
            if line.startswith(b"retry"):
                here.release()
            heard[n] += line.startswith(b"event: changed")
            if done.is_set() and heard[n]:
                break
        sink.close()

    readers = [asyncio.create_task(reader(n)) for n in range(number)]
    for _ in range(number):
        await asyncio.wait_for(here.acquire(), 60)
    for step in range(steps):
        if step == steps - 1:
            done.set()
        with (run / "metrics.jsonl").open("a") as sink:
            sink.write("\n" + json.dumps({"kind": "step", "step": 2001 + step, "loss": 0.5 / 2**step}))
        await asyncio.sleep(2.5)
    await asyncio.wait_for(asyncio.gather(*readers), 120)
    until = time.monotonic() + 60
    while time.monotonic() < until:
        pages = await asyncio.gather(
            *(asyncio.to_thread(requests.get, f"{url}runs/gpt-1/report.json", timeout=60) for _ in range(number))
        )
        last = [page.json()["runs"][0]["loss"][-1] for page in pages]
        if all(one[0] == 2000 + steps for one in last):
            break
        await asyncio.sleep(1)
    return heard, last


@pytest.mark.skipif(browser.PROGRAM is None, reason=browser.NEEDED)
@pytest.mark.parametrize("width", [1280, 390])
def test_in_a_real_browser(tmp_path: Path, width: int) -> None:
    """List, run, sweep and two runs: drawn, no wider than the window, no word on the console, no request to anywhere else."""
    run = make(tmp_path / "runs" / "gpt-1", 16)
    make(tmp_path / "runs" / "gpt-2", 8)
    with server(tmp_path) as url, browser.tab(tmp_path / "profile", url, width=width) as page:
        page.wait("document.getElementById('live').textContent.startsWith('live')")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate("document.querySelectorAll('#rows .spark').length") == 2
        page.evaluate("document.getElementById('filter').focus()")
        page.ask("Input.insertText", text="gpt-2")
        assert page.evaluate("[...document.querySelectorAll('#rows tbody tr')].map((one) => one.hidden)") in (
            [False, True],
            [True, False],
        )
        # By keyboard alone: the link of the only row that is left.
        page.evaluate("document.querySelector('#rows tbody tr:not([hidden]) a').focus()")
        page.press("Enter", 13)
        page.wait("document.title === 'gpt-2'")
        page.ask("Page.navigate", url=f"{url}runs/gpt-1")
        page.wait("document.title === 'gpt-1' && document.documentElement.dataset.drawn === 'all'")
        page.wait("document.getElementById('live').textContent.startsWith('live')")
        # What a reader has done stays when the page changes, and what has not changed is not drawn again.
        page.evaluate(
            "document.querySelector('#what details').open = true;"
            "document.querySelector('[data-chart=heat]').mine = true"
        )
        with (run / "metrics.jsonl").open("a") as sink:
            sink.write("\n" + json.dumps({"kind": "step", "step": 2001, "loss": 0.25}))
        page.wait(
            "specs.loss.data.values[0].xs.at(-1) === 2001"
            " && [...document.querySelectorAll('[data-chart]')].every((one) => one.vega)"
        )
        assert page.evaluate("document.querySelector('#what details').open")
        assert page.evaluate("document.querySelector('[data-chart=heat]').mine")
        drawn = "document.querySelectorAll('[data-chart] :is(canvas, svg.marks)').length"
        assert page.evaluate(drawn) == page.evaluate("document.querySelectorAll('[data-chart]').length") > 5
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.ask("Page.navigate", url=f"{url}compare?run=gpt-1&run=gpt-2")
        page.wait("document.documentElement.dataset.drawn === 'all'")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.complaints == []
        assert {urlsplit(one).netloc for one in page.requests} == {urlsplit(url).netloc}


@pytest.mark.skipif(browser.PROGRAM is None, reason=browser.NEEDED)
def test_a_reader_cancels_in_a_real_browser(tmp_path: Path) -> None:
    """The button asks before it does; the page says what came of it. BEGAN: the made run has ended long since."""
    assert BEGAN
    make(tmp_path / "runs" / "gpt-1", 8)
    with server(tmp_path, "--control") as url, browser.tab(tmp_path / "profile", f"{url}runs/gpt-1") as page:
        page.wait("document.getElementById('live').textContent.startsWith('live')")
        assert page.evaluate("[...document.querySelectorAll('button[data-action]')].map((one) => one.textContent)") == [
            "resume"
        ]
        page.evaluate("window.confirm = (asked) => { window.asked = asked; return true; }")
        page.evaluate("document.querySelector('button[data-action]').click()")
        page.wait("document.getElementById('live').textContent.includes('sqsh')")
        assert page.evaluate("window.asked") == "resume gpt-1?"
