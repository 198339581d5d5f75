"""The line of each command in `kit --help`: the first paragraph of its docstring.

With this table, `kit --help` and the completion of a command's name import no command. tests/unit/test_command_line.py compares
them with the docstrings.
"""

from __future__ import annotations

HELP_LINES = {
    "init": (
        "Write a first job.toml that runs: for your program or the launcher's example. "
        "On a terminal it asks for missing values."
    ),
    "render": "Show what a submit would write and run. Nothing is submitted.",
    "submit": "Write the run folder and submit it.",
    "sweep": "Submit all points of a job's sweep table. Points of the same shape become one Slurm array.",
    "when": "Show when a job would start, on each cluster and with each allowed size, the earliest first. Nothing is submitted.",
    "shell": "Open a shell in the job's container, with its mounts and its environment.",
    "runs": "List the runs of this project, with one question to Slurm for all of them.",
    "status": "Show one run: state, nodes, exit code, image, files, last reported step, and the last quorum of replica groups.",
    "time": "Show where the time of a run or a sweep went: each rank-second in one account, the goodput, and the cost.",
    "report": "Write one HTML file that shows a run, a sweep, or several runs side by side; it needs no network and no server.",
    "watch": "Send notices of runs by mail, Slack, Teams, a webhook or ntfy, by the job's notify table. Each event is sent once.",
    "serve": "Serve live pages of all runs to a browser on this machine. Access needs the token in the URL.",
    "logs": "Print the logs of a run, each line with its source in front. Control characters are escaped, colours left out.",
    "why": "Explain how a run ended, or why it waits, and what to do next.",
    "diff": "Show why two runs differ, the most telling first: outcome, metrics, keys, code, image, nodes.",
    "bisect": "Find the change that made a run bad, by submitting runs between a good and a bad one. A second call continues.",
    "top": "Show what each rank of a run does: step, phase, step time, and which rank the others wait for.",
    "stacks": "Show what the ranks of a running job do at this moment: Python stacks, processes, open files. Nothing is stopped.",
    "results": "Gather the metrics of a sweep's points into one table, the best first.",
    "cancel": "Cancel runs, or all points of sweeps: ranks are asked to save and end. A second time, Slurm ends all at once.",
    "resume": "Submit an ended run again, in its own folder. Its program continues from the newest checkpoint.",
    "rerun": "Run an earlier run once more, with the same code, image, job and seed, in a new run folder.",
    "export": "Pack an ended run into one file: code, job, locks, manifest, logs, metrics. It never holds secrets.",
    "import": "Unpack a run that 'kit export' wrote, for status, logs and rerun here. Every file is checked by its digest.",
    "tmux": "Open a tmux session for a run: a shell, and its logs with a pane for each role. A second call returns to it.",
    "port": "Forward a port of this machine to a port on a node of a running job, also over ssh, until Ctrl-C or the job's end.",
    "notebook": "Open Jupyter in the container of a running job, until Ctrl-C or the end of the job. The URL holds a token.",
    "code": "Open VS Code's server in the container of a running job, if its image has one, until Ctrl-C or the end of the job.",
    "prune-snapshots": "Remove workspace snapshots that no run refers to. Those of the last day are kept.",
    "build-image": "Build an image, squash it into the store, and write its lock.",
    "import-image": "Bring in an image that exists already, squash it into the store, and write its lock.",
    "images": "List images: name, digest, size, age, whether a lock names them, which runs use them.",
    "verify-image": "Check that an image file is whole and is the one that its lock names.",
    "sign-image": "Sign an image's lock with your SSH key. A cluster that lists you in its `store.signers` then accepts the image.",
    "prune-images": "Remove images that no lock names and no queued or running job uses.",
    "diff-images": "Show how two images differ: packages, files, environment, configuration. Exit code 1 if they do.",
    "cluster": "A real Slurm on this machine, to try jobs on.",
    "nodes": "List nodes that new jobs avoid (a failed preflight, or named here), and nodes that failed far more runs than others.",
    "model": "Count a decoder-only model's parameters, its compute-optimal tokens and steps, and what fits on a GPU.",
    "checkpoint-size": "Predict the size of a model's checkpoint.",
    "convert-checkpoint": "Turn a sharded checkpoint (torch's, megatron's) into one .pt file or a Hugging Face folder.",
    "prepare-data": "Tokenize text once, for all runs that train on it: kit prepare-data SRC… DST.",
    "generate": "Make one sbatch file that holds a whole run: DDP, or torchft replica groups within nodes or over several.",
    "template": "The template of the batch script.",
    "schema": "Print a JSON Schema: of a TOML file, for editors that check as you type; of metrics.jsonl; of `kit diff --json`.",
}
