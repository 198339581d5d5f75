"""The commands, in the groups of `kit --help`, and where each is written."""

from __future__ import annotations

# Each command by its group and name, as module of this package and function there. A name with `app` is a noun with commands of its
# own.
GROUPS = {
    "Daily": {
        "run": "run.run",
        "init": "init.init",
        "submit": "submit.submit",
        "status": "runs.status",
        "logs": "logs_tmux.logs",
        "why": "why.why",
        "top": "top.top",
        "cancel": "runs.cancel",
        "resume": "runs.resume",
        "results": "results.results",
        "build-image": "build_import.build_image",
        "cluster": "cluster.app",
    },
    "Jobs": {
        "migrate": "migrate.migrate",
        "render": "render.render",
        "sweep": "sweep.sweep",
        "when": "when.when",
        "shell": "shell.shell",
    },
    "Runs": {
        "runs": "runs.runs",
        "diff": "diff.diff",
        "bisect": "bisect.bisect",
        "stacks": "stacks.stacks",
        "time": "time.time",
        "report": "report.report",
        "watch": "watch.watch",
        "wait": "wait.wait",
        "rerun": "rerun.rerun",
        "export": "export_import.export",
        "import": "export_import.import_",
        "tmux": "logs_tmux.tmux",
        "port": "port_notebook.port",
        "notebook": "port_notebook.notebook",
        "code": "port_notebook.code",
        "prune-runs": "prune_runs.prune_runs",
        "prune-snapshots": "snapshots.prune_snapshots",
    },
    "Images": {
        "import-image": "build_import.import_image",
        "images": "images.images",
        "verify-image": "images.verify_image",
        "sign-image": "images.sign_image",
        "prune-images": "images.prune_images",
        "diff-images": "images.diff_images",
    },
    "Clusters": {
        "nodes": "nodes.nodes",
        "trust": "trust.trust",
    },
    "Tools": {
        "serve": "serve.serve",
        "model": "model.model",
        "checkpoint-size": "checkpoints.checkpoint_size",
        "convert-checkpoint": "checkpoints.convert_checkpoint",
        "prepare-data": "prepare_data.prepare_data",
        "generate": "generate.generate",
        "template": "template.app",
        "schema": "schema.schema",
    },
    "Agents": {
        "mcp": "mcp.mcp",
        "skill": "mcp.skill",
    },
}
PLACES = {name: (group, place) for group, commands in GROUPS.items() for name, place in commands.items()}
