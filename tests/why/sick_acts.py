"""Breaks a part under a job of the cases: a disk, a link, a clock, a slurmstepd."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

from kit import shell
from tests.cluster.lab import Lab, job_id, slurmstepds
from tests.sick.ward import wrong_clock
from tests.why.acts import Acts
from tests.why.case import Case

_DISK_BYTES = 4 << 20


class SickActs(Acts):
    """The same, and what is done to nodes."""

    def stop_disk(self, lab: Lab, case: Case) -> Path:
        """Rank 1 reads from a FUSE mount of its node, whose daemon stops."""
        files, image, data = (lab.project / name for name in ("files", "data.sqsh", "data"))
        files.mkdir()
        data.mkdir()
        (files / "train.bin").write_bytes(os.urandom(_DISK_BYTES))
        shell.run(["mksquashfs", str(files), str(image), "-noD", "-noI", "-noX", "-noF", "-quiet"])
        node = lab.cluster.nodes[0].name
        lab.inside(node, "squashfuse", "-o", "allow_other", str(image), str(data))
        daemons = [p.pid for p in lab.node_processes(node) if "squashfuse" in p.argv[0] and str(image) in p.argv]
        assert daemons, "the disk is mounted"
        try:
            run = self.up(lab, case)
            lab.wait((run / "fault-ready").exists, run)
            _signal(daemons, signal.SIGSTOP)
            (run / "fault-go").touch()
            lab.wait((run / "state/stall-1/complete").exists, run, seconds=120)
        finally:
            _signal(daemons, signal.SIGCONT)
            self.later.append(lambda: lab.inside(node, "umount", "--lazy", str(data)))
        return run

    def cut_link(self, lab: Lab, case: Case) -> Path:
        """The second node's network goes once the ranks do their steps."""
        run = self.up(lab, case)
        lab.wait((run / "fault-ready").exists, run)
        node = lab.cluster.nodes[1].name
        lab.inside(node, "ip", "link", "set", "eth0", "down")
        self.later.append(lambda: lab.inside(node, "ip", "link", "set", "eth0", "up"))
        lab.wait((run / "state/stall-1/complete").exists, run, seconds=120)
        return run

    def turn_clock(self, lab: Lab, case: Case) -> Path:
        """The collector of the second node reads a clock that is five minutes ahead."""
        run = self.submit(lab, case, "--set", 'slurm.extra=["--hold"]')
        node = lab.cluster.nodes[1].name
        with wrong_clock(lab, run, node, lab.project / "rank_progress.sh"):
            lab.slurm("scontrol", "release", str(job_id(run)))
            lab.wait(lambda: "up" in _log(run), run)
            (run / "clock-wrong").touch()
            told = re.compile(r"wrong clock|ahead of")
            lab.wait(lambda: told.search(lab.kit("why", run.name).stdout), run, seconds=60)
        return run

    def lose_server(self, lab: Lab, case: Case) -> Path:
        """Until the role that asks it has stood still."""
        run = self.submit(lab, case)
        lab.wait((run / "state/stall-1/complete").exists, run, seconds=120)
        return run

    def kill_stepd(self, lab: Lab, case: Case) -> Path:
        """That of the ranks, as the kernel does where memory ends."""
        run = self.up(lab, case)
        _signal(slurmstepds(lab, run, "train"), signal.SIGKILL)
        return run


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        os.kill(pid, number)


def _log(run: Path) -> str:
    path = run / "logs/rank-0.log"
    return path.read_text(encoding="utf-8") if path.exists() else ""
