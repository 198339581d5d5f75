"""A storm of faults over a job of replica groups, under a seed; then what was seen, beside a run that nobody disturbed.

    python -m tests.soak_diloco --faults 30 --seed 7

Groups (number 0 too), all groups of a node and the lighthouse are killed or stopped at random. The job must end by itself, with
the same parameters in all groups, no outer step done twice, a loss within 3 % of the undisturbed run's, and nothing left behind.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
from pathlib import Path

from tests.cluster.lab import Lab
from tests.cluster.storm import Outcome, Storm, outcome
from tests.soak import laboratory
from tests.support import REPO

GROUPS = 4
MODEL = ["--layers", "2", "--dim", "32", "--heads", "2", "--context", "32", "--batch-size", "16"]
# A loss may differ by so much: groups that are away average nothing, and seeds alone make half of it.
LOSS_BOUND = 0.03


def main() -> int:
    """0 when all held."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--faults", type=int, default=30)
    parser.add_argument("--steps", type=int, default=3000, help="inner steps; a job that ends early gets fewer faults")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10_000))
    asked = parser.parse_args()
    print(f"{asked.faults} faults over {asked.steps} inner steps of {GROUPS} groups, seed {asked.seed}", flush=True)
    with laboratory() as lab:
        shutil.copy(REPO / "examples" / "diloco" / "job.toml", lab.project / "job.toml")
        calm_run = lab.submit(*options(asked.steps))
        calm_job = lab.wait_end(calm_run, seconds=3600)
        calm = outcome(calm_run, GROUPS)
        print(f"undisturbed: {calm_job['JobState']}, loss {calm.test_loss:.4f}, {calm.seconds:.1f} s", flush=True)
        run = lab.submit(*options(asked.steps))
        storm = Storm(lab, run, random.Random(asked.seed), GROUPS)
        storm.blow(asked.faults, pause=(0.5, 6))
        job = lab.wait_end(run, seconds=3600)
        print("\n".join(f"{number:>4}  {what}" for number, what in enumerate(storm.done, start=1)))
        return report(lab, run, calm, state=job["JobState"])


def options(steps: int) -> list[str]:
    args = json.dumps(["--steps", str(steps), *MODEL])
    words = (
        f"args={args}",
        "seed=7",
        "checkpoint.every=1",
        "diloco.timeout=10",
        "diloco.restarts=100",
        "resources.time=60",
    )
    return [word for text in words for word in ("--set", text)]


def report(lab: Lab, run: Path, calm: Outcome, *, state: str) -> int:
    """Print what was seen; 1 when something did not hold."""
    seen = outcome(run, GROUPS)
    wrong = [*seen.wrong, *(f"left behind: {one}" for one in lab.settled(run))]
    if state != "COMPLETED":
        wrong.append(f"the job ended as {state}")
    difference = seen.test_loss / calm.test_loss - 1
    if not abs(difference) <= LOSS_BOUND:
        wrong.append(f"the loss is {difference:+.1%} from the undisturbed run's")
    print(f"disturbed: {state}, loss {seen.test_loss:.4f} ({difference:+.2%}), {seen.seconds:.1f} s")
    print(f"{seen.outer_steps} outer steps, each the average of {seen.averaged:.0%} of the groups")
    # The ceiling: survivors never wait, so that the steps take as long as if nobody had been disturbed.
    print(f"step efficiency: {calm.seconds / seen.seconds:.0%} of the ceiling")
    print("\n".join(f"WRONG: {one}" for one in wrong) or "all held")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
