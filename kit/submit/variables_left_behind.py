"""Names variables of the submitter's shell that look as if they were meant for the program, and that the ranks do not get."""

from __future__ import annotations

import re
from collections.abc import Mapping

from kit.config import Resolved
from kit.errors import Fault
from kit.slurm import client
from kit.validation import toml

# What people set for a run of NCCL, torch, OpenMP, a tracker or Hugging Face. Secrets have a key of their own.
_MEANT = re.compile(
    r"(NCCL|GLOO|UCX|FI|OMPI|TORCH|TORCHINDUCTOR|PYTORCH|TRITON|OMP|MKL|KMP|WANDB|MLFLOW|HF|TRANSFORMERS|DS|XLA)_\w+"
    # Terraform's names begin with TF_, too.
    r"|TF_(CPP|CONFIG|ENABLE|FORCE|GPU|NUM|XLA)\w*"
    r"|CUDA_(LAUNCH_BLOCKING|DEVICE_ORDER|DEVICE_MAX_CONNECTIONS)|PYTHONHASHSEED|TOKENIZERS_PARALLELISM"
)
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW")
# With more of them, only these are printed.
_NAMED = 8


def left_behind(resolved: Resolved, environ: Mapping[str, str]) -> Fault | None:
    """A warning with the names, and the line that keeps them; None if there are none. environ: of the submitter."""
    job, cluster = resolved.job, resolved.cluster
    set_here = {*job.env, *cluster.network, *(name for role in job.roles.values() for name in role.env)}
    asked = (*cluster.inherit, *job.inherit)
    names = sorted(
        name
        for name in environ
        if _MEANT.fullmatch(name)
        and not _SECRET.search(name)
        and name not in set_here
        and not client.inherits(asked, name)
    )
    if not names:
        return None
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    problem = f"the ranks do not get these variables of your shell: {', '.join(names[:_NAMED])}{more}"
    hint = f"inherit = {toml([*job.inherit, *_patterns(names)])}, or unset them"
    return Fault(key="inherit", problem=problem, hint=hint, file=resolved.job_file)


def _patterns(names: list[str]) -> list[str]:
    """The names, and one pattern for three or more of a library."""
    libraries = [name.partition("_")[0] for name in names]
    found = (f"{lib}_*" if libraries.count(lib) > 2 else name for lib, name in zip(libraries, names, strict=True))
    return list(dict.fromkeys(found))
