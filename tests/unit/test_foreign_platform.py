"""An image for another platform than the engine's machine: what cannot work is said before the first step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kit.errors import ImageError, LockError
from kit.images import image_lock
from kit.images.build import dockerfile_needs, foreign_platform
from kit.schema.image import Build, ImageSpec
from tests.support import REPO

HERE = "linux/amd64"
BASE = image_lock.read_lock(REPO / "containers/train-cpu/image.lock").model_copy(update={"platform": HERE})
REFERENCE = {"reference": "debian:12"}


def require(work: Path, steps: str = "", **tables: Any) -> None:
    (work / "Dockerfile").write_text("ARG BASE\nFROM ${BASE}\n" + steps)
    needs = dockerfile_needs.read_dockerfile(work / "Dockerfile", target=None)
    build = {"build": {"platform": "linux/arm64"}}
    spec = ImageSpec.model_validate(build | tables)
    foreign_platform.require(spec, needs, BASE if spec.base and spec.base.image else None, engine=HERE)


def test_a_kernel_without_an_emulator_refuses_a_foreign_program() -> None:
    # No machine has the number 0xFFFF, so no emulator is registered for it.
    for bits in (32, 64):
        for order in "<>":
            assert not foreign_platform.has_handler(bits, order, 0xFFFF)


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({"base": {"bootstrap": {"suite": "bookworm"}}}, "makes a base for this machine, linux/amd64"),
        ({"base": {"image": "train-cpu"}}, "its base, image train-cpu, is for linux/amd64"),
        ({"base": REFERENCE, "python": {}}, "names wheels for another one"),
        ({"base": REFERENCE}, "cannot run its programs: line 3: RUN true"),
    ],
)
def test_what_cannot_be_for_another_platform_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tables: dict[str, Any], said: str
) -> None:
    monkeypatch.setitem(foreign_platform._MACHINES, "arm64", (64, "<", 0xFFFF))
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    with pytest.raises(ImageError, match=f"the image is for linux/arm64, and .*{said}"):
        require(tmp_path, "RUN true\n", **tables)


def test_what_needs_no_emulator_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(foreign_platform._MACHINES, "arm64", (64, "<", 0xFFFF))
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    started = list[Any]()
    monkeypatch.setattr("kit.images.build.foreign_platform.shell.run", lambda argv, **_: started.append(argv))
    require(tmp_path, "COPY x /x\n", base=REFERENCE, python={"platforms": ["manylinux_2_28_aarch64"]})
    for platform in (HERE, "linux/amd64/v3", "linux/386"):
        require(tmp_path, "RUN true\n", base=REFERENCE, build={"platform": platform})
    # What an engine elsewhere can run, only that engine knows.
    monkeypatch.setenv("DOCKER_HOST", "ssh://other")
    require(tmp_path, "RUN true\n", base=REFERENCE)
    assert started == [], "whether a program starts here was not asked"


def test_a_result_for_another_platform_is_refused() -> None:
    foreign_platform.require_result(Build(), "arm64")
    foreign_platform.require_result(Build(platform="linux/arm/v7"), "arm")
    with pytest.raises(ImageError, match="is for linux/arm64, and the engine built one for linux/amd64"):
        foreign_platform.require_result(Build(platform="linux/arm64"), "amd64")


def test_a_base_for_another_platform_is_said_without_a_platform_in_image_toml(tmp_path: Path) -> None:
    here = BASE.model_copy(update={"platform": "linux/arm64"})
    (tmp_path / "Dockerfile").write_text("ARG BASE\nFROM ${BASE}\n")
    needs = dockerfile_needs.read_dockerfile(tmp_path / "Dockerfile", target=None)
    spec = ImageSpec.model_validate({"base": {"image": "train-cpu"}})
    with pytest.raises(
        ImageError, match="is for linux/amd64, and its base, image train-cpu, is for linux/arm64"
    ) as said:
        foreign_platform.require(spec, needs, here, engine=HERE)
    assert said.value.hint == "kit build-image train-cpu --relock"


def test_a_lock_for_another_platform_is_kept_only_by_a_build_for_it() -> None:
    for platform in (HERE, "linux/amd64/v3"):
        assert foreign_platform.is_of(BASE, platform, required=True)
    assert foreign_platform.is_of(BASE.model_copy(update={"platform": None}), "linux/arm64", required=True)
    assert not foreign_platform.is_of(BASE, "linux/arm64", required=False)
    with pytest.raises(LockError, match="its lock is for linux/amd64, and this build is for linux/arm64") as said:
        foreign_platform.is_of(BASE, "linux/arm64", required=True)
    assert said.value.hint == "'kit build-image train-cpu --relock' writes a lock for linux/arm64"
