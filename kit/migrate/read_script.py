"""Walks over the statements of a batch script, and gives each its place in the job or in the report."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from kit.migrate import after_ranks, bash_tree, before_ranks, cluster_file, header, names_in_lines, reading, steps
from kit.migrate.bash_tree import ASSIGNMENTS, commands_of, name_of, text_of
from kit.migrate.reading import ScriptState
from kit.migrate.report import Migration, Places, UnreadError
from kit.schema import sbatch_lines, sbatch_sizes

if TYPE_CHECKING:
    from tree_sitter import Node

_SHELL = re.compile(r"#!\s*(/usr)?(/local)?/bin/(env\s+(-S\s+)?)?(ba|da|z)?sh(?P<options>(\s+\S+)*)\s*")
_BY_THE_KIT = (
    "The ranks start in a copy of the job file's folder, and what they write there is in the run folder; snapshot = false "
    "starts them in the folder itself.",
    "sbatch hands the whole environment of your shell to the job; the kit hands over the names in inherit.",
    "The kit sets PYTHONNOUSERSITE=1, PYTHONFAULTHANDLER=1, PYTHONUNBUFFERED=1, and OMP_NUM_THREADS where nothing else sets it.",
    "The ranks get a signal to save before the time limit: slurm.signal, slurm.lead.",
    "One rank that fails ends the others.",
)


def read_script(path: Path, text: str) -> Migration:
    """The report on a script, with the job's keys. Runs nothing."""
    script = reading.begin(path, text)
    root = bash_tree.parse(text)
    script.job["name"] = sbatch_lines.name_of(path.stem)
    options = header.read_header(text, script.report, script.job)
    read_sizes = sbatch_sizes.read_sizes(options.counts, script.job["resources"])
    script.sizes = script.variables.sizes = read_sizes
    script.values.known |= read_sizes.slurm_variables()
    script.report.refused += read_sizes.problems
    script.lines.assigned |= set(names_in_lines.set_by(root))
    if options.chdir:
        folder, places = options.chdir
        before_ranks.to_folder(folder, f"--chdir={folder}", script, places)
    any_program = not any(steps.starts_ranks(one, any_program=False) for one in commands_of(root))
    for node in root.children:
        if node.is_named and node.type not in ("heredoc_body", "heredoc_end"):
            _statement(node, script, any_program=any_program)
    _finish(script)
    return script.report


def _statement(node: Node, script: ScriptState, *, any_program: bool) -> None:
    places = Places()
    if node.type == "comment" and text_of(node).startswith("#SBATCH"):
        return
    try:
        _place(node, script, places, any_program=any_program)
    except (UnreadError, ValueError) as error:
        places.unread(str(error))
    script.enter(node, places)


def _place(node: Node, script: ScriptState, places: Places, *, any_program: bool) -> None:
    commands = [one for one in commands_of(node) if steps.starts_ranks(one, any_program=any_program)]
    if node.type == "comment":
        _comment(node, places)
    elif node.has_error:
        raise UnreadError("this is no bash that the parser knows")
    elif commands and node.type not in ASSIGNMENTS:
        steps.place(node, commands, script, places)
    elif node.type == "command" and name_of(node) == "srun":
        steps.helper(node, script, places)
    elif script.steps:
        after_ranks.place(node, script, places)
    elif node.type in ASSIGNMENTS:
        script.variables.statement(node, places)
    else:
        before_ranks.place(node, script, places)


def _comment(node: Node, places: Places) -> None:
    text = text_of(node)
    if not text.startswith("#!"):
        places.out("a comment")
    elif not (shell := _SHELL.fullmatch(text)):
        places.unread(f"{text}: kit migrate reads scripts of bash")
    elif shell["options"].strip():
        places.check(f"{text}: the kit's scripts run in bash without a login or options: add what they need to setup")
    else:
        places.kit(f"{text}: the kit's scripts run in bash")


def _finish(script: ScriptState) -> None:
    report, job = script.report, script.job
    if script.steps != 1:
        problem = (
            f"the script starts {script.steps} programs, and a job of one program starts one"
            if script.steps
            else "the script starts no program that kit migrate knows"
        )
        report.refused.append(problem)
    if script.exit_trap:
        places = Places()
        try:
            after_ranks.at_the_end(script, places)
        except UnreadError as error:
            report.refused.append(f"the trap at EXIT: {error}")
    report.open += script.variables.finish()
    if "@" in script.values.used:
        report.open.append('"$@": without words after the script it is empty; kit submit -- WORDS adds words to args')
    if job.get("image") and script.lines.has("setup"):
        report.open.append(
            "setup: with an image its lines run in the container, and in the script they run on the node"
        )
    if job["slurm"].get("signal") and "time" not in job["resources"]:
        report.open.append(
            "slurm.signal: set resources.time: without a limit of its own, a job gets no signal before it"
        )
    script.lines.write(job)
    report.cluster = cluster_file.describe(job, script.sizes)
    report.close(script.text)
    report.job = {name: value for name, value in job.items() if value not in ({}, [])}
    report.by_the_kit += _BY_THE_KIT
    for name, line in script.values.doubted.items():
        report.by_the_kit.append(
            f"${name} has the value that the script gives it before '{line}', which could change it."
        )
    if script.lines.has("after"):
        report.by_the_kit.append(
            "Lines of [after] run after a failure, too, for 600 s at most (timeout_s), and not when Slurm itself ends the job."
        )
    if "cpus_per_node" not in job["resources"]:
        report.by_the_kit.append(
            "The script names no CPUs: the kit asks for those of the node, in proportion to the GPUs."
        )
