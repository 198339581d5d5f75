"""Finds TorchTitan, tells it its configuration file, its seed and its replica group, and becomes it.

    torchrun --nproc-per-node=8 run.py --job.config_file llama3_8b.toml --training.steps 1000

All arguments are TorchTitan's own and are passed on untouched, after those that are added here, so that they win. Read here:

    TORCHTITAN           the checkout; without it the installed package, /opt/torchtitan, then the working folder
    TORCHTITAN_MODULE    torchtitan.train unless it says otherwise, such as torchtitan.experiments.ft.train
    KIT_RUN_DIR          config.toml in it is the configuration where no argument names one
    KIT_SEED             the seed of all ranks
    REPLICA_GROUP_ID, NUM_REPLICA_GROUPS
                         this replica group, and how many there are; torchft then averages over them
"""

import importlib.util
import os
import runpy
import sys
from pathlib import Path

CONFIG = "--job.config_file"


def find(module: str) -> None:
    """Make the module importable; an error that says how to get it otherwise."""
    named = os.environ.get("TORCHTITAN")
    places = [Path(named)] if named else [Path("/opt/torchtitan"), Path.cwd()]
    if named or importlib.util.find_spec("torchtitan") is None:
        sys.path[:0] = [str(place) for place in places if (place / "torchtitan").is_dir()][:1]
        importlib.invalidate_caches()
    if importlib.util.find_spec("torchtitan") is None or importlib.util.find_spec(module) is None:
        raise SystemExit(
            f"no {module} in {', '.join(map(str, places))}. Put TorchTitan into the image, or mount a checkout and name it: "
            '[env] TORCHTITAN = "/path/in/the/container"'
        )


def added(arguments: list[str]) -> list[str]:
    """What the environment says of this run, as arguments of TorchTitan."""
    words = []
    if not any(word.split("=")[0] == CONFIG for word in arguments) and "KIT_RUN_DIR" in os.environ:
        words += [CONFIG, str(Path(os.environ["KIT_RUN_DIR"]) / "config.toml")]
    if "KIT_SEED" in os.environ:
        words.append(f"--training.seed={os.environ['KIT_SEED']}")
    if "REPLICA_GROUP_ID" in os.environ:
        words += [
            "--fault_tolerance.enable",
            f"--fault_tolerance.replica_id={os.environ['REPLICA_GROUP_ID']}",
            f"--fault_tolerance.group_size={os.environ['NUM_REPLICA_GROUPS']}",
        ]
    return words


def main() -> None:
    """Run TorchTitan's module as the main program."""
    module = os.environ.get("TORCHTITAN_MODULE") or "torchtitan.train"
    find(module)
    sys.argv[1:] = [*added(sys.argv[1:]), *sys.argv[1:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
