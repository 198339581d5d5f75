"""The line of each command in `kit --help`: the first paragraph of its docstring.

With this table, `kit --help` and the completion of a command's name import no command. tests/unit/test_command_line.py compares
them with the docstrings.
"""

from __future__ import annotations

HELP_LINES = {
    "run": "Run a program without a job file, as 'kit submit --follow' would with the job of 'kit init', and follow it to its end.",
    "init": (
        "Write a first job file that runs your program or the launcher's example. "
        "On a terminal, kit asks for missing values."
    ),
    "render": "Show the files that a submit would write and the command that it would run. Nothing is submitted.",
    "submit": "Write the run folder and submit the job to Slurm.",
    "sweep": "Submit all points of a job's sweep table. Points with the same sbatch options form one Slurm array.",
    "when": "Show when a job would start on each cluster and with each allowed size, earliest start first. Nothing is submitted.",
    "shell": "Open a shell in the job's container, with the job's mounts and environment.",
    "runs": "List the runs of this project. The queue of each cluster is read once for all its runs.",
    "status": "Show one run: state, nodes, exit code, image, run folder, last reported step, and last quorum of replica groups.",
    "time": "Show how a run or a sweep spent its time. Each second of a rank is in one account. Goodput and cost are shown, too.",
    "report": "Write one HTML file that shows a run, a sweep, or several runs side by side. The file needs no network or server.",
    "watch": "Send run notices by mail, Slack, Teams, webhook or ntfy, as the job's notify table sets. Each event is sent once.",
    "serve": "Serve live pages of all runs to a browser on this machine. The URL contains the token that access needs.",
    "logs": "Print the logs of a run. Each line begins with its source. Control characters are escaped and colours are removed.",
    "why": "Explain how a run ended, or why it waits, and what to do next.",
    "diff": "Show the differences between two runs, the most important first: outcome, metrics, keys, code, image, nodes.",
    "bisect": "Find the change that made a run bad. kit submits runs with some of the changes. A second call continues the search.",
    "top": "Show the step, the phase and the step time of each rank of a run, and the rank that the others wait for.",
    "stacks": "Show the current Python stacks, processes and open files of the ranks of a running job. The ranks are not stopped.",
    "results": "Show the metrics of a sweep's points in one table, the best point first.",
    "cancel": "Cancel runs, or all points of sweeps. The ranks are asked to save and end. A second cancel ends them immediately.",
    "resume": "Submit an ended run again, in the same run folder. The program continues from the newest checkpoint.",
    "rerun": "Repeat an earlier run with the same code, image, job and seed, in a new run folder.",
    "export": "Pack an ended run into one file: code, job, locks, manifest, logs, metrics. What looks like a key is refused.",
    "import": "Unpack a run that 'kit export' packed. kit status, logs and rerun then work on it. Each file's digest is checked.",
    "tmux": "Open a tmux session for a run, with a shell and a pane of logs for each role. A second call returns to the session.",
    "port": "Forward a port of this machine to a port of a running job's node, also over ssh, until Ctrl-C or the end of the job.",
    "notebook": "Run Jupyter in the container of a running job, until Ctrl-C or the end of the job. The URL contains a token.",
    "code": "Run a VS Code server in the container of a running job, until Ctrl-C or the end of the job. The image must have one.",
    "prune-snapshots": "Remove workspace snapshots that no run refers to. Snapshots of the last day are kept.",
    "build-image": "Build an image, put it into the image store as a .sqsh file, and write its lock.",
    "import-image": "Import an existing image, put it into the image store as a .sqsh file, and write its lock.",
    "images": "List images: name, digest, size, age, whether a lock names the image, and the runs that use it.",
    "verify-image": "Check that an image file is complete and matches its lock.",
    "sign-image": "Sign an image's lock with your SSH key. A cluster that lists you in its `store.signers` then accepts the image.",
    "prune-images": "Remove images that no lock names and no queued or running job uses.",
    "diff-images": "Show how two images differ: packages, files, environment, configuration. The exit code is 1 if they differ.",
    "cluster": "Run a real Slurm on this machine to try jobs on, log in to a cluster over ssh, or write a first cluster file.",
    "nodes": "List nodes that new jobs avoid (failed preflight, or --avoid), and nodes that failed far more runs than others.",
    "trust": "Show what this project would execute on this machine when you look at its clusters, and allow it after a question.",
    "model": "Compute a decoder-only model's parameters, compute-optimal tokens and steps, need for sharding, and local batch.",
    "checkpoint-size": "Predict the size of a model's checkpoint.",
    "convert-checkpoint": "Convert a sharded checkpoint of PyTorch or Megatron to one PyTorch file or to a Hugging Face folder.",
    "prepare-data": "Tokenize text once for all runs that train on it: kit prepare-data SRC… DST.",
    "generate": "Write one sbatch file that contains a TorchTitan run: DDP, or torchft replica groups within or across nodes.",
    "template": "Print or save the template of the batch script.",
    "schema": "Print the JSON Schema of a TOML file (editors check files with it), of `kit diff --json`, or of metrics.jsonl.",
}
