"""Arguments and environments that Linux would refuse on the nodes are refused at submit."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from kit.errors import ConfigError
from kit.planning import rank_files
from kit.schema.job import MOST_BYTES_OF_A_STRING
from tests.support import plan_of, write_job

JOB = 'name = "a"\nlauncher = "ddp"\nscript = "train.py"\n'


def starts(words: list[str], env: dict[str, str]) -> bool:
    """Whether this machine's Linux starts a program with these."""
    try:
        pid = os.posix_spawn("/bin/true", words, env)
    except OSError as error:
        assert error.errno == errno.E2BIG
        return False
    os.waitpid(pid, 0)
    return True


def test_the_limits_are_linuxs_own() -> None:
    longest = "x" * (MOST_BYTES_OF_A_STRING - 1)
    rank_files.check_size(["/bin/true", longest], {}, file="job.toml")
    assert starts(["/bin/true", longest], {})
    with pytest.raises(ConfigError, match="args: 131,073 bytes are more than Linux passes in one string"):
        rank_files.check_size(["/bin/true", f"{longest}x"], {}, file="job.toml")
    assert not starts(["/bin/true", f"{longest}x"], {})


def test_what_is_allowed_leaves_room_for_slurms_variables() -> None:
    most = rank_files.MOST_BYTES - rank_files.OTHERS_BYTES
    env = {f"A{n:04}": "x" * (1024 - 8 - len("A0000=") - 1) for n in range(most // 1024)}
    rank_files.check_size([], env, file="job.toml")
    slurms = {f"SLURM_{n}": "x" * 1000 for n in range(200)}
    assert starts(["/bin/true"], {**env, **slurms})


@pytest.mark.parametrize(
    ("lines", "key"),
    [
        ("[env]\n" + "".join(f"V{n} = '{'x' * 1000}'\n" for n in range(3000)), "env"),
        (f"args = {['y' * 1000] * 3000}\n", "args"),
    ],
)
def test_a_job_that_no_node_could_start_is_refused(tmp_path: Path, lines: str, key: str) -> None:
    """3,000 variables of 1 KB were taken, and ended with 126 on the nodes."""
    with pytest.raises(ConfigError) as caught:
        plan_of(write_job(tmp_path, JOB + lines))
    (fault,) = caught.value.faults
    assert fault.key == key
    assert "Linux passes 1.84 MB beside those of Slurm" in fault.problem
    assert fault.file.endswith("job.toml")
