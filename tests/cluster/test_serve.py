"""`kit serve` beside a job on a real Slurm: fifty readers follow it to its end, and with a bad token there is nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import requests

from tests.cluster.lab import TIMEOUT_S, Lab

pytest.importorskip("uvicorn", reason="kit serve: pip install 'slurm-kit[serve]'")
pytest.importorskip("vl_convert", reason="vl-convert-python is not installed: pip install 'slurm-kit[report]'")
pytestmark = pytest.mark.cluster

READERS, STEPS = 50, 8
# It waits for its readers, then reports a step a second.
PROGRAM = f"""\
import json, os, pathlib, time
run = pathlib.Path(os.environ["KIT_RUN_DIR"])
while not (run / "go").exists():
    time.sleep(0.1)
for step in range(1, {STEPS + 1}):
    with open(run / "metrics.jsonl", "a") as file:
        file.write(json.dumps({{"kind": "step", "step": step, "loss": 1 / step}}) + "\\n")
    time.sleep(1)
"""
JOB = """\
script = "program.py"
shape = "srun"
python = "/usr/bin/python3"
[resources]
nodes = 1
ranks_per_node = 1
[preflight]
free_disk_gb = 0
"""


@pytest.mark.slow
def test_fifty_readers_follow_a_job_to_its_end(lab: Lab) -> None:
    """All are told of changes while it lives; each then reads its last step and its end. A bad token gets 404, whatever it asks
    for."""
    lab.write(JOB, PROGRAM)
    run = lab.submit("--no-container")
    argv = [sys.executable, "-m", "kit", "serve", "--runs", str(run.parent)]
    env = {**os.environ, **lab.env}
    with subprocess.Popen(
        argv, cwd=lab.project, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().strip()
            lab.wait_state(run, "RUNNING")
            heard = asyncio.run(_follow(url, run))
            assert min(heard) >= 2, heard
            for page in (_read(url, run), *_every(url, run)):
                assert page == ("COMPLETED", [STEPS, 1 / STEPS])
            _nothing_for_others(url, run)
        finally:
            (run / "go").touch()
            server.send_signal(signal.SIGTERM)
    lab.wait_end(run)


async def _follow(url: str, run: Path) -> list[int]:
    """For each reader, the number of changes that it was told of until the run ended."""
    parts = urlsplit(url)
    heard, here, ended = [0] * READERS, asyncio.Semaphore(0), asyncio.Event()

    async def reader(number: int) -> None:
        source, sink = await asyncio.open_connection(parts.hostname, parts.port, limit=1 << 24)
        sink.write(f"GET {parts.path}events?page=run/{run.name} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        while not ended.is_set():
            try:
                line = await asyncio.wait_for(source.readline(), 1)
            except TimeoutError:
                continue
            assert line, "the server has hung up"
            if line.startswith(b"retry"):
                here.release()
            heard[number] += line.startswith(b"event: changed")
        sink.close()

    readers = [asyncio.create_task(reader(number)) for number in range(READERS)]
    for _ in readers:
        await asyncio.wait_for(here.acquire(), TIMEOUT_S)
    (run / "go").touch()
    until = time.monotonic() + TIMEOUT_S
    live = set()
    while True:
        state, last = await asyncio.to_thread(_read, url, run)
        if state == "COMPLETED" and last == [STEPS, 1 / STEPS]:
            break
        if last:
            live.add(last[0])
        assert time.monotonic() < until, (state, last)
        await asyncio.sleep(0.5)
    ended.set()
    await asyncio.gather(*readers)
    assert live, "no step was on the page while the run lived"
    return heard


def _read(url: str, run: Path) -> tuple[str, list[float]]:
    """The state and the last (step, loss) that a page has."""
    answer = requests.get(f"{url}runs/{run.name}/report.json", timeout=TIMEOUT_S)
    one = answer.json()["runs"][0]
    return one["facts"]["state"], (one["loss"] or [[]])[-1]


def _every(url: str, run: Path) -> list[tuple[str, list[float]]]:
    """All readers at once."""

    async def ask() -> list[tuple[str, list[float]]]:
        return await asyncio.gather(*(asyncio.to_thread(_read, url, run) for _ in range(READERS)))

    return asyncio.run(ask())


def _nothing_for_others(url: str, run: Path) -> None:
    token = urlsplit(url).path.strip("/")
    base = url.removesuffix(f"{token}/")
    for bad in ("", token[:-1], token[::-1], "x" * len(token)):
        for path in ("", f"runs/{run.name}", f"runs/{run.name}/report.json", "metrics", f"events?page=run/{run.name}"):
            answer = requests.get(f"{base}{bad}/{path}", timeout=60)
            assert answer.status_code == 404, (bad, path)
            assert run.name not in answer.text
