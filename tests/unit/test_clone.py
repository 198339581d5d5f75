"""A clone is data: looking at one executes nothing that it brings."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kit import git, shell, trust
from kit.bisection import commits
from kit.errors import ConfigError, ToolError
from kit.files import untrusted_files
from kit.record import manifest
from kit.snapshots import patch, scan
from kit.snapshots.scan import Scan
from kit.snapshots.store import Store
from kit.submission.workspace import Left

ROOT = Path(__file__).parents[2]
needs_ssh = pytest.mark.skipif(shell.which("ssh") is None, reason="no ssh here: apt install openssh-client")
_GIT = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]


def _git(folder: Path, *words: str) -> str:
    return subprocess.run([*_GIT, *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    """A folder in which the program of a clone writes its name when it is executed."""
    folder = tmp_path / "ran"
    folder.mkdir()
    return folder


def _program(place: Path, ran: Path, name: str) -> str:
    """A program that notes that it was executed, and then does what a filter does."""
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(f'#!/bin/sh\ntouch "{ran}/{name}"\nexec cat\n')
    place.chmod(0o755)
    return str(place)


@pytest.fixture
def copied(tmp_path: Path, ran: Path) -> Path:
    """An unpacked project: two commits, changed files, and a `.git` whose configuration names a program wherever git takes one."""
    folder = tmp_path / "copied"
    folder.mkdir()
    _git(folder, "init", "-q")
    attributes = "* filter=x diff=x\n*.bin filter=y\n"
    for name, text in {"train.py": "one\n", "a.bin": "bin\n", "job.toml": "", ".gitattributes": attributes}.items():
        (folder / name).write_text(text)
    _git(folder, "add", ".")
    _git(folder, "commit", "-qm", "first")
    (folder / "train.py").write_text("two\n")
    _git(folder, "commit", "-qam", "second")
    (folder / "train.py").write_text("three\n")
    (folder / "new.py").write_text("new\n")
    os.utime(folder / "a.bin", (1, 1))  # the index does not know this time: git reads the file again
    keys = (
        *("core.fsmonitor", "core.pager", "core.editor", "core.sshCommand", "core.gitProxy", "core.askPass"),
        *("core.alternateRefsCommand", "diff.external", "diff.x.textconv", "diff.x.command", "gpg.program"),
        *("filter.x.clean", "filter.x.smudge", "filter.y.process", "credential.helper", "uploadpack.packObjectsHook"),
        *("remote.origin.uploadpack", "pager.log", "pager.diff", "pager.status", "interactive.diffFilter"),
    )
    for key in keys:
        _git(folder, "config", key, _program(folder / ".git/programs" / key, ran, key))
    for key in ("ls-files", "status", "diff", "config", "log"):
        _git(folder, "config", f"alias.{key}", f"!touch {ran}/alias-{key}")
    for key, value in {
        "filter.x.required": "true",
        "filter.y.required": "true",
        "log.showSignature": "true",
        "core.hooksPath": ".git/own",
        "protocol.ext.allow": "always",
    }.items():
        _git(folder, "config", key, value)
    for hook in ("post-index-change", "post-checkout", "fsmonitor-watchman", "reference-transaction"):
        for place in ("hooks", "own"):
            _program(folder / ".git" / place / hook, ran, f"{place}-{hook}")
    return folder


def _taken(folder: Path) -> Scan:
    return scan.scan(folder, index=folder / "no-index", asked_by="job.toml")


def test_the_git_configuration_of_a_copied_project_executes_nothing(copied: Path, tmp_path: Path, ran: Path) -> None:
    done = _taken(copied)
    assert {"train.py", "new.py", "a.bin"} <= set(done.sizes)
    text = patch.against_commit(done)
    assert "+three" in text
    assert "+new" in text
    assert "a.bin" not in text
    state = manifest.git_state(copied)
    assert state is not None
    assert state.dirty
    first = _git(copied, "-c", "core.fsmonitor=", "rev-parse", "HEAD^")
    listed = commits.between(copied, first, state.commit)
    assert listed is not None
    assert [one.text.endswith("(second)") for one in listed] == [True]
    store = Store(tmp_path / "store")
    tree = commits.Workspaces(folder=copied, store=store, left=Left(paths=(), rules=())).at(first)
    assert {one.path for one in tree.entries} == {"train.py", "a.bin", "job.toml", ".gitattributes"}
    assert sorted(one.name for one in ran.iterdir()) == []


def test_git_fetches_no_object_for_a_clone_that_lacks_one(copied: Path, ran: Path) -> None:
    """A clone without its objects names the program that fetches them."""
    helper = _program(copied / "fetch.sh", ran, "ext")
    for key, value in {
        "remote.origin.url": f"ext::{helper}",
        "remote.origin.promisor": "true",
        "remote.origin.partialclonefilter": "blob:none",
        "extensions.partialClone": "origin",
        "core.repositoryformatversion": "1",
    }.items():
        _git(copied, "config", key, value)
    blob = _git(copied, "-c", "core.fsmonitor=", "rev-parse", "HEAD:train.py")
    (copied / ".git/objects" / blob[:2] / blob[2:]).unlink()
    assert patch.against_commit(_taken(copied)) == ""
    assert sorted(one.name for one in ran.iterdir()) == []


def test_a_filter_of_the_users_own_configuration_runs(
    copied: Path, tmp_path: Path, ran: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As git-lfs: only what the repository defines is turned off."""
    own = tmp_path / "gitconfig"
    own.write_text(f'[filter "z"]\n\tclean = {_program(tmp_path / "z", ran, "z")}\n')
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(own))
    (copied / ".gitattributes").write_text("*.py filter=z\n")
    assert "+three" in patch.against_commit(_taken(copied))
    assert [one.name for one in ran.iterdir()] == ["z"]


def test_a_filter_whose_name_no_option_can_hold_ends_the_command(copied: Path, ran: Path) -> None:
    _git(copied, "config", "filter.a=b.clean", _program(copied / ".git/c", ran, "equals"))
    (copied / ".gitattributes").write_text("*.py filter=a=b\n")
    assert patch.against_commit(_taken(copied)) == ""
    assert manifest.git_state(copied) is None
    assert sorted(one.name for one in ran.iterdir()) == []


@pytest.fixture
def beside_a_bare_repository(tmp_path: Path, ran: Path) -> Path:
    """A clone with a committed bare repository, in which a job lies."""
    job = tmp_path / "clone/job"
    _git(tmp_path, "init", "-q", "clone")
    for name in ("objects", "refs"):
        (job / name).mkdir(parents=True)
        (job / name / "keep").write_text("")
    monitor = _program(job / "fsm.sh", ran, "fsmonitor")
    (job / "HEAD").write_text("ref: refs/heads/main\n")
    (job / "config").write_text(f"[core]\n\trepositoryformatversion = 0\n\tworktree = .\n\tfsmonitor = {monitor}\n")
    (job / "job.toml").write_text('command = "true"\n')
    return job


def test_a_committed_bare_repository_executes_nothing(beside_a_bare_repository: Path, ran: Path) -> None:
    with pytest.raises(ConfigError, match="is a bare git repository, and its configuration may name programs"):
        _taken(beside_a_bare_repository)
    assert manifest.git_state(beside_a_bare_repository) is None
    below = beside_a_bare_repository / "below"
    below.mkdir()
    with pytest.raises(ToolError, match="is a bare git repository"):
        git.run(below, "ls-files")
    assert not any(ran.iterdir())


def test_git_itself_refuses_the_bare_repository(
    beside_a_bare_repository: Path, ran: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the kit has not seen that it is one."""
    monkeypatch.setattr(git, "_refuse_bare", lambda _folder: None)
    assert git.run(beside_a_bare_repository, "ls-files", check=False).returncode != 0
    assert not any(ran.iterdir())


def test_git_is_only_called_by_one_module() -> None:
    """Each other call would read the configuration of a clone as if it were the user's."""
    call = re.compile(r"""\[\s*["']git["']""")
    found = {str(path.relative_to(ROOT)) for path in (ROOT / "kit").rglob("*.py") if call.search(path.read_text())}
    assert found == {"kit/git.py"}


_CLUSTER = (
    '[ssh]\nhost = "far"\nconfig = "{config}"\ntimeout_s = 5.0\n[node]\ncpus = 8\n[container]\nruntime = "bubblewrap"\n'
)


@pytest.fixture
def far(tmp_path: Path, ran: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone with a cluster whose ssh configuration executes a program. The user's own folders are new."""
    for name in ("HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "own" / name))
        (tmp_path / "own" / name).mkdir(parents=True)
    folder = tmp_path / "clone"
    _git(tmp_path, "init", "-q", "clone")
    (folder / "clusters").mkdir()
    (folder / "clusters/far.toml").write_text(_CLUSTER.format(config="clusters/ssh_config"))
    proxy = _program(folder / "clusters/proxy.sh", ran, "proxy")
    (folder / "clusters/ssh_config").write_text(f"Host far\n  ProxyCommand {proxy} %h\n")
    job = 'name = "far"\nlauncher = "ddp"\nshape = "srun"\nscript = "train.py"\n'
    job += '[resources]\nnodes = 1\nranks_per_node = 1\ntime = "00:05:00"\n'
    (folder / "job.toml").write_text(job)
    (folder / "train.py").write_text("")
    monkeypatch.chdir(folder)
    return folder


def _kit(*words: str) -> shell.Completed:
    return shell.run([sys.executable, "-P", "-m", "kit", *words], check=False, timeout=120)


@needs_ssh
@pytest.mark.parametrize(
    "words",
    [
        "runs",
        "status",
        "nodes -c far",
        "when job.toml",
        "render job.toml -c far",
        "logs x",
        "why x",
        "top x",
        "cancel x",
    ],
)
def test_looking_executes_no_ssh_configuration_of_a_clone(far: Path, ran: Path, words: str) -> None:
    done = _kit(*words.split())
    assert not any(ran.iterdir())
    if words.endswith("-c far"):
        assert done.returncode == 4
        assert f"cluster far: {far}/clusters/ssh_config comes with the project" in done.stderr
        assert "ProxyCommand" in done.stderr
        assert "try: kit trust" in done.stderr


@needs_ssh
def test_a_trusted_ssh_configuration_is_used_until_it_changes(far: Path, ran: Path) -> None:
    asked = _kit("trust")
    assert asked.returncode == 2
    assert f"cluster far: {far}/clusters/ssh_config (not trusted)" in asked.stdout
    assert f"  ProxyCommand {far}/clusters/proxy.sh %h" in asked.stdout
    assert f"  with the file {far}/clusters/proxy.sh" in asked.stdout
    assert "try: kit trust --yes" in asked.stderr
    assert _kit("trust", "--yes").returncode == 0
    _kit("nodes", "-c", "far")
    assert [one.name for one in ran.iterdir()] == ["proxy"]
    (ran / "proxy").unlink()
    (far / "clusters/proxy.sh").write_text("#!/bin/sh\nexit 1\n")
    assert "try: kit trust" in _kit("nodes", "-c", "far").stderr
    assert not any(ran.iterdir())
    assert _kit("trust", "--yes").returncode == 0
    assert _kit("trust", "--off").returncode == 0
    assert "try: kit trust" in _kit("nodes", "-c", "far").stderr


@pytest.mark.parametrize(
    ("line", "executes"),
    [
        ("HostName login.example", False),
        ("Host=far far.*", False),
        ("  IdentityFile ~/.ssh/id_ed25519", False),
        ("# ProxyCommand x", False),
        ("\tPort 22\r", False),
        ("HostName $(id)", True),
        ("User `id`", True),
        ('HostName "a b"', True),
        ("Match exec true", True),
        ("PROXYCOMMAND=x", True),
        ("LocalCommand x", True),
        ("KnownHostsCommand x", True),
        ("PKCS11Provider x.so", True),
        ("SecurityKeyProvider x.so", True),
        ("ProxyJump x", True),
        ("UserKnownHostsFile ~/.bashrc", True),
        ("ForwardAgent yes", True),
        ("Anything new", True),
        # The first value of a keyword counts, and each block of a host: one that is there again is read, too.
        ("Port 22\nHost far\nProxyCommand x", True),
        ("Port 22\nHost far\nHostName login.example", False),
    ],
)
def test_only_lines_that_execute_and_write_nothing_need_no_trust(far: Path, line: str, *, executes: bool) -> None:
    (far / "clusters/ssh_config").write_text(f"Host far\n{line}\n")
    found = trust.brought("clusters/ssh_config")
    assert found is not None
    assert bool(found.lines) == executes
    if not executes:
        copy = trust.ssh_configuration("clusters/ssh_config", cluster="far")
        assert copy.read_bytes() == found.content
        assert not copy.is_relative_to(far)


def test_a_file_of_the_users_own_needs_no_trust(far: Path, tmp_path: Path) -> None:
    own = tmp_path / "ssh_config"
    own.write_text("ProxyCommand x\n")
    assert trust.ssh_configuration(str(own), cluster="far") == own
    own.chmod(0o666)
    assert trust.brought(str(own)) is not None
    assert trust.brought(f"{far}/clusters/ssh_config") is not None
    assert trust.brought("../ssh_config") is not None, (
        "a clone does not know where it lies, so a relative name is its own"
    )
    other = tmp_path / "other"
    _git(tmp_path, "init", "-q", "other")
    (other / "ssh_config").write_text("ProxyCommand x\n")
    assert trust.brought(str(other / "ssh_config")) is not None
    usual = Path.home() / ".ssh/config"
    usual.parent.mkdir()
    usual.write_text("ProxyCommand x\n")
    assert trust.brought("~/.ssh/config") is None
    link = tmp_path / "link"
    link.symlink_to(far / "clusters/ssh_config")
    assert trust.brought(str(link)) is not None


def test_an_ssh_configuration_includes_only_files_of_the_users_own(far: Path) -> None:
    config = far / "clusters/ssh_config"
    (Path.home() / ".ssh").mkdir()
    (Path.home() / ".ssh/config").write_text("Host x\n")
    config.write_text("Include ~/.ssh/config config\n")
    assert trust.brought("clusters/ssh_config") is not None
    for word in (f"{far}/clusters/proxy.sh", f"{far}/clusters/*", "../../clone/clusters/proxy.sh"):
        config.write_text(f"Include={word}\n")
        with pytest.raises(ToolError, match="which is not a file of your own"):
            trust.brought("clusters/ssh_config")


def test_the_folder_of_what_is_trusted_belongs_to_the_user_alone(far: Path) -> None:
    found = trust.brought("clusters/ssh_config")
    assert found is not None
    found.trust()
    assert found.is_trusted()
    folder = Path(os.environ["XDG_STATE_HOME"]) / "kit/trusted"
    assert [one.name for one in folder.iterdir()] == [found.digest]
    folder.chmod(0o770)
    with pytest.raises(ToolError, match="must be yours and have mode 0700"):
        found.is_trusted()


def test_an_ssh_configuration_that_is_no_file_is_refused(far: Path) -> None:
    config = far / "clusters/ssh_config"
    config.unlink()
    os.mkfifo(config)
    with pytest.raises(ToolError, match="not a regular file"):
        trust.brought("clusters/ssh_config")


def test_a_new_file_is_not_written_where_a_link_of_a_clone_leads(tmp_path: Path) -> None:
    """`kit init` in a clone with a link `job.toml` made a file wherever the link led."""
    link, kept = tmp_path / "job.toml", tmp_path / "rc"
    link.symlink_to(kept)
    with pytest.raises(OSError, match="File exists"):
        untrusted_files.write_text(link, "name\n")
    assert (kept.exists(), link.is_symlink()) == (False, True)
    kept.write_text("old\n")
    untrusted_files.write_text(link, "new\n")
    assert kept.read_text() == "new\n"
