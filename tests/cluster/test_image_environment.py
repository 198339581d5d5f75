"""An image's environment, byte for byte in every runtime; what cannot be handed on is warned of at import."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from kit import shell
from kit.images import importing
from kit.images.progress import Silent
from kit.images.squash import enroot_layout, sqshfile
from kit.schema.image import ImageConfig
from kit.slurm.embedded import EmbeddedCluster
from tests import laid_out
from tests.cluster import image_corpus as corpus
from tests.cluster.image_env import VALUES
from tests.cluster.image_lab import rootfs
from tests.cluster.test_cluster import slurm

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root"),
]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A .sqsh with `VALUES` and a few programs, in a folder that nodes may read."""
    work = tmp_path_factory.mktemp("environment")
    for folder in (work, work.parent):
        folder.chmod(0o755)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        archive.add(rootfs(work / "root"), arcname=".")
    env = [f"{name}={value}" for name, value in VALUES.items()]
    layout = corpus.oci_layout(work / "layout", [out.getvalue()], {"Env": ["PATH=/bin", *env]})
    (work / "project").mkdir()
    order = importing.ImportOrder(uri=str(layout), name="environment", project=work / "project", store=work / "store")
    return importing.run(order, Silent()).image


def told(out: str) -> dict[str, str]:
    """What `env -0` printed, of `VALUES`."""
    pairs = (pair.partition("=") for pair in out.split("\0"))
    return {name: value for name, _, value in pairs if name in VALUES}


def test_the_file_says_what_the_image_declares(image: Path) -> None:
    assert len(VALUES) >= 60
    assert enroot_layout.environment_of(enroot_layout.environment(ImageConfig(env=VALUES))) == VALUES
    assert {name: value for name, value in sqshfile.config(image).env.items() if name in VALUES} == VALUES
    assert enroot_layout.warnings(ImageConfig(env=VALUES)) == []


@pytest.mark.skipif(shell.which("enroot") is None, reason="enroot is not installed")
def test_enroot_hands_it_on(image: Path, tmp_path: Path) -> None:
    env = os.environ | {"ENROOT_LOGIN_SHELL": "no"}
    for name in ("DATA", "RUNTIME", "CACHE", "TEMP"):
        (tmp_path / name).mkdir()
        env[f"ENROOT_{name}_PATH"] = str(tmp_path / name)
    shell.run(["enroot", "create", "--name", "x", str(image)], env=env)
    assert told(shell.run(["enroot", "start", "x", "/bin/env", "-0"], env=env).stdout) == VALUES


@pytest.mark.skipif(shell.which("bwrap") is None, reason="bubblewrap is not installed")
def test_bubblewrap_hands_it_on(image: Path) -> None:
    script = laid_out.BIN / "bubblewrap.sh"
    done = shell.run([str(script), f"--image={image}", "--workdir=/", "--", "/bin/env", "-0"])
    assert told(done.stdout) == VALUES


@pytest.mark.pyxis
def test_pyxis_hands_it_on(image: Path, cluster: EmbeddedCluster) -> None:
    if not cluster.has_pyxis:
        pytest.skip("the cluster has no Pyxis: it needs the plugin, Enroot and isolated nodes")
    assert told(slurm(cluster, "srun", "-N1", f"--container-image={image}", "env", "-0")) == VALUES


def test_what_no_runtime_hands_on_is_said() -> None:
    env = {
        "with.dot": "1",
        "1digit": "1",
        "": "1",
        "NEWLINE": "a\nb",
        "FILLED": "a${HOME}b",
        "ENROOT_X": "1",
        "FINE": "1",
    }
    said = enroot_layout.warnings(ImageConfig(env=env))
    assert [line.split()[1] for line in said] == ["'with.dot'", "'1digit'", "''", "NEWLINE", "FILLED", "ENROOT_X"]
    assert enroot_layout.environment(ImageConfig(env=env)) == "FILLED=a${HOME}b\nENROOT_X=1\nFINE=1\n"
