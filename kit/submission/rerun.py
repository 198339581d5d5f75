"""`kit rerun`: a new run from the inputs of an earlier one: the same code, image, job and seed."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from kit.errors import LockError, RunError
from kit.files import untrusted_files
from kit.hosts import clusters
from kit.schema.world_size_text import sizes_text
from kit.submission import prepare_run
from kit.submission import recorded_inputs as reading
from kit.submission.prepare_run import Prepared
from kit.submission.recorded_inputs import Earlier
from kit.version import __version__

# Keys of a cluster file that have no effect on a job.
_UNSEEN = frozenset({"description", "defaults", "qos", "default_qos", "max_array"})


def prepare_rerun(
    run_dir: Path,
    *,
    cluster: str | None = None,
    overrides: Sequence[str] = (),
    from_step: int | None = None,
    live: bool = False,
    now: datetime | None = None,
) -> Prepared:
    """Plan a run that repeats `run_dir`, whose files are fetched if it is on a cluster over ssh. `submit.submit` submits it.

    cluster: another one. overrides: keys to change, in the form of `--set`. from_step: begin at that checkpoint of the run. live:
    use the job's folder as it is now. RunError and LockError, with the exact reason, if something of the run is missing. UsageError
    for a checkpoint that is on a cluster over ssh.
    """
    if from_step is not None:
        clusters.require_here(run_dir, "a rerun from a checkpoint")
    clusters.fetch_whole(run_dir)
    earlier = reading.read_inputs(run_dir, live=live, from_step=from_step)
    return prepare_earlier(earlier, cluster=cluster, overrides=overrides, now=now)


def prepare_earlier(
    earlier: Earlier, *, cluster: str | None = None, overrides: Sequence[str] = (), now: datetime | None = None
) -> Prepared:
    """Plan the repetition of a run whose inputs are read already."""
    if earlier.manifest.partner:
        problem = f"run {earlier.manifest.run_id} is one half of a training over two clusters"
        raise RunError(problem, hint=f"kit submit {earlier.manifest.job_file} --cluster a,b")
    sources = earlier.sources(cluster=cluster, overrides=list(overrides))
    resolved = earlier.resolve(sources)
    containers = not _without_container(earlier)
    made = prepare_run.prepare_resolved(resolved, sources.job_file, containers=containers, now=now, earlier=earlier)
    _require_same_image(earlier, made)
    return made


def differences(prepared: Prepared) -> Iterator[str]:
    """Reasons why its numbers may differ from those of the repeated run, at least in the last bits; one sentence each."""
    earlier = prepared.earlier
    assert earlier is not None
    was, plan = earlier.manifest, prepared.plan
    if sizes_text(was.world_sizes) != sizes_text(plan.world_sizes):
        sizes = f"{sizes_text(plan.world_sizes)} ranks instead of {sizes_text(was.world_sizes)}"
        yield f"{sizes}: sums over ranks are rounded otherwise"
    if was.runtime != plan.job.container.runtime:
        yield f"runtime {plan.job.container.runtime} instead of {was.runtime}"
    if was.versions.get("kit") != __version__:
        yield f"kit {was.versions.get('kit')} made the run; its scripts are those of kit {__version__} now"
    if why := prepared.resolved.launcher.varies:
        yield f"launcher {plan.job.launcher} does not repeat to the bit: {why}"
    changed = ", ".join(_changed_cluster(earlier, prepared))
    if changed and was.cluster == plan.cluster:
        yield f"cluster {plan.cluster} has changed since: {changed}"


def _changed_cluster(earlier: Earlier, prepared: Prepared) -> Iterator[str]:
    try:
        was: dict[str, Any] = tomllib.loads(untrusted_files.read_text(earlier.paths.cluster))
    except OSError:
        return
    now = tomllib.loads(prepared.plan.text_of("cluster.toml"))
    yield from (key for key in sorted({*was, *now} - _UNSEEN) if was.get(key) != now.get(key))


def _without_container(earlier: Earlier) -> bool:
    """Whether it was submitted with --no-container."""
    return earlier.manifest.runtime == "bare" and earlier.manifest.layer_of("container.runtime") is None


def _require_same_image(earlier: Earlier, prepared: Prepared) -> None:
    """LockError if the image of that name has changed, and the user asked for no other image."""
    was, pin = earlier.manifest, prepared.plan.decisions.pin
    if not pin.image or pin.digest == was.image_digest or prepared.plan.job.image_name != was.image_name:
        return
    if not was.image_digest:
        return  # it ran without a container
    problem = f"run {was.run_id} ran in {was.image_digest}, and its lock names {pin.digest} now"
    hint = f"put the lock of {was.submitted_at:%Y-%m-%d} back, then: kit build-image {was.image_name} --locked"
    raise LockError(f"image {was.image_name}: {problem}", hint=hint)
