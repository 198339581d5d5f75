"""Starts prime-rl's inference servers of one node: one for each copy of the model, each with its own GPUs.

    python servers.py CONFIG COPIES REPLICAS

COPIES: copies per node. REPLICAS: sets of the role's nodes; with expert parallelism the copies of a set share their experts.
The servers listen at the role's port and the ports after it. When one server ends, all end.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROLE = os.environ["KIT_ROLE"].upper().replace("-", "_")


def port(name: str) -> int:
    """The role's port of this name."""
    return int(os.environ[f"KIT_ROLE_{ROLE}_PORT_{name}"])


def words(vllm: dict[str, Any], copy: int, copies: int, replicas: int) -> list[str]:
    """The arguments of one server: its port, and its rank among the servers that share experts with it."""
    nodes, node = os.environ[f"KIT_ROLE_{ROLE}_NODES"].split(), int(os.environ["NODE_RANK"])
    in_set = len(nodes) // replicas
    together = in_set * copies if vllm.get("enable_expert_parallel") else 1
    found = ["--router", "None", "--server.host", "0.0.0.0", "--server.port", str(port("HTTP") + copy)]
    found += ["--vllm.data-parallel-size", str(together)]
    found += ["--vllm.data-parallel-size-local", "1", "--vllm.api-server-count", "1"]
    # vLLM refuses these arguments for a single server.
    if together > 1:
        found += ["--vllm.data-parallel-rpc-port", str(port("RPC"))]
        found += ["--vllm.data-parallel-rank", str(node % in_set * copies + copy)]
        found += ["--vllm.data-parallel-address", nodes[node - node % in_set]]
    return found


def environment(config: dict[str, Any], copy: int, folder: str) -> dict[str, str]:
    """A server's environment: its GPUs, a folder for its sockets, and the address where it hands over prefilled prompts."""
    found = {**os.environ, "VLLM_RPC_BASE_PATH": folder}
    width = config.get("vllm", {}).get("tensor_parallel_size", 1)
    if gpus := [gpu for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]:
        found["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[copy * width : (copy + 1) * width])
    if config.get("use_pd_kv_transfer"):
        address = os.environ[f"KIT_ROLE_{ROLE}_NODES"].split()[int(os.environ["NODE_RANK"])]
        found["VLLM_NIXL_SIDE_CHANNEL_HOST"] = address
        found["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(port("TRANSFER") + copy)
    return found


def main() -> int:
    """Serve until TERM, or until a server ends. Returns that server's exit code."""
    file, copies, replicas = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    config = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    servers: list[subprocess.Popen[bytes]] = []
    folders: list[str] = []
    try:
        for copy in range(copies):
            # The path of a socket has at most 107 bytes, so these folders cannot be in the run folder.
            folders.append(tempfile.mkdtemp(prefix="vllm-", dir="/tmp"))
            argv = ["inference", "@", file, *words(config.get("vllm", {}), copy, copies, replicas)]
            servers.append(subprocess.Popen(argv, env=environment(config, copy, folders[-1])))
        code = os.waitstatus_to_exitcode(os.wait()[1])
        return code if code >= 0 else 128 - code
    finally:
        for server in servers:
            server.terminate()
        for server in servers:
            server.wait()
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
