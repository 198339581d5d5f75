"""Two ordinary users on one cluster that root started, with one project folder."""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kit import shell
from kit.images import check_against_lock, image_lock
from kit.shell import Completed
from tests.cluster.conftest import lab_on, short_folder
from tests.cluster.lab import TIMEOUT_S, Lab
from tests.cluster.test_cluster import _as_user
from tests.cluster.test_trust import PROBE, check_against
from tests.support import REPO, make_lock

pytestmark = [pytest.mark.cluster, pytest.mark.root]

GROUP = "kit-lab"
NAMES = ("kit-ada", "kit-bob")


def _remove_cache(name: str) -> None:
    """What nodes kept for this name: the user who gets it next may have another number."""
    shutil.rmtree(f"/tmp/kit-{name}", ignore_errors=True)


@pytest.fixture(scope="module")
def users() -> Iterator[list[pwd.struct_passwd]]:
    """Two users of one group; removed at the end."""
    if os.geteuid() != 0 or shell.which("useradd") is None:
        pytest.skip("needs root and useradd, to become an ordinary user")
    try:
        shell.run(["groupadd", "--force", GROUP])
        for name in NAMES:
            if name not in {entry.pw_name for entry in pwd.getpwall()}:
                shell.run(["useradd", "--create-home", "--gid", GROUP, name])
            _remove_cache(name)
        yield [pwd.getpwnam(name) for name in NAMES]
    finally:
        for name in NAMES:
            shell.run(["userdel", "--remove", name], check=False)
            _remove_cache(name)
        shell.run(["groupdel", GROUP], check=False)


@pytest.fixture(scope="module")
def shared_lab(users: list[pwd.struct_passwd]) -> Iterator[Lab]:
    """A project folder that both may write to, on a cluster of root's."""
    with short_folder() as parent:
        project = parent / "project"
        project.mkdir()
        with lab_on("users", 2, project / "store", project) as lab:
            lab.write(
                'shape = "srun"\nscript = "program.py"\n[resources]\nnodes = 2\ngpus_per_node = 1\n',
                "import getpass, os\nprint(getpass.getuser(), os.environ['RANK'])\n",
            )
            (project / "runs").mkdir()
            for path in (project, *project.rglob("*")):
                if not path.is_symlink():
                    shutil.chown(path, group=GROUP)
                    path.chmod(0o2775 if path.is_dir() else 0o664)
            yield lab


def kit(lab: Lab, user: pwd.struct_passwd, *argv: str, check: bool = True) -> Completed:
    """`kit` as that user, in the shared project."""
    python, env = _as_user(user)
    return shell.run(
        [*python, "-m", "kit", *argv],
        cwd=lab.project,
        env={**env, **lab.env, "USER": user.pw_name, "LOGNAME": user.pw_name},
        timeout=TIMEOUT_S,
        check=check,
    )


def test_two_users_share_a_cluster_and_a_project(shared_lab: Lab, users: list[pwd.struct_passwd]) -> None:
    lab, cluster = shared_lab, shared_lab.cluster.name
    runs = []
    for user in users:
        done = kit(lab, user, "submit", "--cluster", cluster, "--no-container", "--wait", check=False)
        assert done.returncode == 0, done.stderr
        run = Path(done.stdout.splitlines()[0])
        assert run.stat().st_uid == user.pw_uid
        assert user.pw_name in (run / "logs" / "rank-0.log").read_text()
        runs.append(run)
    # Each sees both runs as what they are, though Slurm is asked for his own jobs alone.
    for user in users:
        rows = json.loads(kit(lab, user, "runs", "--json").stdout)
        assert {(row["run"], row["state"]) for row in rows} == {(run.name, "COMPLETED") for run in runs}


@pytest.mark.slow
def test_a_user_cannot_cancel_anothers_run(shared_lab: Lab, users: list[pwd.struct_passwd]) -> None:
    lab, (ada, bob) = shared_lab, users
    (lab.project / "program.py").write_text("import time; time.sleep(600)\n")
    run = Path(kit(lab, ada, "submit", "--cluster", lab.cluster.name, "--no-container").stdout.splitlines()[0])
    lab.wait(lambda: lab.job(run)["JobState"] == "RUNNING", run)
    kit(lab, bob, "cancel", run.name, check=False)
    assert lab.job(run)["JobState"] == "RUNNING"
    kit(lab, ada, "cancel", run.name)
    kit(lab, ada, "cancel", run.name, check=False)
    assert lab.wait_end(run)["JobState"] in {"CANCELLED", "FAILED"}


def do_as(user: pwd.struct_passwd, script: str, *words: str) -> None:
    """Run lines of bash as that user."""
    ids = [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    shell.run(["setpriv", *ids, "bash", "-ec", script, "-", *words])


def test_c12_a_waiting_run_that_a_colleague_replaced_runs_nothing_of_it(
    shared_lab: Lab, users: list[pwd.struct_passwd]
) -> None:
    """Its libraries ran as the owner of the job: the folder of runs is the project's, and has no sticky bit."""
    (ada, bob), lab = users, shared_lab
    done = kit(lab, ada, "submit", "--cluster", lab.cluster.name, "--no-container", "--set", 'slurm.extra=["--hold"]')
    run = Path(done.stdout.splitlines()[0])
    ran = lab.project / "ran"
    script = 'cp -r "$1" "$1.mine"; mv "$1" "$1.hers"; mv "$1.mine" "$1"; echo "id -un >$2" >>"$1/lib/log.sh"; chmod -R a+rwX "$1"'
    do_as(bob, script, str(run), str(ran))
    lab.slurm("scontrol", "release", lab.job(run)["JobId"])
    ended = lab.wait_end(run)
    shutil.rmtree(run)
    run.with_name(f"{run.name}.hers").rename(run)
    assert (ended["ExitCode"], ran.exists()) == ("72:0", False)


def test_c11_a_store_of_snapshots_that_a_colleague_made_is_refused(
    shared_lab: Lab, users: list[pwd.struct_passwd]
) -> None:
    (ada, bob), lab = users, shared_lab
    store = lab.project / "runs" / f".snapshots-{ada.pw_uid}"
    kept = store.with_name("kept")
    if store.exists():
        store.rename(kept)
    try:
        do_as(bob, 'umask 0; mkdir -p "$1/objects" "$1/trees" "$1/index"', str(store))
        done = kit(lab, ada, "submit", "--cluster", lab.cluster.name, "--no-container", check=False)
    finally:
        shutil.rmtree(store)
        if kept.exists():
            kept.rename(store)
    assert done.returncode == 7
    assert f"{store} belongs to {bob.pw_name} ({bob.pw_uid}), not to you" in done.stderr


@dataclass(frozen=True)
class Image:
    """A locked image in a store that the group may write. right, wrong: its bytes, and the same with one bit flipped."""

    file: Path
    cache: Path
    right: bytes
    wrong: bytes

    @property
    def digests(self) -> list[str]:
        """What a refusal has to name."""
        return [hashlib.sha256(content).hexdigest() for content in (self.right, self.wrong)]

    def put(self, content: bytes, user: pwd.struct_passwd) -> None:
        """Other bytes in its place, by that user."""
        new = self.file.with_name(f"new-{user.pw_name}")
        new.write_bytes(content)
        os.chown(new, user.pw_uid, user.pw_gid)
        shell.run(
            [
                "setpriv",
                f"--reuid={user.pw_uid}",
                f"--regid={user.pw_gid}",
                "--clear-groups",
                "mv",
                str(new),
                str(self.file),
            ]
        )


def squashed(scratch: Path) -> bytes:
    """A squashfs image with a file of bytes that do not compress."""
    (scratch / "tree").mkdir()
    (scratch / "tree" / "noise").write_bytes(random.Random(1).randbytes(50_000))
    shell.run(["mksquashfs", str(scratch / "tree"), str(scratch / "made.sqsh"), "-quiet", "-no-progress"])
    return (scratch / "made.sqsh").read_bytes()


@pytest.fixture
def image(shared_lab: Lab, users: list[pwd.struct_passwd]) -> Iterator[Image]:
    """The caches of all users lie in one folder, as in /tmp."""
    lab = shared_lab
    store, scratch = lab.project / "store" / "sha256", lab.project.parent / "scratch"
    store.mkdir(parents=True, exist_ok=True)
    scratch.mkdir()
    scratch.chmod(0o1777)
    for folder in (store.parent, store):
        shutil.chown(folder, group=GROUP)
        folder.chmod(0o2775)
    right = squashed(scratch)
    wrong = right[:1000] + bytes([right[1000] ^ 1]) + right[1001:]
    digest = hashlib.sha256(right).hexdigest()
    found = make_lock("tiny").model_copy(update={"sha256": digest, "size": len(right)})
    image_lock.write_lock(lab.project / "containers" / "tiny" / image_lock.FILE, found)
    profile = lab.project / "clusters" / f"{lab.cluster.name}.toml"
    before = profile.read_text()
    profile.write_text(before.replace("[paths]\n", f'[paths]\ncache = "{scratch}/kit-{{user}}"\n'))
    made = Image(store / f"{digest}.sqsh", scratch / f"kit-{users[0].pw_name}", right, wrong)
    made.put(right, users[0])
    try:
        yield made
    finally:
        profile.write_text(before)
        shutil.rmtree(scratch)


def submit(lab: Lab, user: pwd.struct_passwd, *options: str) -> Completed:
    words = ["--cluster", lab.cluster.name, "--set", "container.runtime=bubblewrap", *options]
    return kit(lab, user, "submit", *words, check=False)


STAGED = ("--wait", "--set", 'image={ name = "tiny", stage = "node" }')


def test_a_cache_folder_that_another_user_made_first_is_not_used(
    shared_lab: Lab, users: list[pwd.struct_passwd], image: Image
) -> None:
    """C1: its file under the locked digest was taken for the image."""
    ada, bob = users
    staged = image.cache / "images"
    staged.mkdir(parents=True)
    (staged / image.file.name).write_bytes(image.wrong)
    for path in (image.cache, staged, staged / image.file.name):
        os.chown(path, bob.pw_uid, bob.pw_gid)
        path.chmod(0o755)
    done = submit(shared_lab, ada, *STAGED)
    assert done.returncode == 72, done.stderr
    logs = Path(done.stdout.splitlines()[0]) / "logs"
    said = "".join(path.read_text() for path in logs.glob("*.log"))
    assert f"{image.cache} belongs to user {bob.pw_name} ({bob.pw_uid}), not to you" in said


def test_a_poisoned_copy_on_a_node_ends_the_run(shared_lab: Lab, users: list[pwd.struct_passwd], image: Image) -> None:
    """C1: of the same size, in a folder of the user's own."""
    ada = users[0]
    staged = image.cache / "images"
    staged.mkdir(parents=True)
    poisoned = staged / image.file.name
    poisoned.write_bytes(image.wrong)
    for path in (image.cache, staged, poisoned):
        os.chown(path, ada.pw_uid, ada.pw_gid)
        path.chmod(0o700)
    done = submit(shared_lab, ada, *STAGED)
    assert done.returncode == 72, done.stderr
    logs = Path(done.stdout.splitlines()[0]) / "logs"
    said = "".join(path.read_text() for path in logs.glob("*.log"))
    assert all(digest in said for digest in image.digests)
    # The other node has the same folder here, and may have copied it again by now.
    assert not poisoned.exists() or poisoned.read_bytes() == image.right


def test_no_shell_is_opened_in_an_image_that_a_node_refuses(
    shared_lab: Lab, users: list[pwd.struct_passwd], image: Image
) -> None:
    """The login node's check finds nothing wrong: only the node sees its own copy."""
    ada = users[0]
    staged = image.cache / "images"
    staged.mkdir(parents=True)
    (staged / image.file.name).write_bytes(image.wrong)
    for path in (image.cache, staged, staged / image.file.name):
        os.chown(path, ada.pw_uid, ada.pw_gid)
        path.chmod(0o700)
    words = ["--cluster", shared_lab.cluster.name, "--set", "container.runtime=bubblewrap", *STAGED[1:]]
    done = kit(shared_lab, ada, "shell", *words, check=False)
    assert done.returncode == 72, done.stderr
    assert "no shell is opened: the checks of a node failed" in done.stderr
    run = max((shared_lab.project / "runs").glob("test-*"), key=lambda path: path.stat().st_mtime)
    assert all(digest in (run / "logs" / "stage.log").read_text() for digest in image.digests)


def test_an_image_that_another_user_replaced_by_one_of_its_size(
    shared_lab: Lab, users: list[pwd.struct_passwd], image: Image
) -> None:
    """C2: before the submit, and between the submit and the start; what was checked before is not an excuse."""
    (ada, bob), lab = users, shared_lab
    held = submit(lab, ada, "--set", "image=tiny", "--set", 'slurm.extra=["--hold"]')
    assert held.returncode == 0, held.stderr
    image.put(image.wrong, bob)
    refused = submit(lab, ada, "--set", "image=tiny")
    assert refused.returncode == 5
    assert all(digest in refused.stderr for digest in image.digests)
    run = Path(held.stdout.splitlines()[0])
    lab.slurm("scontrol", "release", lab.job(run)["JobId"])
    assert lab.wait_end(run)["ExitCode"] == "72:0"
    assert all(digest in (run / "logs" / "preflight.log").read_text() for digest in image.digests)


# ---- bubblewrap without root: a user namespace, squashfuse, no PID namespace of its own ----

FAULTY = Path(__file__).with_name("faulty.py").read_text(encoding="utf-8")
TRAINS = """
import json, os, torch
import torch.distributed as dist
dist.init_process_group("gloo")
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
torch.manual_seed(dist.get_rank())
net(torch.randn(8, 4)).sum().backward()
same = net.module.weight.grad.clone()
dist.broadcast(same, src=0)
found = {"world": dist.get_world_size(), "equal": torch.equal(same, net.module.weight.grad)}
open(f"{os.environ['KIT_RUN_DIR']}/ddp-{dist.get_rank()}.json", "w").write(json.dumps(found))
del net
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def contained(shared_lab: Lab, train_cpu: Path) -> Lab:
    """The shared lab with train-cpu in its store, on nodes where everybody may open /dev/fuse, as FUSE's own packages have it."""
    if shell.which("bwrap") is None or shell.which("squashfuse") is None:
        pytest.skip("bubblewrap or squashfuse is not installed: make setup")
    lab = shared_lab
    found = check_against_lock.check(
        image_lock.read_lock(REPO / "containers/train-cpu/image.lock"), train_cpu, full=False
    )
    placed = lab.project / "store" / found.relative_to(train_cpu)
    placed.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(found, placed)
    placed.chmod(0o644)
    for node in lab.cluster.nodes:
        # A device of the node's own mount namespace: the machine's stays as it is.
        device = f"{lab.cluster.folder}/fuse-{node.name}"
        lab.inside(node.name, "mknod", "-m", "666", device, "c", "10", "229")
        lab.inside(node.name, "mount", "--bind", device, "/dev/fuse")
    return lab


def write(lab: Lab, program: str, job: str = "") -> None:
    lab.write(f'script = "program.py"\n{job}[preflight]\nfree_disk_gb = 0\n', program)


def started(lab: Lab, user: pwd.struct_passwd, shape: str, *options: str) -> Path:
    """A run of faulty.py whose four ranks are up."""
    done = submit(lab, user, "--set", f"shape={shape}", *options)
    assert done.returncode == 0, done.stderr
    run = Path(done.stdout.splitlines()[0])
    lab.wait(lambda: len(list(run.glob("up-*-0"))) == 4, run, seconds=90)
    return run


def test_ddp_in_bubblewrap(contained: Lab, users: list[pwd.struct_passwd]) -> None:
    write(contained, TRAINS)
    done = submit(contained, users[0], "--wait", "--set", "shape=torchrun")
    run = Path(done.stdout.splitlines()[0])
    assert done.returncode == 0, (run / "logs" / "batch.log").read_text()
    found = [json.loads((run / f"ddp-{rank}.json").read_text()) for rank in range(4)]
    assert all((one["world"], one["equal"]) == (4, True) for one in found)
    assert (run / "ddp-0.json").stat().st_uid == users[0].pw_uid


@pytest.mark.parametrize("shape", ["srun", "torchrun"])
def test_cancel_in_bubblewrap(contained: Lab, users: list[pwd.struct_passwd], shape: str) -> None:
    write(contained, FAULTY, 'args = ["wait", "1"]\n')
    run = started(contained, users[0], shape)
    kit(contained, users[0], "cancel", run.name)
    assert contained.wait_end(run)["JobState"] == "CANCELLED"
    facts = json.loads(kit(contained, users[0], "status", run.name, "--json").stdout)
    assert (facts["exit_code"], len(list(run.glob("saved-*")))) == (143, 4), (run / "logs" / "batch.log").read_text()
    assert contained.settled(run) == []


@pytest.mark.pyxis
@pytest.mark.parametrize("runtime", ["pyxis", "enroot"])
def test_scancel_where_fuse_serves_the_image(
    contained: Lab, users: list[pwd.struct_passwd], runtime_of: Callable[[str], list[str]], runtime: str
) -> None:
    """Slurm's own signals reach the daemon, too: the ranks keep their files, and save."""
    write(contained, FAULTY, 'args = ["wait", "1"]\n')
    run = started(contained, users[0], "srun", *runtime_of(runtime))
    contained.slurm("scancel", contained.job(run)["JobId"])
    assert contained.wait_end(run)["JobState"] == "CANCELLED"
    facts = json.loads(kit(contained, users[0], "status", run.name, "--json").stdout)
    assert (facts["exit_code"], len(list(run.glob("saved-*")))) == (143, 4), (run / "logs" / "batch.log").read_text()
    assert contained.settled(run) == []


def test_the_lead_signal_and_a_requeue_in_bubblewrap(contained: Lab, users: list[pwd.struct_passwd]) -> None:
    write(contained, FAULTY, 'args = ["wait", "1"]\n[retry]\nrequeue = 1\n')
    run = started(contained, users[0], "torchrun")
    contained.slurm("scancel", "--batch", "--signal=USR1", contained.job(run)["JobId"])
    contained.wait(lambda: contained.job(run)["Restarts"] == "1", run)
    log = run / "logs" / "batch.log"
    assert len(list(run.glob("saved-*-0"))) == 4, log.read_text()
    assert (contained.wait_end(run)["JobState"], len(list(run.glob("up-*-1")))) == ("COMPLETED", 4), log.read_text()
    assert contained.settled(run) == []


def test_the_table_of_trust_is_true_of_a_rank_in_bubblewrap(contained: Lab, users: list[pwd.struct_passwd]) -> None:
    canary = contained.project.parent / "canary"
    canary.write_text("of the host")
    write(
        contained,
        f"import os\nos.chdir(os.environ['KIT_RUN_DIR'])\n{PROBE}",
        f'shape = "srun"\npython = "/usr/bin/python3"\nargs = ["{canary}", "found.json"]\n'
        "[resources]\nnodes = 1\ngpus_per_node = 0\n",
    )
    done = submit(contained, users[0], "--wait")
    run = Path(done.stdout.splitlines()[0])
    assert done.returncode == 0, (run / "logs" / "batch.log").read_text()
    check_against(json.loads((run / "found.json").read_text()), "bubblewrap, user")
