"""The usual commands, for kit/cli/plain_words.py. Made by scripts/command_table.py: run `make reference`."""

from __future__ import annotations

# Parameter, kind of its value, whether it can be repeated, and the function of completion_candidates that completes it.
Parameter = tuple[str, str, bool, str]

# Command -> its arguments in order, and its options by each of their names. typer handles options that are not listed.
# fmt: off
COMMANDS: dict[str, tuple[tuple[Parameter, ...], dict[str, Parameter]]] = {
    "init": (
        (
            ("folder", "path", False, ""),
        ),
        {
            "--script": ("script", "path", False, ""),
            "--launcher": ("launcher", "text", False, "launchers"),
            "--image": ("image", "text", False, "images"),
            "--cluster": ("cluster", "text", False, "clusters"),
            "-c": ("cluster", "text", False, "clusters"),
            "--force": ("force", "on", False, ""),
            "--from": ("base", "text", False, "images"),
            "--pip": ("pip", "text", True, ""),
        },
    ),
    "submit": (
        (
            ("job", "path", False, ""),
        ),
        {
            "--cluster": ("cluster", "text", False, "clusters"),
            "-c": ("cluster", "text", False, "clusters"),
            "--container": ("containers", "on", False, ""),
            "--no-container": ("containers", "off", False, ""),
            "--set": ("set_", "text", True, "job_keys"),
            "--wait": ("wait", "on", False, ""),
            "--follow": ("follow", "on", False, ""),
            "-f": ("follow", "on", False, ""),
            "--debug": ("debug", "on", False, ""),
            "--after": ("after", "text", True, "runs_and_sweeps"),
            "--dry-run": ("dry_run", "on", False, ""),
            "--output": ("output", "path", False, ""),
            "-o": ("output", "path", False, ""),
            "--point": ("point", "number", False, ""),
            "--base": ("base", "on", False, ""),
            "--yes": ("yes", "on", False, ""),
            "-y": ("yes", "on", False, ""),
            "--json": ("as_json", "on", False, ""),
        },
    ),
    "status": (
        (
            ("run", "text", False, "runs"),
        ),
        {
            "--runs": ("runs_dir", "path", False, ""),
            "--json": ("as_json", "on", False, ""),
        },
    ),
    "logs": (
        (
            ("run", "text", False, "runs"),
            ("role", "text", False, ""),
        ),
        {
            "--follow": ("follow", "on", False, ""),
            "-f": ("follow", "on", False, ""),
            "--rank": ("rank", "number", True, ""),
            "-r": ("rank", "number", True, ""),
            "--tail": ("tail", "number", False, ""),
            "-n": ("tail", "number", False, ""),
            "--since": ("since", "text", False, ""),
            "--grep": ("grep", "text", False, ""),
            "-g": ("grep", "text", False, ""),
            "--cluster": ("cluster", "text", False, ""),
            "-c": ("cluster", "text", False, ""),
            "--raw": ("raw", "on", False, ""),
            "--runs": ("runs_dir", "path", False, ""),
            "--json": ("as_json", "on", False, ""),
        },
    ),
    "why": (
        (
            ("run", "text", False, "runs"),
        ),
        {
            "--runs": ("runs_dir", "path", False, ""),
            "--json": ("as_json", "on", False, ""),
        },
    ),
    "top": (
        (
            ("run", "text", False, "runs"),
        ),
        {
            "--once": ("once", "on", False, ""),
            "--runs": ("runs_dir", "path", False, ""),
            "--json": ("as_json", "on", False, ""),
        },
    ),
    "cancel": (
        (
            ("names", "text", True, "runs_and_sweeps"),
        ),
        {
            "--runs": ("runs_dir", "path", False, ""),
            "--json": ("as_json", "on", False, ""),
        },
    ),
    "resume": (
        (
            ("run", "text", False, "runs"),
        ),
        {
            "--wait": ("wait", "on", False, ""),
            "--json": ("as_json", "on", False, ""),
        },
    ),
    "results": (
        (
            ("sweep", "text", False, "sweeps"),
        ),
        {
            "--metric": ("metric", "text", False, ""),
            "-m": ("metric", "text", False, ""),
            "--output": ("output", "path", True, ""),
            "-o": ("output", "path", True, ""),
            "--plot": ("plot", "path", True, ""),
            "--x": ("x", "text", False, ""),
            "--runs": ("runs_dir", "path", False, ""),
            "--json": ("as_json", "on", False, ""),
        },
    ),
    "build-image": (
        (
            ("name", "text", False, "images"),
        ),
        {
            "--name": ("own_name", "text", False, ""),
            "--file": ("file", "path", False, ""),
            "-f": ("file", "path", False, ""),
            "--context": ("context", "path", False, ""),
            "--target": ("target", "text", False, ""),
            "--build-arg": ("build_arg", "text", True, ""),
            "--network": ("network", "text", False, ""),
            "--store": ("store", "path", False, ""),
            "--cluster": ("cluster", "text", False, "clusters"),
            "-c": ("cluster", "text", False, "clusters"),
            "--locked": ("locked", "on", False, ""),
            "--relock": ("relock", "on", False, ""),
            "--no-cache": ("no_cache", "on", False, ""),
            "--json": ("as_json", "on", False, ""),
        },
    ),
    "render": (
        (
            ("job", "path", False, ""),
        ),
        {
            "--cluster": ("cluster", "text", False, "clusters"),
            "-c": ("cluster", "text", False, "clusters"),
            "--container": ("containers", "on", False, ""),
            "--no-container": ("containers", "off", False, ""),
            "--set": ("set_", "text", True, "job_keys"),
            "--output": ("output", "path", False, ""),
            "-o": ("output", "path", False, ""),
            "--json": ("as_json", "on", False, ""),
            "--plain": ("plain", "on", False, ""),
            "--point": ("point", "number", False, ""),
            "--base": ("base", "on", False, ""),
        },
    ),
    "sweep": (
        (
            ("job", "path", False, ""),
        ),
        {
            "--cluster": ("cluster", "text", False, "clusters"),
            "-c": ("cluster", "text", False, "clusters"),
            "--container": ("containers", "on", False, ""),
            "--no-container": ("containers", "off", False, ""),
            "--set": ("set_", "text", True, "job_keys"),
            "--dry-run": ("dry_run", "on", False, ""),
            "--after": ("after", "text", True, "runs_and_sweeps"),
            "--retry": ("retry", "on", False, ""),
            "--of": ("of", "text", False, "sweeps"),
            "--wait": ("wait", "on", False, ""),
            "--json": ("as_json", "on", False, ""),
        },
    ),
    "when": (
        (
            ("job", "path", False, ""),
        ),
        {
            "--cluster": ("cluster", "text", True, "clusters"),
            "-c": ("cluster", "text", True, "clusters"),
            "--everywhere": ("everywhere", "on", False, ""),
            "--or": ("or_", "text", True, ""),
            "--container": ("containers", "on", False, ""),
            "--no-container": ("containers", "off", False, ""),
            "--set": ("set_", "text", True, "job_keys"),
            "--json": ("as_json", "on", False, ""),
        },
    ),
    "shell": (
        (
            ("job", "path", False, ""),
        ),
        {
            "--cluster": ("cluster", "text", False, "clusters"),
            "-c": ("cluster", "text", False, "clusters"),
            "--container": ("containers", "on", False, ""),
            "--no-container": ("containers", "off", False, ""),
            "--set": ("set_", "text", True, "job_keys"),
            "--attach": ("attach", "text", False, "runs"),
            "--node": ("node", "text", False, ""),
        },
    ),
    "runs": (
        (
        ),
        {
            "--runs": ("runs_dir", "path", False, ""),
            "--json": ("as_json", "on", False, ""),
        },
    ),
    "stacks": (
        (
            ("run", "text", False, "runs"),
        ),
        {
            "--rank": ("rank", "number", False, ""),
            "--all": ("every", "on", False, ""),
            "--runs": ("runs_dir", "path", False, ""),
            "--json": ("as_json", "on", False, ""),
        },
    ),
    "time": (
        (
            ("name", "text", False, "runs_and_sweeps"),
        ),
        {
            "--runs": ("runs_dir", "path", False, ""),
            "--json": ("as_json", "on", False, ""),
        },
    ),
    "report": (
        (
            ("names", "text", True, "runs_and_sweeps"),
        ),
        {
            "--output": ("output", "path", False, ""),
            "-o": ("output", "path", False, ""),
            "--runs": ("runs_dir", "path", False, ""),
        },
    ),
    "watch": (
        (
            ("names", "text", True, "runs"),
        ),
        {
            "--once": ("once", "on", False, ""),
            "--runs": ("runs_dir", "path", False, ""),
        },
    ),
    "tmux": (
        (
            ("run", "text", False, "runs"),
        ),
        {
            "--detach": ("detach", "on", False, ""),
            "-d": ("detach", "on", False, ""),
            "--runs": ("runs_dir", "path", False, ""),
        },
    ),
    "notebook": (
        (
            ("run", "text", False, "runs"),
        ),
        {
            "--node": ("node", "text", False, ""),
        },
    ),
    "code": (
        (
            ("run", "text", False, "runs"),
        ),
        {
            "--node": ("node", "text", False, ""),
        },
    ),
    "prune-snapshots": (
        (
        ),
        {
            "--dry-run": ("dry_run", "on", False, ""),
            "--json": ("as_json", "on", False, ""),
        },
    ),
}
