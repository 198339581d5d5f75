"""Starts prime-rl's router, the one address of all inference servers.

    python router.py CONFIGS COPIES

CONFIGS: the folder of the servers' option files, which hold the router's options too. COPIES: servers per node.
"""

import os
import sys
import tomllib
from pathlib import Path


def servers(role: str, copies: int) -> list[str]:
    """The addresses of a role's servers."""
    first = int(os.environ[f"KIT_ROLE_{role}_PORT_HTTP"])
    nodes = os.environ[f"KIT_ROLE_{role}_NODES"].split()
    return [f"http://{node}:{first + copy}" for node in nodes for copy in range(copies)]


def main() -> None:
    """Replace this process with the router."""
    folder, copies = Path(sys.argv[1]), int(sys.argv[2])
    apart = "KIT_ROLE_PREFILL_NODES" in os.environ
    file = folder / ("decode.toml" if apart else "inference.toml")
    policy = tomllib.loads(file.read_text(encoding="utf-8")).get("router", {}).get("policy", "consistent_hash")
    # All requests of one rollout go to one copy, which has the beginning of the rollout in its cache.
    argv = ["vllm-router", "--policy", policy, "--host", "0.0.0.0", "--port", os.environ["KIT_ROLE_ROUTER_PORT_HTTP"]]
    argv += ["--request-id-headers", "x-session-id", "--prometheus-port", os.environ["KIT_ROLE_ROUTER_PORT_METRICS"]]
    argv += ["--worker-startup-timeout-secs", "4200"]
    if apart:
        argv += ["--vllm-pd-disaggregation"]
        argv += [word for url in servers("PREFILL", copies) for word in ("--prefill", url)]
        argv += [word for url in servers("DECODE", copies) for word in ("--decode", url)]
    else:
        argv += ["--worker-urls", *servers("INFERENCE", copies)]
    os.execvp(argv[0], argv)


if __name__ == "__main__":
    main()
