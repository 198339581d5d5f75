"""Waits until all nodes of the job are in the Ray cluster at RAY_ADDRESS.

    ray_join.py SECONDS

KIT_ROLES_FILE names the nodes. Exit code: 0; 74 where some are missing, which are then named.
"""

import json
import os
import sys
import time
from pathlib import Path

import ray

NOT_READY = 74
RAYS = ("ray-head", "ray-worker")


def main() -> int:
    """The exit code."""
    seconds = float(sys.argv[1])
    roles = json.loads(Path(os.environ["KIT_ROLES_FILE"]).read_text(encoding="utf-8"))
    wanted = [node for role in RAYS if role in roles for node in roles[role]["nodes"]]
    end = time.monotonic() + seconds
    ray.init(log_to_driver=False, logging_level="ERROR")
    while True:
        there = {node["NodeName"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
        missing = [node for node in wanted if node not in there]
        if not missing:
            break
        if time.monotonic() > end:
            print(
                f"error: {len(missing)} of {len(wanted)} nodes did not join the Ray cluster within {seconds:.0f} s: "
                f"{', '.join(missing)}; look at their logs in logs/ray-worker/. More time: [env] RAY_START_TIMEOUT_S",
                file=sys.stderr,
            )
            return NOT_READY
        time.sleep(0.2)
    for node in wanted:
        has = there[node]
        print(f"Ray has {node}: {has.get('CPU', 0):.0f} CPUs, {has.get('GPU', 0):.0f} GPUs", flush=True)
    ray.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
