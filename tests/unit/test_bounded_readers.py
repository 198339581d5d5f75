"""Every place in kit/ that opens a file by other means than the bounded reader, with the reason why it may.

A file that another user or a checkout has written is read by kit.files.untrusted_files: a regular file, up to a size. C15.
"""

from __future__ import annotations

import ast
import os
from collections import Counter
from pathlib import Path

import pytest

from kit.errors import ImageError, UsageError
from kit.images.sources import layer_bytes, oci
from kit.migrate import write_job
from kit.migrate.reading import text_beside
from tests.support import REPO

READS = frozenset({"open", "read_text", "read_bytes"})
WHOLE = frozenset({"json.load", "tomllib.load", "pickle.load", "gzip.open", "numpy.load"})
OWN, KERNEL, PACKAGED, WRITES, STREAM = (
    "a file that this process or a tool that it started has just written, in a folder of its own",
    "the kernel's own file, of a bounded size",
    "a file of the kit's package",
    "opened to write or to flush it, not to read",
    "not a file: an object with a method of this name, over a file that was opened elsewhere",
)
SIZED = "found to be a regular file just before, and read as a stream: it may have any size"
# The kind of each call that is no call of the bounded reader: file -> reasons, once for each call.
ALLOWED: dict[str, tuple[str, ...]] = {
    "kit/archive/exporting.py": (WRITES,),
    "kit/archive/importing.py": (WRITES, SIZED),
    "kit/cli/__init__.py": (WRITES, WRITES, WRITES, WRITES, STREAM),
    "kit/files/atomic_write.py": (WRITES,),
    "kit/files/cross_host_lock.py": (WRITES, OWN),
    "kit/files/owning_process.py": (KERNEL, KERNEL),
    "kit/files/own_folders.py": ("a folder, which has no bytes to read; no link is followed",),
    "kit/files/untrusted_files.py": (*("the reader itself",) * 3, SIZED, WRITES, WRITES),
    "kit/forecast/free_space.py": (KERNEL,),
    "kit/frameworks/deepspeed.py": (PACKAGED,),
    "kit/frameworks/megatron_options.py": (PACKAGED,),
    "kit/frameworks/option_lists.py": (PACKAGED,),
    "kit/frameworks/program_releases.py": (PACKAGED,),
    "kit/hosts/avoided_nodes.py": ("a descriptor that follows no link and waits for no writer; its fstat is checked",),
    "kit/hosts/pair_relay.py": (OWN,),
    "kit/hosts/remote_images.py": (SIZED,),
    "kit/hosts/remote_send.py": (WRITES,),
    "kit/hosts/remote_snapshots.py": (WRITES, WRITES),
    "kit/images/block_list.py": (SIZED,),
    "kit/images/build/bootstrap_base.py": (OWN,),
    "kit/images/build/build_context.py": (SIZED, SIZED),
    "kit/images/build/buildkit.py": (OWN,),
    "kit/images/build/host_apt_sources.py": ("root's own configuration of this machine",),
    "kit/images/build/requirements_lock.py": (OWN, OWN),
    "kit/images/import_sources.py": (SIZED, SIZED, STREAM),
    "kit/images/sources/compressed_tars.py": (STREAM, STREAM, STREAM, WRITES, WRITES),
    "kit/images/sources/engine.py": (OWN,),
    "kit/images/sources/engine_session.py": (WRITES,),
    "kit/images/sources/folder_tree.py": (SIZED,),
    "kit/images/sources/gzip_layer_reader.py": (STREAM,),
    "kit/images/sources/layer_bytes.py": (
        "a descriptor that waits for no writer; read by offset up to the blob's size",
    ),
    "kit/images/sources/layer_cache.py": (STREAM, "the user's own cache of mode 0700"),
    "kit/images/sources/oci.py": (STREAM, STREAM, STREAM, STREAM),
    "kit/images/sources/parallel_layer_reader.py": (STREAM, STREAM, STREAM),
    "kit/images/sources/tar_headers.py": (STREAM,),
    "kit/images/sources/tree_stream.py": (STREAM,),
    "kit/images/squash/installed_packages.py": (OWN,),
    "kit/images/squash/sqshfile.py": (OWN,),
    "kit/images/squash/squash.py": (OWN, KERNEL),
    "kit/images/squash/squash_overlay.py": (OWN, OWN),
    "kit/loopback_owner.py": (KERNEL,),
    "kit/mcp/spending.py": ("a descriptor that follows no link, of the user's own record; read by the bounded reader",),
    "kit/notices/send_once.py": (WRITES,),
    "kit/record/reports_folder.py": (WRITES,),
    "kit/record/secret.py": (WRITES,),
    "kit/render.py": (PACKAGED, PACKAGED),
    "kit/sessions/port_forward.py": (WRITES, OWN),
    "kit/shell.py": (WRITES,),
    "kit/slurm/embedded/accounting.py": (OWN,),
    "kit/slurm/embedded/cgroup_support.py": (KERNEL, KERNEL),
    "kit/slurm/embedded/daemons.py": (OWN,),
    "kit/slurm/embedded/find_cluster.py": (KERNEL,),
    "kit/slurm/embedded/lock.py": (WRITES,),
    "kit/slurm/embedded/node_links.py": (KERNEL,),
    "kit/slurm/embedded/nodes.py": (OWN,),
    "kit/slurm/embedded/process.py": (KERNEL, KERNEL),
    "kit/slurm/embedded/pyxis.py": ("root's own plugin",),
    "kit/ssh/answers.py": ("in memory, of a bounded answer",),
    "kit/ssh/connection.py": (OWN,),
    "kit/ssh/run_folder_mirror.py": (WRITES,),
    "kit/ssh/shell_program.py": (PACKAGED,),
}


def opened_in(source: str) -> list[str]:
    """The calls in a module that may open a file, and are not the bounded reader's."""
    called = [ast.unparse(node.func) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [
        name
        for name in called
        if (name.rpartition(".")[2] in READS or name in WHOLE) and not name.startswith("untrusted_files.")
    ]


def test_each_place_that_opens_a_file_is_known() -> None:
    """A new one uses kit.files.untrusted_files; one that cannot gets a line in the table above, with the reason."""
    modules = {str(path.relative_to(REPO)): path.read_text() for path in sorted((REPO / "kit").rglob("*.py"))}
    found = Counter({name: len(calls) for name, text in modules.items() if (calls := opened_in(text))})
    assert found == Counter({name: len(reasons) for name, reasons in ALLOWED.items()})


@pytest.mark.parametrize("line", ["open(p)", "Path(p).read_text()", "p.read_bytes()", "json.load(f)", "os.open(p, 0)"])
def test_a_new_place_is_seen(line: str) -> None:
    assert len(opened_in(line)) == 1
    assert opened_in("untrusted_files.read_text(p)") == []


def large(path: Path) -> Path:
    path.touch()
    os.truncate(path, 8 << 30)
    return path


def linked(path: Path) -> Path:
    path.symlink_to("/dev/zero")
    return path


def fifo(path: Path) -> Path:
    os.mkfifo(path)
    return path


@pytest.mark.timeout(60)
@pytest.mark.parametrize("make", [large, linked, fifo])
def test_a_script_to_migrate_may_be_any_file(tmp_path: Path, make: object) -> None:
    """It was read whole: from /dev/zero until the memory was full."""
    assert callable(make)
    script = make(tmp_path / "train.sh")
    with pytest.raises(UsageError):
        write_job.migrate(script, output=tmp_path / "out", cluster=None, force=False)
    assert text_beside(script) is None


@pytest.mark.timeout(60)
@pytest.mark.parametrize("which", ["config", "layer", "index.json"])
def test_no_fifo_in_a_layout_holds_an_import(tmp_path: Path, which: str) -> None:
    import hashlib
    import json

    def put(content: bytes) -> str:
        digest = hashlib.sha256(content).hexdigest()
        (tmp_path / "blobs" / "sha256" / digest).write_bytes(content)
        return f"sha256:{digest}"

    (tmp_path / "blobs" / "sha256").mkdir(parents=True)
    layer = put(bytes(10240))
    config = put(json.dumps({"architecture": oci.here(), "os": "linux", "rootfs": {}}).encode())
    manifest = put(json.dumps({"config": {"digest": config}, "layers": [{"digest": layer, "size": 10240}]}).encode())
    (tmp_path / "index.json").write_text(json.dumps({"manifests": [{"digest": manifest}]}))
    assert [one.digest for one in oci.read_image(tmp_path, tmp_path).layers] == [layer]
    known = {"config": config, "layer": layer}
    path = tmp_path / (f"blobs/{known[which].replace(':', '/')}" if which in known else which)
    path.unlink()
    fifo(path)
    with pytest.raises(ImageError):
        oci.read_image(tmp_path, tmp_path)


@pytest.mark.timeout(60)
def test_a_layer_that_becomes_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    blob = layer_bytes.Blob(file=fifo(tmp_path / "layer"), size=10)
    plain = blob.open()
    with pytest.raises(OSError, match="seek"):
        plain.read_at(0, 10)
    plain.close()
