"""Finds TorchTitan, passes it its configuration file, seed, output folder and replica group, and runs it in this process.

    torchrun --nproc-per-node=8 run.py --job.config_file llama3_8b.toml --training.steps 1000

All arguments are TorchTitan's own and are passed on unchanged. They come after the added arguments, so that they win. Read here:

    TORCHTITAN           the checkout; without it the installed package, /opt/torchtitan, then the working folder
    TORCHTITAN_MODULE    the module to run; without it the module that trains in the release that is there
    KIT_RUN_DIR          its config.py or config.toml is the configuration where no argument names one; its outputs/ gets the output
    KIT_SEED             the seed of all ranks
    REPLICA_GROUP_ID, NUM_REPLICA_GROUPS
                         this replica group, and how many there are; torchft then averages over them

Options have moved between releases. `release_of` recognises the release by its files, and imports nothing.
"""

import importlib.util
import os
import re
import runpy
import sys
import tomllib
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

CONFIG = "--job.config_file"


@dataclass(frozen=True)
class Release:
    """The names that a release of TorchTitan has for the arguments that this program adds.

    name: its number, or those of releases that are alike. config: the option that names a TOML; None: it reads none.
    groups: the module that trains replica groups.
    """

    name: str
    config: str | None
    seed: str
    outputs: str
    groups: str


# Read from the tags v0.1.0 to v0.2.2 of pytorch/torchtitan, and from the wheel of 0.3.0.
RELEASES = {
    "0.1": Release("v0.1.0", CONFIG, "--training.seed", "--job.dump_folder", "torchtitan.train"),
    "0.2.0": Release("v0.2.0", CONFIG, "--training.seed", "--job.dump_folder", "torchtitan.train"),
    "0.2.1": Release(
        "v0.2.1 and v0.2.2", CONFIG, "--debug.seed", "--job.dump_folder", "torchtitan.experiments.ft.train"
    ),
    "0.3": Release("0.3", None, "--debug.seed", "--dump_folder", "torchtitan.train"),
}


def find() -> Path:
    """Make the package importable, and return its folder. Where there is none, the error says how to get it."""
    named = os.environ.get("TORCHTITAN")
    places = [Path(named)] if named else [Path("/opt/torchtitan"), Path.cwd()]
    if named or importlib.util.find_spec("torchtitan") is None:
        sys.path[:0] = [str(place) for place in places if (place / "torchtitan").is_dir()][:1]
        importlib.invalidate_caches()
    spec = importlib.util.find_spec("torchtitan")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(
            f"no TorchTitan in {', '.join(map(str, places))}. Put it into the image, or mount a checkout and name it: "
            '[env] TORCHTITAN = "/path/in/the/container"'
        )
    return Path(next(iter(spec.submodule_search_locations)))


def release_of(package: Path) -> Release:
    """The release whose options this package has, by the file that defines its configuration."""
    if (package / "config_manager.py").is_file():
        return RELEASES["0.1"]
    options = package / "config" / "job_config.py"
    if options.is_file():
        moved = re.search(r"^class Debug:\n +seed: int", options.read_text(encoding="utf-8"), re.MULTILINE)
        return RELEASES["0.2.1" if moved else "0.2.0"]
    if (package / "config" / "manager.py").is_file():
        return RELEASES["0.3"]
    known = ", ".join(release.name for release in RELEASES.values())
    raise SystemExit(f"{package} is a TorchTitan that this launcher does not know; it knows {known}")


def value(arguments: list[str], *names: str) -> str | None:
    """The last value of an option, written `--a.b value` or `--a.b=value`, with dashes or underscores."""
    found = None
    for place, word in enumerate(arguments):
        name, equals, given = word.partition("=")
        if "--" + name.removeprefix("--").replace("-", "_") in names:
            found = given if equals else next(iter(arguments[place + 1 : place + 2]), "")
    return found


def chosen_outputs(release: Release, arguments: list[str]) -> bool:
    """Whether an argument names the output folder, or the configuration file names an absolute one."""
    if value(arguments, release.outputs) is not None:
        return True
    file = release.config and value(arguments, release.config)
    if not file or not Path(file).is_file() or file.endswith(".py"):
        return False
    job = tomllib.loads(Path(file).read_text(encoding="utf-8")).get("job", {})
    return str(job.get("dump_folder", "")).startswith("/")


def added(release: Release, arguments: list[str]) -> list[str]:
    """The environment's values for this run, as arguments of this release."""
    words = []
    run = os.environ.get("KIT_RUN_DIR")
    if release.config is None:
        if value(arguments, "--module") is None or value(arguments, "--config") is None:
            raise SystemExit(
                f"TorchTitan {release.name} reads no TOML: its configurations are Python functions. Name one in args: "
                '["--module", "llama3", "--config", "llama3_8b"]; or use v0.2.2'
            )
    elif value(arguments, release.config) is None and run:
        python = Path(run) / "config.py"  # for a fork that reads Python
        words += [release.config, str(python if python.is_file() else python.with_suffix(".toml"))]
    if run and not chosen_outputs(release, [*words, *arguments]):
        # With a folder relative to the working folder, two runs would continue from each other's checkpoints.
        words.append(f"{release.outputs}={Path(run) / 'outputs'}")
    if "KIT_SEED" in os.environ:
        words.append(f"{release.seed}={os.environ['KIT_SEED']}")
    if "REPLICA_GROUP_ID" in os.environ:
        words += [
            "--fault_tolerance.enable",
            f"--fault_tolerance.replica_id={os.environ['REPLICA_GROUP_ID']}",
            f"--fault_tolerance.group_size={os.environ['NUM_REPLICA_GROUPS']}",
        ]
    return words


def module_of(release: Release) -> str:
    """The module to run. Replica groups need the one that averages, or each group would train alone on the same data."""
    if named := os.environ.get("TORCHTITAN_MODULE"):
        return named
    return release.groups if "REPLICA_GROUP_ID" in os.environ else "torchtitan.train"


def report() -> None:
    """Report the steps, where the run has kit_callbacks. A release that cannot be wrapped trains without reports."""
    try:
        import_module("kit_callbacks").torchtitan()
    except Exception as error:  # noqa: BLE001 - a missing report must not end a training
        print(f"its steps are not reported: {error}", file=sys.stderr)


def on_cpus() -> None:
    """Make TorchTitan use the CPU if torch is built without CUDA and has no other accelerator. It would take "cuda" and end.

    A torch that is built for GPUs and finds none is a fault of the node. TorchTitan then ends at its first tensor, as it should.
    """
    if importlib.util.find_spec("torch") is None:
        return
    torch = import_module("torch")
    if not torch.accelerator.is_available() and not torch.backends.cuda.is_built():
        if os.environ.get("KIT_DEVICE") == "cuda":
            import_module("lib.device").use_gpu("auto")  # says what is missing, and ends
        print("no accelerator: TorchTitan runs on the CPU, over gloo", file=sys.stderr)
        import_module("on_cpus").pretended()


def main() -> None:
    """Run TorchTitan's module as the main program."""
    package = find()
    release = release_of(package)
    module = module_of(release)
    # Before TorchTitan is imported: its parser reads sys.argv when its module is imported, not when it is called.
    sys.argv[1:] = [*added(release, sys.argv[1:]), *sys.argv[1:]]
    file, parser = value(sys.argv[1:], CONFIG) or "", package / "config_manager.py"
    if file.endswith(".py") and not (parser.is_file() and "mmengine" in parser.read_text(encoding="utf-8")):
        raise SystemExit(f"{file} is a Python file; this TorchTitan reads TOML, and forks with mmengine read Python")
    on_cpus()  # before find_spec, which imports the package
    if importlib.util.find_spec(module) is None:
        raise SystemExit(f"TorchTitan {release.name} has no module {module}; TORCHTITAN_MODULE names another")
    print(f"TorchTitan {release.name}: {module}", file=sys.stderr)
    if "KIT_RUN_DIR" in os.environ:
        report()
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
