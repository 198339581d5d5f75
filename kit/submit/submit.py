"""From a plan to a run: checks what may fail, writes the run folder, and gives the job to Slurm."""

from __future__ import annotations

import getpass
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from kit.errors import LockError, SlurmError, UnconfirmedError
from kit.files import hold_signals
from kit.hosts import submission
from kit.record import manifest, secret
from kit.slurm import client, embedded
from kit.submit import chain, folder, output_folders, workspace
from kit.submit.prepare_run import Prepared


def ask_slurm(prepared: Prepared) -> client.ExpectedStart | None:
    """Ask Slurm whether it would accept the job; return its estimate of the start.

    A refusal may be due to nodes that the kit itself excludes; then the error names them.
    """
    made, avoided = prepared.plan, prepared.plan.decisions.site.avoid
    try:
        return client.test_only(made.text_of("batch.sh"), env=prepared.env, options=made.argv[2:-1])
    except SlurmError as error:
        if avoided:
            problem = f"the job is kept off {', '.join(avoided)}, which 'kit nodes' lists"
            raise type(error)(f"{error.message}\n  {problem}", hint=f"kit nodes --forget {avoided[0]}") from None
        raise


def record_of(prepared: Prepared, *, patch: str, now: datetime | None) -> manifest.Manifest:
    """The manifest of a run that is about to be submitted. patch: the difference between workspace and commit."""
    made = manifest.of(
        prepared.plan,
        job_file=prepared.job_file,
        user=getpass.getuser(),
        now=now or datetime.now(UTC),
        slurm_version=client.version(env=prepared.env),
        workspace=workspace.record(prepared.scan, prepared.resolved, patch=bool(patch)),
    )
    return made.model_copy(update={"partner": prepared.partner.run_id}) if prepared.partner else made


def submit(
    prepared: Prepared,
    *,
    now: datetime | None = None,
    expected: Callable[[client.ExpectedStart | None], None] = lambda _: None,
    ready: bool = False,
) -> manifest.Manifest:
    """Write the run folder and submit it. Nothing is left behind if the image does not match its lock, or if sbatch refuses.

    UnconfirmedError if it is not known whether Slurm has taken the job; then the run folder stays.

    expected: called with Slurm's estimate of the start, before the job is in the queue; not for a cluster over ssh. ready:
    `make_ready` was called.
    """
    made, earlier = prepared.plan, prepared.earlier
    start = None if ready else make_ready(prepared)
    if prepared.remote:
        from kit.submit import remote_submit

        return remote_submit.submit(prepared, prepared.remote, now=now)
    if not ready:
        expected(start)
    patch = workspace.patch(prepared.scan) or (earlier.patch() if earlier else "")
    record = record_of(prepared, patch=patch, now=now)
    workspace.keep(prepared.scan, made)
    if earlier:
        record = earlier.told(record)
        earlier.keep(prepared.site.runs_dir)
    paths = folder.create(made, record, secrets=secrets_of(prepared), patch=patch)
    try:
        # When Slurm has accepted a job, its number is always recorded in the folder, even if the user interrupts.
        with hold_signals.uninterrupted(), output_folders.folders([made.text_of("batch.sh")]):
            job_id = submission.submit(made.argv, env=prepared.env, note=paths.submission)
            links = chain.send(made, job_id, env=prepared.env)
            record = record.model_copy(update={"job_id": job_id, "links": links})
            record.write(paths.manifest)
            submission.confirmed(paths.submission)
    except UnconfirmedError:
        # Slurm may have the job. The next command that looks at the run finds out, by the mark.
        raise
    except BaseException:
        if record.job_id is None:
            folder.remove(made.run_dir)
        raise
    return record


def make_ready(prepared: Prepared) -> client.ExpectedStart | None:
    """Do everything that may fail before a job is submitted: send what its cluster lacks, and ask Slurm; return Slurm's estimate.

    Errors of `require_ready`, and SlurmError if Slurm would refuse the job.
    """
    require_ready(prepared)
    if prepared.remote:
        from kit.submit import remote_submit

        remote_submit.send_what_it_lacks(prepared, prepared.remote)
    return ask_slurm(prepared)


def secrets_of(prepared: Prepared) -> dict[str, str]:
    """Name -> value of the job's secrets; see `secret.gather`."""
    resolved = prepared.resolved
    token = {secret.RELAY_TOKEN: prepared.partner.token} if prepared.partner else {}
    return secret.gather(resolved.job, job_dir=resolved.job_dir, job_file=resolved.job_file) | token


def require_ready(prepared: Prepared) -> None:
    """SlurmError if the cluster is not up; LockError if the image is missing or does not match its lock."""
    from kit.images import check_against_lock

    made = prepared.plan
    if prepared.resolved.cluster.embedded and embedded.find(prepared.resolved.cluster_name) is None:
        raise SlurmError(f"cluster {made.cluster!r} is not up", hint=_up_hint(made.cluster))
    # Over ssh, its digest is requested together with everything else that the cluster may lack.
    for pinned in made.decisions.pins.distinct if prepared.remote is None else ():
        if pinned.lock is None:
            continue
        store = Path(pinned.stored).parent.parent
        try:
            check_against_lock.check(pinned.lock, store, full=False)
        except LockError as error:
            if prepared.earlier is None:
                raise
            raise LockError(error.message, hint=prepared.earlier.rebuild(pinned.lock, store)) from None
    _require_signatures(prepared)


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
        if prepared.earlier and (path is None or image_lock.read(path) != pinned.lock):
            problem = f"the cluster takes signed images only, and {prepared.earlier.run_dir.name} ran in another one than is signed"
            raise LockError(
                f"image {name}: {problem}", hint=f"kit rerun {prepared.earlier.run_dir.name} --set image={name}"
            )
        if path is None or image_lock.read(path) != pinned.lock:
            raise LockError(f"image {name}: its lock changed while the job was planned", hint="submit again")
        signature.require(path, signers, what=f"image {name}")


def _up_hint(cluster: str) -> str:
    return "run 'kit cluster up'" if cluster == "local" else f"run 'kit cluster up --name {cluster}'"
