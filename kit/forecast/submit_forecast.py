"""Facts about a job before its submit: whether it fits, its first checkpoint, the free space for checkpoints, its end.

Unknown facts are left out, never guessed. Slurm is not asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from kit import model_size
from kit.allocation import kilobytes, minutes
from kit.errors import ConfigError, Fault
from kit.forecast import free_space, gpt_program_options, past_runs, rank_memory
from kit.forecast.free_space import Room
from kit.forecast.gpt_program_options import GptTraining
from kit.forecast.past_runs import PastRun
from kit.planning.plan import Plan
from kit.slurm import embedded
from kit.submission.prepare_run import Prepared

# Above this share of the limit, effects that the arithmetic leaves out decide whether the job fits.
_CLOSE_TO_LIMIT = 0.95
# If times differ by more than this share in both directions, the forecast gives a range instead of one figure.
_STEADY = 0.1
# The speed of a run is not used for a job with this many times its work.
_MAX_WORK_RATIO = 4.0


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Memory in bytes.

    rank: of one rank. ranks: on one node. held: the least that a rank needs. limit: memory of the node or GPU.
    """

    rank: int
    ranks: int
    held: int
    limit: int | None
    on_gpu: bool

    @property
    def whole(self) -> int:
        """The memory that must fit into the limit."""
        return self.rank if self.on_gpu else self.rank * self.ranks

    @property
    def where(self) -> str:
        """The place of the memory, in words."""
        return "a GPU" if self.on_gpu else "a node"


@dataclass(frozen=True, kw_only=True)
class Duration:
    """Seconds from the start to the end, and to the first checkpoint. steps: their number. step: seconds of one, if known.

    basis: the run that the figures come from. exact: that run was the same training, except for its number of steps. least, most:
    by the fastest and the slowest quarter among runs of the same training.
    """

    whole: float
    first_checkpoint: float | None
    steps: int | None
    step: float | None
    basis: str
    exact: bool
    least: float | None = None
    most: float | None = None

    @property
    def between(self) -> tuple[float, float] | None:
        """The least and the most, if they differ too much for one figure: a tenth wider than in the runs that were measured.

        A few short runs do not show the fastest and the slowest time that a run can take.
        """
        if self.least is None or self.most is None or self.most - self.least <= 2 * _STEADY * self.whole:
            return None
        return self.least / (1 + _STEADY), self.most * (1 + _STEADY)


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """The known facts about a job.

    checkpoint: bytes of one, if known. keep: the number of them, 0 if their size is not known. limit: seconds; None for no limit.
    """

    file: str
    fit: Fit | None
    checkpoint: int | None
    keep: int
    room: Room | None
    duration: Duration | None
    limit: float | None
    goes_on: bool


def look(prepared: Prepared) -> Outlook:
    """The outlook of a planned job."""
    plan = prepared.plan
    program = gpt_program_options.of_plan(plan)
    # The runs of a cluster reached over ssh are on that cluster's disks.
    earlier = past_runs.newest(plan) if prepared.host.shares_files else []
    size = _checkpoint(program, earlier)
    folder = plan.run_dir / "checkpoints"
    limit = plan.job.resources.time
    return Outlook(
        file=plan.decisions.resolved.job_file,
        fit=_fit(prepared, program, earlier) if program else None,
        checkpoint=size,
        keep=plan.job.checkpoint.keep or (gpt_program_options.read_default_keep() if size else 0),
        room=free_space.under(folder, env=prepared.env) if size and prepared.host.shares_files else None,
        duration=_duration(program, earlier),
        limit=60 * minutes(limit) or None if limit else None,
        goes_on=bool(plan.job.chain or plan.job.retry.requeue or plan.job.slurm.requeue),
    )


def refuse(outlook: Outlook) -> None:
    """ConfigError for a job that cannot fit, even by the least estimate."""
    fit = outlook.fit
    if fit is None or fit.limit is None:
        return
    held = fit.held if fit.on_gpu else fit.held * fit.ranks
    if held > fit.limit:
        who = "a rank" if fit.on_gpu or fit.ranks == 1 else f"{fit.ranks} ranks"
        verb = "holds" if who == "a rank" else "hold"
        needed = f"{gigabytes(held)} of weights, gradients and moments"
        problem = f"{who} {verb} {needed}, and the job has {gigabytes(fit.limit)} of {fit.where}"
        hint = "launcher fsdp on more nodes, fewer ranks on a node, or a smaller model"
        raise ConfigError.of(Fault(key="args", problem=problem, hint=hint), file=outlook.file)


def warnings(outlook: Outlook) -> list[Fault]:
    """Warnings about what may go wrong."""
    faults = []
    fit, took, room_ = outlook.fit, outlook.duration, outlook.room
    if fit and fit.limit and fit.whole > _CLOSE_TO_LIMIT * fit.limit:
        problem = f"about {gigabytes(fit.whole)} of memory, and the job has {gigabytes(fit.limit)} of {fit.where}: it may not fit"
        faults.append(
            Fault(key="args", problem=problem, hint="a smaller batch, --accumulate, or fewer ranks on a node")
        )
    if took and outlook.limit and took.whole > outlook.limit and not outlook.goes_on:
        problem = f"about {minutes_of(took.whole)}, by {took.basis}, and the limit is {minutes_of(outlook.limit)}"
        faults.append(Fault(key="resources.time", problem=problem, hint="[chain] times = 2, or a longer limit"))
    if room_ and outlook.checkpoint and _fitting(outlook) <= outlook.keep:
        space = f"{gigabytes(room_.free)} {room_.by}"
        problem = f"room for {_fitting(outlook)} checkpoints ({space}), and {outlook.keep + 1} exist at one time"
        hint = "keep = 1, or paths.runs of the cluster on a larger disk"
        faults.append(Fault(key="checkpoint.keep", problem=problem, hint=hint))
    return [replace(one, file=outlook.file) for one in faults]


def sentences(outlook: Outlook, *, start: float | None = None) -> list[str]:
    """Lines to tell the user. start: of the job, in seconds since the epoch."""
    from kit.forecast import time_wording

    lines = []
    if fit := outlook.fit:
        about = f"about {gigabytes(fit.rank)} of memory a rank"
        of = f", {gigabytes(fit.whole)} of {gigabytes(fit.limit)} on {fit.where}" if fit.limit else ""
        lines.append(about + of)
    took = outlook.duration
    if outlook.checkpoint:
        after = (
            f" after about {minutes_of(took.first_checkpoint)}" if took and took.first_checkpoint is not None else ""
        )
        line = f"first checkpoint {gigabytes(outlook.checkpoint)}{after}"
        if outlook.room:
            line += f"; {gigabytes(outlook.room.free)} {outlook.room.by}: room for {_fitting(outlook):,}"
        lines.append(line)
    if took:
        steps = f"{took.steps:,} steps at {took.step:.3g} s, " if took.steps and took.step else ""
        exact = "as" if took.exact else "scaled from"
        end = ""
        if start is not None and took.whole >= 60:
            ends = [time_wording.moment(start + one, start) for one in took.between or (took.whole,)]
            words = " and ".join(one.removeprefix("at ") for one in ends)
            end = f"ends {'between' if took.between else 'about'} {words}, "
        whole = " to ".join(minutes_of(one) for one in took.between or (took.whole,))
        unsteady = "; its steps were not steady" if took.between else ""
        lines.append(f"{end}{whole} after its start ({steps}{exact} {took.basis}{unsteady})")
    return lines


def _fitting(found: Outlook) -> int:
    assert found.room is not None
    return found.room.free // max(1, found.checkpoint or 1)


def _fit(prepared: Prepared, program: GptTraining, earlier: Sequence[PastRun]) -> Fit:
    plan = prepared.plan
    limit = _gpu_limit(plan) if program.on_gpu else _host_limit(prepared)
    rank = rank_memory.of_rank(program)
    measured = next(
        (one for one in earlier if one.memory and one.program and _same_training(one.program, program)), None
    )
    if measured and measured.memory:
        rank = measured.memory
    held = 0 if program.offload and program.on_gpu else rank_memory.held(program)
    return Fit(rank=rank, ranks=plan.allocation.ranks_per_node, held=held, limit=limit, on_gpu=program.on_gpu)


def _gpu_limit(made: Plan) -> int | None:
    """Bytes of a GPU; None if the cluster's file does not say."""
    each = made.decisions.node.gpu_memory
    return 1024 * kilobytes(each) if each else None


def _host_limit(prepared: Prepared) -> int | None:
    """Bytes that the job may use on a node: the amount that it asks for, else the node's memory."""
    made = prepared.plan
    asked = made.allocation.memory or made.decisions.node.memory
    if asked and kilobytes(asked):
        return 1024 * kilobytes(asked)
    running = embedded.find(made.cluster) if prepared.resolved.cluster.embedded else None
    return running.memory_mb << 20 if running else None


def _checkpoint(program: GptTraining | None, earlier: Sequence[PastRun]) -> int | None:
    if program is not None:
        return model_size.checkpoint_bytes(program.shape.parameters, "fp32", "adam").total
    return next((one.checkpoint for one in earlier if one.same and one.checkpoint), None)


def _duration(program: GptTraining | None, earlier: Sequence[PastRun]) -> Duration | None:
    if program is not None:
        timed = [(run, run.program) for run in earlier if run.program and run.step and run.begins is not None]
        if same := [run for run, its in timed if _same_training(its, program)]:
            return _of_steps(program, same, 1.0)
        near = min(timed, key=lambda pair: _work_ratio(pair[1], program), default=None)
        if near and _work_ratio(near[1], program) <= _MAX_WORK_RATIO:
            return _of_steps(program, [near[0]], program.flops / near[1].flops, exact=False)
    done = next((run for run in earlier if run.same and run.whole), None)
    if done is None or done.whole is None:
        return None
    return Duration(whole=done.whole, first_checkpoint=None, steps=None, step=None, basis=done.run_id, exact=True)


def _of_steps(program: GptTraining, like: Sequence[PastRun], work: float, *, exact: bool = True) -> Duration:
    """The duration, from runs of the same training (the newest first) or from one other run.

    work: the factor from its steps to this job's steps.
    """
    steps = [one.step for one in like if one.step]
    begins = [one.begins for one in like if one.begins is not None]
    quarters = [one for run in like for one in run.quarters] or steps
    save = median([one.save for one in like if one.save is not None] or [0.0])
    test = median([one.evaluate for one in like if one.evaluate is not None] or [0.0])
    ends = median([one.ends for one in like if one.ends is not None] or [save])
    saves = (program.steps - 1) // program.every if program.every else 0
    tests = program.steps // program.eval_every if program.eval_every else 0

    def whole(begin: float, step: float) -> float:
        return begin + program.steps * step * work + saves * save + tests * test + ends

    step = median(steps)
    took = whole(median(begins), step)
    first = median(begins) + program.every * step * work + save if 0 < program.every < program.steps else took
    return Duration(
        whole=took,
        first_checkpoint=first,
        steps=program.steps,
        step=step * work,
        basis=like[0].run_id,
        exact=exact,
        least=whole(min(begins), min(quarters)),
        most=whole(max(begins), max(quarters)),
    )


def _same_training(one: GptTraining, other: GptTraining) -> bool:
    """Whether two trainings are the same, except for their number of steps, checkpoints and evaluations."""
    return replace(one, steps=0, every=0, eval_every=0) == replace(other, steps=0, every=0, eval_every=0)


def _work_ratio(one: GptTraining, other: GptTraining) -> float:
    ratio = one.flops / other.flops
    return max(ratio, 1 / ratio) if (one.kind, one.on_gpu) == (other.kind, other.on_gpu) else float("inf")


def gigabytes(count: int) -> str:
    """A size in words: `1.2 GB`, `340 MB`."""
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.0f} MB"


def minutes_of(seconds: float) -> str:
    """A duration in words: `45 s`, `2 h 10 min`."""
    from kit.forecast.time_wording import span

    return span(seconds)
