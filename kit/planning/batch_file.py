"""Renders the batch script from a template: the kit's own, or the one that `[slurm] template` names.

A user's template gets the variables of the kit's own template, and the names in STABLE. docs/guides/templates.md documents these,
and no version of the kit removes them. Jinja renders it in its sandbox. Unknown names are refused, as unknown keys are. A plain
script is not rendered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jinja2
from jinja2 import meta

from kit.errors import ConfigError, Fault, nearest
from kit.planning import foreign_script, parts, site_shell, steps, template_sandbox
from kit.planning.decisions import Decisions
from kit.planning.sbatch_header import explanation, sbatch_options
from kit.render import configured, render
from kit.schema import own_batch_script
from kit.schema.world_size_text import world_text

DEFAULT, FOREIGN = "bin/batch.sh", "bin/foreign.sh"
STABLE = (
    "job_name",
    "project_dir",
    "output_dir",
    "config_dir",
    "num_train_nodes",
    "num_infer_nodes",
    "gpus_per_node",
    "hub_offline",
    # The same by the names of prime-rl's own templates.
    "hf_hub_offline",
    "num_nodes",
)
AVOID_DIR = ".avoid"
# Functions that a message names.
_MOST_NAMED = 4
# This is below Linux's ephemeral ports (from 32768). nodes.sh chooses from 10,000 ports from here on, by job id.
_PORT_BASE = 20_000


def batch_script(decisions: Decisions) -> str:
    """The batch script. ConfigError when the user's template cannot be rendered.

    A script that is not the kit's runs below one of the kit (`foreign_script`).
    """
    text = users_script(decisions)
    if text is None:
        return render(DEFAULT, _variables(decisions))
    if not own_batch_script.is_of_the_kit(text):
        return render(FOREIGN, foreign_script.variables(decisions, text))
    if fault := _of_another_release(decisions, text):
        raise ConfigError.of(fault)
    return text


def _of_another_release(decisions: Decisions, text: str) -> Fault | None:
    """What a changed copy of the kit's own script needs and this release does not have, or needs and the copy does not do."""
    file, _ = decisions.resolved.template or ("", "")
    if missing := own_batch_script.missing_functions(text, parts.texts(decisions)):
        named = ", ".join(missing[:_MOST_NAMED]) + (", …" if len(missing) > _MOST_NAMED else "")
        problem = f"the script is a changed copy of the kit's own of another release, and calls functions that are gone: {named}"
        hint = "kit template eject new.sbatch.j2, and make your changes there"
        return Fault(file=file, key="template", problem=problem, hint=hint)
    if decisions.site.snapshot and not own_batch_script.copies_workspace(text):
        problem = (
            "the script sources lib/retry.sh, as the kit's own does, but does not copy the job's folder into the run"
        )
        hint = "kit template eject new.sbatch.j2, whose `parts::require prepare` does"
        return Fault(file=file, key="template", problem=problem, hint=hint)
    return None


def foreign(decisions: Decisions) -> str | None:
    """The user's batch script if it is not the kit's own, perhaps changed; None if it is, or if there is none."""
    text = users_script(decisions)
    return None if text is None or own_batch_script.is_of_the_kit(text) else text


def users_script(decisions: Decisions) -> str | None:
    """The batch script that `[slurm] template` names, rendered; None without one."""
    if decisions.resolved.template is None:
        return None
    file, text = decisions.resolved.template
    if not own_batch_script.is_template(text):
        return text
    return _rendered(text, {**_stable(decisions), **parts.variables(decisions), **_variables(decisions)}, file=file)


def _variables(decisions: Decisions) -> dict[str, Any]:
    """The variables of the kit's own template."""
    head = {"sbatch": sbatch_options(decisions), "explained": [*explanation(decisions)]}
    return {**head, **_settings(decisions), **_steps(decisions)}


def _settings(decisions: Decisions) -> dict[str, Any]:
    """The settings of the batch script."""
    job = decisions.job
    return {
        "run_dir": decisions.site.run_dir,
        "code": parts.code_digest(decisions),
        "job_name": job.name,
        "images": [word for pin in decisions.pins.distinct for word in (pin.image, pin.digest)],
        "runtime": job.container.runtime,
        "nodes": decisions.allocation.nodes,
        "world": world_text(decisions.world_sizes),
        "debug": job.debug,
        "lead": job.slurm.lead,
        "lead_signals": job.slurm.lead_signals,
        "grace": job.slurm.time_to_save,
        "port_base": _PORT_BASE,
        "avoid_dir": f"{decisions.site.runs_dir}/{AVOID_DIR}",
        "inherit": tuple(dict.fromkeys((*job.inherit, *site_shell.carried(decisions)))),
        "outlives": decisions.outlives,
    }


def _steps(decisions: Decisions) -> dict[str, Any]:
    """The steps that the batch script starts."""
    return {
        "step_argv": steps.role_step(decisions, decisions.main),
        "roles": [{"facts": r.facts(), "env": r.env(), "argv": steps.role_step(decisions, r)} for r in decisions.roles],
        "step_groups": steps.step_groups(decisions),
        "signal_argv": steps.signal_step(decisions),
        # For templates that were ejected before parts had constants.
        "image_chain": steps.image_chain(decisions),
        "parts": parts.called_parts(decisions),
        "constants": parts.constants(decisions),
    }


def _stable(decisions: Decisions) -> dict[str, Any]:
    """The variables named in STABLE."""
    table = decisions.job.rl or decisions.job.sft
    offline = table.hub_offline if table else False
    return {
        "job_name": decisions.job.name,
        "project_dir": str(decisions.resolved.project),
        "output_dir": str(decisions.site.run_dir),
        "config_dir": f"{decisions.site.run_dir}/configs",
        "num_train_nodes": table.num_train_nodes if table else decisions.allocation.nodes,
        "num_infer_nodes": sum(one.nodes for one in table.servers().values()) if table else 0,
        "gpus_per_node": decisions.allocation.gpus_per_node,
        "hub_offline": offline,
        "hf_hub_offline": offline,
        "num_nodes": decisions.allocation.nodes,
    }


def _rendered(text: str, variables: Mapping[str, Any], *, file: str) -> str:
    """Render a user's template. As in the kit's own templates, Jinja applies only above the mark; without a mark, to all of it."""
    head, mark, body = text.partition(own_batch_script.MARK)
    try:
        sandbox = configured(template_sandbox.Sandbox)
        parsed = sandbox.parse(head)
        unknown = sorted(meta.find_undeclared_variables(parsed) - variables.keys() - set(sandbox.globals))
        if not unknown:
            return sandbox.from_string(sandbox.counting(parsed)).render(variables) + mark + body
    except jinja2.TemplateSyntaxError as error:
        problem, hint = (
            f"not valid Jinja: {error.message}",
            "kit template eject new.sbatch.j2, to start from the kit's own",
        )
        fault = Fault(file=file, key=f"line {error.lineno}", problem=problem, hint=hint)
        raise ConfigError.of(fault) from None
    except Exception as error:  # noqa: BLE001 - whatever the user's template did wrong
        problem = f"the template cannot be rendered: {error}"
        hint = "kit template eject new.sbatch.j2, to start from the kit's own"
        fault = Fault(file=file, key="template", problem=problem, hint=hint)
        raise ConfigError.of(fault) from None
    raise ConfigError.of(*_faults(unknown, variables, file))


def _faults(unknown: list[str], variables: Mapping[str, Any], file: str) -> Iterator[Fault]:
    known = ", ".join(sorted(variables))
    for name in unknown:
        near = nearest(name, variables) or "job_name"
        problem = "the template asks for a variable that the kit does not have"
        yield Fault(file=file, key=name, problem=problem, allowed=known, hint=f"{{{{ {near} }}}}")
