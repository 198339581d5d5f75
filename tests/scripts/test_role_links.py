"""lib/role_links.sh: the names under which the log of a role's node is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit import shell
from tests.support import REPO


@pytest.mark.parametrize(
    ("role", "node", "names"),
    [
        ("trainer", 1, ["latest_train_node_rank_1.log", "latest_trainer_node_rank_1.log"]),
        ("inference", 0, ["latest_infer_node_rank_0.log", "latest_inference_node_rank_0.log"]),
        ("orchestrator", 0, ["latest_orchestrator.log", "latest_orchestrator_node_rank_0.log"]),
        ("judge", 2, ["latest_judge_node_rank_2.log"]),
    ],
)
def test_names_of_a_roles_log(role: str, node: int, names: list[str], tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    (logs / role).mkdir(parents=True)
    (logs / role / "rank-4.log").write_text("said\n")
    script = f"set -euo pipefail; source {REPO}/templates/parts/job_roles/lib/role_links.sh; role_links::make"
    env = {"KIT_RUN_DIR": str(tmp_path), "KIT_ROLE": role, "NODE_RANK": str(node), "RANK": "4", "PATH": "/usr/bin:/bin"}
    shell.run(["bash", "-c", script], env=env)
    assert sorted(path.name for path in logs.iterdir() if path.is_symlink()) == names
    assert all((logs / name).read_text() == "said\n" for name in names)
    assert not [*logs.glob("*.new")]
