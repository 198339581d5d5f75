"""Tests of tests/kit_server.py: a fork is to a test what a start of `kit` is."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from kit import shell
from tests import kit_server
from tests.support import write_job


def test_a_fork_says_what_a_start_says(tmp_path: Path) -> None:
    write_job(tmp_path, "")
    for number, words in enumerate((["runs", "--json"], ["no-such-command"])):
        env = {**os.environ, "XDG_DATA_HOME": str(tmp_path / str(number))}
        start = shell.run([sys.executable, "-m", "kit", *words], cwd=tmp_path, env=env, check=False)
        fork = kit_server.run(words, cwd=tmp_path, env=env, timeout=120)
        assert fork == (start.returncode, start.stdout, start.stderr)


def test_what_the_time_limit_ends_is_killed(tmp_path: Path) -> None:
    assert kit_server.run(["runs"], cwd=tmp_path, env=os.environ, timeout=0) is None
    done = kit_server.run(["--version"], cwd=tmp_path, env=os.environ, timeout=120)
    assert done is not None
    assert done[0] == 0


def test_what_python_reads_when_it_starts_needs_a_start() -> None:
    assert kit_server.forks({**os.environ, "HOME": "/nowhere", "KIT_TEST_STARTS": ""})
    assert not kit_server.forks({**os.environ, "LC_ALL": "other", "KIT_TEST_STARTS": ""})
    assert not kit_server.forks({**os.environ, "KIT_TEST_STARTS": "1"})
