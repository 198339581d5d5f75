"""The batch script from a template: the kit's own, or the one that `[slurm] template` names.

A user's template sees the variables of the kit's own and the names of STABLE, which docs/templates.md documents and no version of
the kit takes away. It is rendered in Jinja's sandbox, and a name that it does not know is a fault, as any unknown key is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import jinja2
from jinja2 import meta
from jinja2.sandbox import SandboxedEnvironment

from kit.allocation import Layout
from kit.config import Resolved
from kit.errors import ConfigError, Fault, did_you_mean
from kit.planning.site import Site
from kit.render import MARK, configured, render
from kit.spec.rl import Rl

DEFAULT = "batch.sh"
STABLE = (
    "job_name",
    "project_dir",
    "output_dir",
    "config_dir",
    "num_train_nodes",
    "num_infer_nodes",
    "gpus_per_node",
    "hub_offline",
)


def batch_script(resolved: Resolved, site: Site, layout: Layout, variables: Mapping[str, Any]) -> str:
    """The batch script. ConfigError when the user's template cannot be rendered."""
    if resolved.template is None:
        return render(DEFAULT, variables)
    table = resolved.job.rl or resolved.job.sft
    stable = {
        "job_name": resolved.job.name,
        "project_dir": str(resolved.project),
        "output_dir": str(site.run_dir),
        "config_dir": f"{site.run_dir}/configs",
        "num_train_nodes": table.num_train_nodes if table else layout.nodes,
        "num_infer_nodes": table.num_infer_nodes if isinstance(table, Rl) else 0,
        "gpus_per_node": layout.gpus_per_node,
        "hub_offline": table.hub_offline if table else False,
    }
    file, text = resolved.template
    return _rendered(text, {**stable, **variables}, file=file)


def _rendered(text: str, variables: Mapping[str, Any], *, file: str) -> str:
    """As the kit's own templates: Jinja stands above the mark; without a mark, all of it is Jinja."""
    head, mark, body = text.partition(MARK)
    try:
        parsed = _sandbox().parse(head)
        unknown = sorted(meta.find_undeclared_variables(parsed) - variables.keys() - set(_sandbox().globals))
        if not unknown:
            return _sandbox().from_string(head).render(variables) + mark + body
    except jinja2.TemplateSyntaxError as error:
        fault = Fault(file=file, key=f"line {error.lineno}", got=error.message or "an error", allowed="Jinja")
        raise ConfigError.of(fault) from None
    except Exception as error:  # noqa: BLE001 - whatever the user's template did wrong
        fault = Fault(
            file=file, key="template", got=f"{type(error).__name__}: {error}", allowed="a template that renders"
        )
        raise ConfigError.of(fault) from None
    raise ConfigError.of(*_faults(unknown, variables, file))


def _faults(unknown: list[str], variables: Mapping[str, Any], file: str) -> Iterator[Fault]:
    known = ", ".join(sorted(variables))
    for name in unknown:
        hint = did_you_mean(name, variables)
        yield Fault(file=file, key=name, got="a variable that is not known", allowed=known, hint=hint)


@cache
def _sandbox() -> SandboxedEnvironment:
    """No access to Python's own attributes, and no endless ranges (Jinja's documentation, "Sandbox")."""
    return configured(SandboxedEnvironment)
