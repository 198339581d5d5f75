"""Programs in place of prime-rl's, which need GPUs, and of torchrun: a .venv that the nodes share.

Each refuses what the real ones would refuse of its command line, and does its part: the server answers, the orchestrator asks all
servers and writes rollouts, the trainer waits for them.
"""

from __future__ import annotations

import sys
from pathlib import Path

_COMMON = """\
import sys, tomllib, time, os
from pathlib import Path

at = sys.argv.index("@")
options = tomllib.loads(Path(sys.argv[at + 1]).read_text())
words = sys.argv[at + 2:]
given = {w.lstrip("-").replace("-", "_"): v for w, v in zip(words[::2], words[1::2], strict=True)}
"""
_INFERENCE = """\
from http.server import BaseHTTPRequestHandler, HTTPServer

class Answer(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

print("serves", options["model"]["name"], options["parallel"], flush=True)
HTTPServer(("", int(given["server.port"])), Answer).serve_forever()
"""
_ORCHESTRATOR = """\
from urllib.request import urlopen

for url in given["client.base_url"].split(","):
    urlopen(url.removesuffix("/v1") + "/health", timeout=20).close()
    print("server answers:", url, flush=True)
made = Path(given["output_dir"]) / "rollouts"
made.mkdir(parents=True, exist_ok=True)
(made / f"of-{options['batch_size']}").touch()
time.sleep(600)
"""
_TRAINER = """\
made = Path(options["output_dir"]) / "run_default" / "rollouts"
while options.get("weight_broadcast") and not any(made.glob("of-*")):
    time.sleep(0.1)
print("trained", options["max_steps"], "steps of", sorted(path.name for path in made.glob("of-*")), flush=True)
"""
_TORCHRUN = """\
import os, subprocess, sys

own = {}
words = sys.argv[1:]
while words[0].startswith("--"):
    name, _, value = words.pop(0).partition("=")
    own[name] = value
count, node = int(own["--nproc-per-node"]), int(own.get("--node-rank", 0))
facts = {"WORLD_SIZE": str(count * int(own["--nnodes"])), "LOCAL_WORLD_SIZE": str(count), "GROUP_RANK": str(node)}
facts |= {"MASTER_ADDR": own.get("--master-addr", ""), "MASTER_PORT": own.get("--master-port", ""), "TORCHELASTIC_RUN_ID": "a"}
ranks = [
    subprocess.Popen(words, env={**os.environ, **facts, "LOCAL_RANK": str(n), "RANK": str(node * count + n)}) for n in range(count)
]
sys.exit(max(rank.wait() for rank in ranks))
"""


def make_environment(project: Path) -> None:
    """The project's .venv, as `python3 -m venv .venv` and pip would make it."""
    bin_, lib = project / ".venv/bin", project / ".venv/lib"
    bin_.mkdir(parents=True)
    (bin_ / "activate").write_text(f'export PATH="{bin_}:$PATH" PYTHONPATH="{lib}" VIRTUAL_ENV="{bin_.parent}"\n')
    (bin_ / "python").symlink_to(sys.executable)
    for name, text in (("inference", _INFERENCE), ("orchestrator", _ORCHESTRATOR)):
        (bin_ / name).write_text(f"#!{sys.executable}\n{_COMMON}{text}")
        (bin_ / name).chmod(0o755)
    modules = {"torch/distributed/run": _TORCHRUN}
    modules |= {f"prime_rl/trainer/{kind}/train": _COMMON + _TRAINER for kind in ("rl", "sft")}
    for name, text in modules.items():
        (lib / name).parent.mkdir(parents=True, exist_ok=True)
        (lib / f"{name}.py").write_text(text)
