"""From a plan to a run: checks what may fail, writes the run folder, and gives the job to Slurm."""

from __future__ import annotations

import getpass
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from kit.errors import LockError, SlurmError
from kit.hosts.host import Inputs, NeededImage, NewRun
from kit.record import manifest, secret
from kit.slurm import client, embedded
from kit.submission import folder, workspace
from kit.submission.prepare_run import Prepared


def ask_slurm(prepared: Prepared) -> client.ExpectedStart | None:
    """Ask Slurm whether it would accept the job; return its estimate of the start.

    A refusal may be due to nodes that the kit itself excludes; then the error names them.
    """
    made, avoided = prepared.plan, prepared.plan.decisions.site.avoid
    try:
        return client.test_only(made.text_of("batch.sh"), env=prepared.env, options=made.argv[2:-1])
    except SlurmError as error:
        if avoided:
            problem = f"the job excludes {', '.join(avoided)} (see 'kit nodes')"
            raise type(error)(f"{error.message}\n  {problem}", hint=f"kit nodes --forget {avoided[0]}") from None
        raise


def record_of(prepared: Prepared, *, patch: str, now: datetime | None) -> manifest.Manifest:
    """The manifest of a run that is about to be submitted. patch: the difference between workspace and commit."""
    record = manifest.make_manifest(
        prepared.plan,
        job_file=prepared.job_file,
        user=getpass.getuser(),
        now=now or datetime.now(UTC),
        slurm_version=client.version(env=prepared.env),
        workspace=workspace.record(prepared.scan, prepared.resolved, patch=bool(patch)),
    )
    return record.model_copy(update={"partner": prepared.partner.run_id}) if prepared.partner else record


def submit(
    prepared: Prepared,
    *,
    now: datetime | None = None,
    expected: Callable[[client.ExpectedStart | None], None] = lambda _: None,
    ready: bool = False,
) -> manifest.Manifest:
    """Write the run folder and submit it. Nothing is left behind if the image does not match its lock, or if sbatch refuses.

    UnconfirmedError if it is not known whether Slurm has taken the job; then the run folder stays.

    expected: called with Slurm's estimate of the start, before the job is in the queue, where that is on this machine. ready:
    `make_ready` was called.
    """
    start = None if ready else make_ready(prepared)
    if prepared.host.shares_files and not ready:
        expected(start)
    run = new_run(prepared, now=now)
    keep_code(prepared)
    return prepared.host.submit(run)


def new_run(prepared: Prepared, *, now: datetime | None = None, interactive: bool = False) -> NewRun:
    """What the cluster's host needs to make the run folder and to submit the job. interactive: it is a shell's."""
    plan, earlier = prepared.plan, prepared.earlier
    patch = "" if interactive else workspace.patch(prepared.scan) or (earlier.patch() if earlier else "")
    record = record_of(prepared, patch=patch, now=now)
    record = earlier.told(record) if earlier else record
    record = record.model_copy(update={"interactive": True}) if interactive else record
    secrets = secrets_of(prepared)
    return NewRun(
        run_dir=plan.run_dir,
        record=record,
        fill=lambda into: folder.fill(into, plan, record, secrets=secrets, patch=patch),
        argv=plan.argv,
        script=plan.text_of("batch.sh"),
        env=prepared.env,
        links=plan.job.chain.times - 1 if plan.job.chain else 0,
    )


def keep_code(prepared: Prepared) -> None:
    """Store the run's snapshot next to the runs. A cluster that does not share this machine's files was sent it."""
    if prepared.host.shares_files:
        workspace.keep(prepared.scan, prepared.plan)
        if prepared.earlier:
            prepared.earlier.keep(prepared.site.runs_dir)


def make_ready(prepared: Prepared) -> client.ExpectedStart | None:
    """Do everything that may fail before a job is submitted, and ask Slurm; return Slurm's estimate.

    Errors of `require_ready`, and SlurmError if Slurm would refuse the job.
    """
    require_ready(prepared)
    return ask_slurm(prepared)


def secrets_of(prepared: Prepared) -> dict[str, str]:
    """Name -> value of the job's secrets; see `secret.gather`."""
    resolved = prepared.resolved
    token = {secret.RELAY_TOKEN: prepared.partner.token} if prepared.partner else {}
    return secret.gather(resolved.job, job_dir=resolved.job_dir, job_file=resolved.job_file) | token


def require_ready(first: Prepared, *others: Prepared) -> None:
    """Make sure that the cluster is up and has the images and the code of these jobs, which differ in their images only.

    SlurmError if it is not up; LockError if an image is missing, or does not match its lock, or is not signed.
    """
    resolved = first.resolved
    if resolved.cluster.embedded and embedded.find(resolved.cluster_name) is None:
        raise SlurmError(f"cluster {first.plan.cluster!r} is not up", hint=_up_hint(first.plan.cluster))
    for prepared in (first, *others):
        _require_signatures(prepared)
    first.host.require_inputs(_inputs([first, *others]))


def _inputs(jobs: Sequence[Prepared]) -> Inputs:
    """The images of these jobs, each once, and the code of the first."""
    pins = (pinned for one in jobs for pinned in one.plan.decisions.pins.distinct)
    images = {
        pinned.lock.sha256: NeededImage(lock=pinned.lock, store=Path(pinned.stored).parent.parent)
        for pinned in pins
        if pinned.lock is not None
    }
    scan, earlier = jobs[0].scan, jobs[0].earlier
    code = None
    if scan:
        code = (scan.tree, scan.folder)
    elif earlier and earlier.code:
        tree, store = earlier.code
        code = (tree, store.files_of(tree.hash))
    return Inputs(images=[*images.values()], code=code, rebuild=earlier.rebuild if earlier else None)


def _require_signatures(prepared: Prepared) -> None:
    """LockError if the cluster names signers and the lock of an image has no signature by one of them."""
    from kit.images import image_lock, signature

    resolved = prepared.resolved
    signers = resolved.cluster.store.signers
    pins = prepared.plan.decisions.pins
    for asked, pinned in [(resolved.job.image_name, pins.own), *pins.of_roles.items()] if signers else ():
        if asked and pinned.lock:
            signature.require_name(pinned.lock.name, asked)
    for pinned in pins.distinct if signers else ():
        if pinned.lock is None:
            problem = "cluster {!r} takes signed images only, and a reference has no lock that could be signed"
            raise LockError(f"{pinned.image}: {problem.format(resolved.cluster_name)}", hint="kit import-image")
        name = pinned.lock.name
        path = image_lock.find(name, project=resolved.project)
        if prepared.earlier and (path is None or image_lock.read_lock(path) != pinned.lock):
            problem = f"the cluster takes signed images only, and {prepared.earlier.run_dir.name} ran in another one than is signed"
            raise LockError(
                f"image {name}: {problem}", hint=f"kit rerun {prepared.earlier.run_dir.name} --set image={name}"
            )
        if path is None or image_lock.read_lock(path) != pinned.lock:
            raise LockError(f"image {name}: its lock changed while the job was planned", hint="submit again")
        signature.require(path, signers, what=f"image {name}")


def _up_hint(cluster: str) -> str:
    return "run 'kit cluster up'" if cluster == "local" else f"run 'kit cluster up --name {cluster}'"
