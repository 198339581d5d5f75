"""Rules for programs of any framework: on the end of a rank's log, then on its exit code."""

from __future__ import annotations

from kit.health.answer import ADMIN, AGAIN, CODE, JOB, NODE, RANK_LOG, SUBMIT, Rule

_EDIT = "kit render {job_file}"

RULES = (
    Rule(
        id="torch-missing",
        verdict=JOB,
        pattern=r"^ModuleNotFoundError: No module named '?(?P<name>torch)\b",
        next=_EDIT,
        says="the Python that runs has no torch",
        advice="name an image that has it, or the interpreter that does: image, python, setup",
    ),
    Rule(
        id="module-missing",
        verdict=JOB,
        pattern=r"(?:^ModuleNotFoundError: |: )No module named '?(?P<name>[\w.]+)'?",
        next=_EDIT,
        says="there is no module {name!r}",
        advice="add the package to an image (kit init --image NAME --from IMAGE --pip PACKAGE), or its folder to the path",
    ),
    Rule(
        id="import-own",
        verdict=CODE,
        # The file that Python names is no package's: "cannot import name 'a' from 'b' (/workspace/b.py)".
        pattern=(
            r"^ImportError: (?P<what>cannot import name .+ "
            r"\((?!\S*/(?:site|dist)-packages/|\S*/lib/python3)/[^)]+\))"
        ),
        says="{what}",
        advice="that file is yours: correct the name, a circle of imports, or the file's name if a package has it, too",
    ),
    Rule(
        id="import-name",
        verdict=JOB,
        pattern=r"^ImportError: (?P<what>.+)",
        says="{what}",
        next=_EDIT,
        advice="two packages of the image do not fit together; if the program itself raised it, its words say what it wants",
    ),
    Rule(
        id="syntax",
        verdict=CODE,
        pattern=r"^(?P<what>(?:SyntaxError|IndentationError|TabError): .+)",
        says="{what}",
        advice="correct the line; python -m compileall finds them before a submit",
    ),
    Rule(
        id="disk-full",
        verdict=JOB,
        pattern=(
            r"(?:No space left on device|Disk quota exceeded|\[Errno (?:28|122)\](?! (?:No space left|Disk quota)))"
            r"(?P<what>: .+)?"
        ),
        says="no space is left on the disk, or in the quota{what}",
        advice="make space, or write elsewhere",
        next=SUBMIT,
    ),
    Rule(
        id="too-many-files",
        verdict=CODE,
        pattern=r"\[Errno 24\]|Too many open files",
        says="the program has too many open files",
        advice="close them, or let data workers share tensors by files: torch.multiprocessing.set_sharing_strategy('file_system')",
    ),
    Rule(
        id="read-only",
        verdict=JOB,
        pattern=r"\[Errno 30\] Read-only file system: (?P<what>.+)",
        says="{what} is on a read-only file system",
        advice="write to KIT_RUN_DIR or KIT_CHECKPOINT_DIR, or mount a folder",
        next=_EDIT,
    ),
    Rule(
        id="file-missing",
        verdict=JOB,
        pattern=r"^FileNotFoundError: (?:\[Errno 2\] No such file or directory: )?(?P<what>.+)",
        says="there is no file {what}",
        advice="correct the path; in a container only what is mounted is there",
        next=_EDIT,
    ),
    Rule(
        id="permission",
        verdict=JOB,
        pattern=r"^PermissionError: (?:\[Errno 13\] Permission denied: )?(?P<what>.+)",
        says="it may not read or write {what}",
        advice="look at the file's owner and mode on the nodes",
        next=_EDIT,
    ),
    Rule(
        id="host-memory",
        verdict=JOB,
        pattern=(
            r"^(?:MemoryError|numpy\._core\._exceptions\._ArrayMemoryError)|can't allocate memory|Cannot "
            r"allocate memory|std::bad_alloc"
        ),
        says="the program ran out of memory of the host",
        advice="ask for more memory (resources.memory), or use less",
    ),
    Rule(
        id="no-network",
        verdict=JOB,
        next=_EDIT,
        pattern=(
            r"Name or service not known|Temporary failure in name resolution|Network is unreachable"
            r"|couldn't connect to 'https?://|No address associated"
        ),
        says="the program asks for something on the network, and there is no network, or no such host",
        advice="bring data and models to the cluster before the run, and set HF_HUB_OFFLINE=1",
    ),
    Rule(
        id="port-in-use",
        verdict=AGAIN,
        pattern=r"(?i)(?:EADDRINUSE|\[Errno 98\]|address already in use)",
        next=SUBMIT,
        says="a port that the program wants is in use",
        advice="take the port that the kit chose: MASTER_PORT; then submit again",
    ),
    Rule(
        id="arguments",
        verdict=JOB,
        pattern=r"^\S+: error: (?P<what>(?:unrecognized arguments|argument |the following arguments|ambiguous option).*)",
        says="the program does not take its arguments: {what}",
        advice="correct args in the job file",
        next=_EDIT,
    ),
    Rule(
        id="script-missing",
        verdict=JOB,
        pattern=r"(?P<what>can't open file '?[^':]+'?.*)",
        says="{what}",
        advice="the script is not where the job says, or was moved after the submit",
        next=_EDIT,
    ),
    Rule(
        id="wrong-interpreter",
        verdict=JOB,
        pattern=r"^(?:env: |.*: )[‘'\"]?(?P<what>[^\s‘’'\"]+)[’'\"]?: No such file or directory$",
        code=127,
        says="there is no program {what}",
        advice="correct python or script; in a container its own programs are there, not the host's",
        next=_EDIT,
    ),
    Rule(
        id="not-executable",
        verdict=JOB,
        pattern=r"(?P<what>.+: (?:Permission denied|Exec format error))$",
        code=126,
        says="{what}",
        advice="chmod +x the script, or build the program for this machine",
        next=_EDIT,
    ),
    Rule(
        id="nan-loss",
        verdict=CODE,
        pattern=(
            r"(?i)^(?P<what>(?:FloatingPointError|ValueError|RuntimeError|AssertionError): .*\b(?:nan|not "
            r"finite|non-finite|inf loss)\b.*)"
        ),
        says="the loss or a gradient is not a number (nan): {what}",
        advice="start from the last good checkpoint with a smaller learning rate, clip gradients, look at the data of that step",
    ),
)

# Rules by exit code (128 + the signal), for ends that no text above explains. Those without a code accept any.
BY_CODE = (
    Rule(
        id="setup-line",
        verdict=JOB,
        code=73,
        pattern=r"set-up (?P<what>line .*)",
        says="set-up {what}",
        next=_EDIT,
        advice="correct the line of `setup`; LINE || true may fail",
    ),
    Rule(
        id="stepd-killed",
        verdict=NODE,
        pattern=r"slurmstepd, by which Slurm runs the ranks of a node, is gone",
        says="the slurmstepd of its node was killed, and the rank with it",
        advice="why is unknown: dmesg of its node says whether memory was short; the program did not end by itself",
    ),
    Rule(
        id="killed",
        verdict=AGAIN,
        code=137,
        pattern="",
        says="it was killed (signal 9), and by whom is unknown: Slurm names no lack of memory",
        advice=(
            "whether memory was short: dmesg of its node, and max_rss in kit status where there is accounting; "
            "retry.in_allocation starts again"
        ),
    ),
    Rule(
        id="freed-at-exit",
        verdict=CODE,
        # Any code: after this abort, faulthandler's report may itself end with a segmentation fault, as it reads a Python thread
        # that is gone. The text is that of libstdc++ when a thread that nobody joined is destroyed, or unwound by Python's end.
        pattern=r"^terminate called without an active exception",
        says="a thread of a native library was at work when the program ended",
        advice=(
            "with torch: free the model before destroy_process_group(), for instance by training in a function that "
            "returns before it; or end with os._exit(0) when all is written"
        ),
    ),
    Rule(
        id="segfault-debug",
        verdict=JOB,
        code=139,
        pattern=r"_ddp_init_helper",
        says="torch crashed in DistributedDataParallel, as torch 2.13 on CPUs does under TORCH_DISTRIBUTED_DEBUG=DETAIL",
        advice="leave TORCH_DISTRIBUTED_DEBUG out of the job's env; kit submit --debug sets INFO",
        next=_EDIT,
    ),
    Rule(
        id="segfault",
        verdict=CODE,
        code=139,
        pattern="",
        says="it ended with a segmentation fault",
        advice="a native library broke: look at the stack in the log, and at libraries of different versions",
    ),
    Rule(
        id="aborted",
        verdict=CODE,
        code=134,
        pattern=r"^ *what\(\): +(?P<what>[^\n]+)|^(?P<check>[^\n]*Assertion [^\n]* failed[^\n]*)",
        says="it ended itself by abort(): {what}{check}",
        advice="a native library, or the program's own C or C++, gave up",
    ),
    Rule(
        id="aborted",
        verdict=CODE,
        code=134,
        pattern="",
        says="it ended itself by abort()",
        advice="a native library gave up: its last lines in the log say why",
    ),
    Rule(
        id="bus-error",
        verdict=ADMIN,
        code=135,
        pattern="",
        says="it ended with a bus error: /dev/shm is full, or a mapped file is gone",
        next="kit submit {job_file} --set preflight.shm_gb=8",
        advice="look at the size of /dev/shm on {node}, and whether image or data were replaced under the run",
    ),
    Rule(
        id="illegal-instruction",
        verdict=JOB,
        code=132,
        pattern="",
        says="its code has an instruction that this CPU lacks",
        advice="build for the oldest CPU of the partition, or ask for newer nodes: slurm.constraint",
        next=_EDIT,
    ),
    Rule(
        id="terminated",
        verdict=AGAIN,
        code=143,
        pattern="",
        says="it was ended with TERM, and nothing says by whom",
        advice="submit again; a launcher ends ranks so when another one has failed",
        next=SUBMIT,
        victim=True,
    ),
    Rule(
        id="exit-code",
        verdict=CODE,
        pattern=r"(?s)(?P<what>\S.*)",
        says="it ended with exit code {code}; its last line: {last}",
        advice="the program chose this code: read its log",
        next=RANK_LOG,
    ),
    Rule(
        id="exit-silent",
        verdict=CODE,
        pattern="",
        says="it ended with exit code {code} and printed nothing",
        advice="let the program print why it ends",
        next=RANK_LOG,
    ),
)
