"""The line of each command in `kit --help`: the first paragraph of its docstring.

With this table, `kit --help` and the completion of a command's name import no command. tests/unit/test_command_line.py holds
them to the docstrings.
"""

from __future__ import annotations

HELP_LINES = {
    "init": (
        "Write a first job.toml that runs: for your program or the launcher's example. "
        "Asks on a terminal for what no option says."
    ),
    "render": "Show what a submit would write and run. Nothing is submitted.",
    "submit": "Write the run folder and submit it.",
    "sweep": "Submit all points of a job's sweep table, those of one shape as one Slurm array.",
    "when": "Show when a job would start, at each size and place that would do, the earliest first. Nothing is submitted.",
    "shell": "Open a shell in the job's container, with its mounts and its environment.",
    "runs": "List the runs of this project, with one question to Slurm for all of them.",
    "status": "Show one run: state, nodes, exit code, image, files, last reported step; of replica groups the last quorum.",
    "time": "Show where the time of a run, or of a sweep, went: every rank-second in one account, goodput, and what it cost.",
    "report": "Write one HTML file that shows a run, a sweep, or several runs side by side; it needs no network and no server.",
    "watch": "Send notices of runs as the job's notify table says: by mail, Slack, Teams, a webhook, ntfy. Each event once.",
    "serve": "Serve the pages of all runs, as they change, to a browser on this machine. Only the URL's token lets in.",
    "logs": "Print the logs of a run, each line with its source in front. Control characters are escaped, colours left out.",
    "why": "Explain how a run ended, or why it waits, and what to do next.",
    "diff": "Show why two runs differ, the most telling first: outcome, metrics, keys, code, image, nodes.",
    "bisect": "Find which change made a run bad, by runs between a good and a bad one. Started again, it continues.",
    "top": "Show what each rank of a run does: step, phase, step time, and which rank the others wait for.",
    "stacks": "Show where the ranks of a running job are, now: Python stacks, processes, open files. Nothing is stopped.",
    "results": "Gather the metrics of a sweep's points into one table, the best first.",
    "cancel": "Cancel runs, or all points of sweeps: ranks are asked to save and end. A second time, Slurm ends all at once.",
    "resume": "Submit a run that has ended again, in its own folder: its program continues from the newest checkpoint.",
    "rerun": "Run again what a run was made from: the same code, image, job and seed, in a run folder of its own.",
    "export": "Write a run that has ended to one file: code, job, locks, manifest, logs, metrics. Secrets are never in it.",
    "import": "Bring in a run that 'kit export' wrote, every file checked by its digest: for status, logs and rerun here.",
    "tmux": "Open a tmux session for a run: a shell, and its logs with a pane for each role. Goes back to one that is there.",
    "port": "Lead a port of this machine to one of a running job's node, from a laptop over ssh; until Ctrl-C or the job's end.",
    "notebook": "Open Jupyter in the container of a running job, for who has the URL's token; until Ctrl-C or the job's end.",
    "code": "Open VS Code's server in the container of a running job, where its image has one; until Ctrl-C or the job's end.",
    "prune-snapshots": "Remove the snapshots of workspaces that no run refers to, but for those of the last day.",
    "build-image": "Build an image, squash it into the store, and write its lock.",
    "import-image": "Bring in an image that exists already, squash it into the store, and write its lock.",
    "images": "List images: name, digest, size, age, whether a lock names them, which runs use them.",
    "verify-image": "Check that an image file is whole and is the one that its lock names.",
    "sign-image": "Sign an image's lock with your SSH key: a cluster that names you in its `store.signers` then takes the image.",
    "prune-images": "Remove images that no lock names and no queued or running job uses.",
    "diff-images": "Show what differs between two images: packages, files, environment, configuration. Code 1 when anything does.",
    "cluster": "A real Slurm on this machine, to try jobs on.",
    "nodes": "List nodes that new jobs avoid (a failed preflight, or named here), and nodes that failed far more runs than others.",
    "model": "Count a decoder-only model's parameters, its compute-optimal tokens and steps, and what fits on a GPU.",
    "checkpoint-size": "Predict what a checkpoint of a model weighs.",
    "convert-checkpoint": "Turn a sharded checkpoint (torch's, megatron's) into one .pt file or a Hugging Face folder.",
    "prepare-data": "Tokenize text once, for all runs that train on it: kit prepare-data SRC… DST.",
    "generate": "Make one sbatch file that holds a whole run: DDP, or torchft replica groups within nodes or over several.",
    "template": "The template of the batch script.",
    "schema": "Print a JSON Schema: of a TOML file, for editors that check as you type; of metrics.jsonl; of `kit diff --json`.",
}
