"""Steps of roles that differ in a few values: written once, with a table; bash makes of it what the plan says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from kit import shell
from kit.planning import steps
from kit.planning.plan import Plan
from kit.schema.own_batch_script import MARK
from tests.golden.cases import CASES, planned
from tests.support import plan_of, write_job

BY_NAME = {case.name: case for case in CASES}
# Each array of each step as `name<NUL>number of words<NUL>words`.
PRINT = r"""
for ((step = 0; step < KIT_STEPS; step++)); do
    for array in "KIT_STEP_${step}" "KIT_STEP_${step}_ENV" "KIT_STEP_${step}_ARGV"; do
        [[ "$(declare -p "${array}")" == "declare -"[aA]r* ]] || exit 9
        declare -n of="${array}"
        words=("${of[@]}")
        if [[ "${array}" == *[0-9] ]]; then
            words=()
            for key in "${!of[@]}"; do words+=("${key}=${of[${key}]}"); done
        fi
        printf '%s\0' "${array}" "${#words[@]}" "${words[@]}"
        declare +n of
    done
done
"""
GROUP = """
command = ["work", "it's", "a b"]
ports = ["http"]
ready = { http = "http", path = "/a" }
policy = "replica"
"""


def arrays(plan: Plan) -> dict[str, list[str]]:
    """Name -> words of the steps' arrays, as bash has them, read-only, after the head of the batch script."""
    head = plan.text_of("batch.sh").partition(MARK)[0]
    words = iter(shell.run(["bash"], input=f"set -euo pipefail\n{head}\n{PRINT}").stdout.split("\0"))
    return {name: [next(words) for _ in range(int(next(words)))] for name in words if name}


def expected(plan: Plan) -> dict[str, list[str]]:
    found = {}
    for number, role in enumerate(plan.roles):
        found[f"KIT_STEP_{number}"] = [f"{name}={value}" for name, value in role.facts().items()]
        found[f"KIT_STEP_{number}_ENV"] = role.env()
        found[f"KIT_STEP_{number}_ARGV"] = steps.role_step(plan.decisions, role)
    return found


def sorted_facts(found: dict[str, list[str]]) -> dict[str, list[str]]:
    """Bash gives the keys of a table in an order of its own."""
    return {name: sorted(words) if name[-1].isdigit() else words for name, words in found.items()}


@pytest.mark.parametrize("case", ["local-bare", "local-roles", "local-ray", "infiniband-prime-rl"])
def test_steps_of_the_golden_cases(case: str) -> None:
    plan = planned(BY_NAME[case])
    assert sorted_facts(arrays(plan)) == sorted_facts(expected(plan))


def with_groups(folder: Path, names: Sequence[str]) -> Plan:
    """A job with a service, and a role of the same program for each name."""
    text = (
        'name = "x"\nlauncher = "roles"\nimage = "train-cpu"\n[roles.first]\ncommand = ["serve"]\npolicy = "service"\n'
    )
    text += "".join(f"[roles.{name}]\nshares = 'first'\ngpus = [{at}]\n{GROUP}" for at, name in enumerate(names))
    plan = plan_of(write_job(folder, text), cluster="infiniband")
    assert sorted_facts(arrays(plan)) == sorted_facts(expected(plan))
    return plan


def test_roles_of_the_same_program_are_a_group_and_one_of_another_is_not(tmp_path: Path) -> None:
    plan = with_groups(tmp_path, ["a-b", "c", "d-e-f"])
    assert [(group.number, group.last) for group in steps.step_groups(plan.decisions)] == [(0, 0), (1, 3)]


def test_one_more_group_is_one_more_line(tmp_path: Path) -> None:
    few, many = (with_groups(tmp_path, [f"g{i}" for i in range(count)]).text_of("batch.sh") for count in (3, 8))
    assert many.count("\n") - few.count("\n") == 5
