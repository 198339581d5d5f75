"""Serves the environments of prime-rl's orchestrator, or of its evals program: one env-server for each source.

    python environments.py OPTIONS.toml FOLDER

The address is 127.0.0.1. The port is the first port plus the source's place among all sources, with training sources first. A
source that names its own address is served elsewhere. FOLDER gets the options of each server. When one server ends, all end.
"""

import json
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

config = tomllib.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
folder = Path(sys.argv[2])
first = int(os.environ["KIT_ROLE_ENVIRONMENTS_PORT_FIRST"])


def options(source: dict[str, Any], port: int) -> dict[str, Any]:
    """An env-server's options, as prime-rl's own launcher makes them from a source."""
    serve = {**source.get("serve", {}), "address": f"tcp://127.0.0.1:{port}"}
    log = config.get("log", {})
    shown = {"level": log["vf_level"]} if "vf_level" in log else {}
    return {
        "env": source.get("env", {}),
        "serve": serve,
        "log": {**shown, "json_logging": log.get("json_logging", False)},
    }


def main() -> int:
    """Serve until TERM, or until a server ends. Returns that server's exit code."""
    folder.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    servers = []
    try:
        sources = [source for kind in ("train", "eval") for source in config.get(kind, {}).get("source", [])]
        for place, source in enumerate(sources):
            if "address" not in source.get("serve", {}):
                file = folder / f"{place}.json"
                file.write_text(json.dumps(options(source, first + place), indent=1), encoding="utf-8")
                servers.append(subprocess.Popen(["env-server", "@", str(file)]))
        if not servers:
            signal.pause()
        code = os.waitstatus_to_exitcode(os.wait()[1])
        return code if code >= 0 else 128 - code
    finally:
        for server in servers:
            server.terminate()


if __name__ == "__main__":
    sys.exit(main())
