"""Megatron-LM: writes the `[megatron]` and `[checkpoint]` tables as options of pretrain_gpt.py, after megatron_rules.py checked
them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kit.allocation import Allocation
from kit.errors import Fault
from kit.frameworks import megatron_options, megatron_rules, program_releases
from kit.frameworks.base import Extra, Framework
from kit.schema.checkpoint_and_tracking import Checkpoint
from kit.schema.checkpoint_and_tracking import MegatronArguments as Table
from kit.schema.job import Job
from kit.schema.launcher import Launcher

# The path that the ranks see; plan() fills in the run folder.
_CHECKPOINTS = "{run}/checkpoints"


class Megatron:
    """Adds options of pretrain_gpt.py; nothing when the job has no [megatron]."""

    tables = ("megatron",)

    def resources(self, job: Job) -> dict[str, int]:
        """No resources: the [megatron] table does not set any."""
        return {}

    def faults(self, job: Job, launcher: Launcher, allocation: Allocation) -> Iterator[Fault]:
        """Unknown options, broken rules of Megatron-LM, checkpoint keys that it cannot honour, and unsuitable environment
        variables.
        """
        if job.megatron is None:
            return
        options = completed(job.megatron, job.checkpoint)
        yield from megatron_options.faults(options, program_releases.chosen(job))
        yield from megatron_rules.broken(options, allocation.world_size)
        yield from _checkpoint(job.checkpoint)
        yield from _environment(options, job.env, by_run_py=job.is_launchers)

    def prepare(self, job: Job, launcher: Launcher, allocation: Allocation) -> Extra:
        """The completed options as arguments."""
        if job.megatron is None:
            return Extra()
        options = completed(job.megatron, job.checkpoint)
        return Extra(args=tuple(megatron_options.words(options, program_releases.chosen(job))))


framework: Framework = Megatron()


def completed(table: Table, checkpoint: Checkpoint) -> dict[str, Any]:
    """All options: those of the job, and those derived from them or from [checkpoint]."""
    options = table.options()
    if "step_batch_size_schedule" in options and "global_batch_size" not in table.model_fields_set:
        del options["global_batch_size"]  # Megatron-LM takes only one of the two
    options.setdefault("max_position_embeddings", table.seq_length)
    if table.num_query_groups is not None:  # without this switch, Megatron-LM silently ignores the number of groups
        options.setdefault("group_query_attention", True)
    if checkpoint.every:
        folder = checkpoint.dir or _CHECKPOINTS
        options = {"save": folder, "load": folder, "save_interval": checkpoint.every, **options}
    if checkpoint.async_:  # without the persistent worker, Megatron-LM disables async saving again
        options = {"async_save": True, "use_persistent_ckpt_worker": True, **options}
    if "save" in options:  # on SIGTERM it saves and ends; run.py turns the lead signal into SIGTERM
        options.setdefault("exit_signal_handler", True)
    return options


def _checkpoint(checkpoint: Checkpoint) -> Iterator[Fault]:
    """Keys of [checkpoint] for which Megatron-LM has no option."""
    if checkpoint.every == 0:
        yield Fault(key="checkpoint.every", problem="0 is too small: Megatron-LM saves by steps", hint="every = 1000")
    if checkpoint.keep is not None:
        problem = (
            "Megatron-LM cannot keep the newest ones: it removes only checkpoints whose step is not a multiple of "
            "megatron.save_retain_interval"
        )
        yield Fault(key="checkpoint.keep", problem=problem, hint="remove the line")


def _environment(options: dict[str, Any], env: dict[str, str], *, by_run_py: bool) -> Iterator[Fault]:
    wide = [key for key in ("tensor_model_parallel_size", "context_parallel_size") if options[key] > 1]
    free = any(options.get(key) for key in ("use_torch_fsdp2", "use_megatron_fsdp", "overlap_moe_expert_parallel_comm"))
    if wide and not free and env.get("CUDA_DEVICE_MAX_CONNECTIONS") != "1":
        problem = f"megatron.{wide[0]} = {options[wide[0]]} needs 1 connection on GPUs before Blackwell"
        yield Fault(key="env.CUDA_DEVICE_MAX_CONNECTIONS", problem=problem, hint='CUDA_DEVICE_MAX_CONNECTIONS = "1"')
    fsdp = next((name for name in ("use_torch_fsdp2", "use_megatron_fsdp") if options.get(name)), None)
    # The launcher's run.py removes the variable for it; a script of the user's own gets it as it is.
    if fsdp and not by_run_py and env.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1":
        problem = f"megatron.{fsdp} needs more than one connection"
        yield Fault(key="env.CUDA_DEVICE_MAX_CONNECTIONS", problem=problem, hint='CUDA_DEVICE_MAX_CONNECTIONS = "8"')
