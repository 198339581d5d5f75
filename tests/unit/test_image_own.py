"""An image of one's own: what a Dockerfile must say, requirements that become a hash lock, and another image's bytes as a base."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from kit import shell
from kit.errors import ConfigError, ImageError, LockError, UsageError
from kit.images import difference, image_lock, import_sources, importing, squash_and_lock, store
from kit.images.build import build, build_without_engine, buildkit, dockerfile_needs, first_image, requirements_lock
from kit.images.progress import Silent
from kit.images.squash import sqsh_tar
from kit.schema.image import Build, BuildSecret, ImageConfig, ImageSpec, PythonPackages, Squash
from tests.cluster import image_corpus as corpus


@pytest.fixture(autouse=True)
def _own_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("CONFIG", "DATA", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))


def read(work: Path, text: str, target: str | None = None) -> dockerfile_needs.Dockerfile:
    (work / "Dockerfile").write_text(text)
    return dockerfile_needs.read_dockerfile(work / "Dockerfile", target=target)


# Which stage is built decides what else is taken on the way to it, and a here-document ends where its own line says.
@pytest.mark.parametrize(
    ("text", "target", "unpinned", "buildkit"),
    [
        ("ARG BASE\nFROM ${BASE}\n", None, (), None),
        ("# a comment\n\narg BASE\nfrom $BASE as x\nRUN true", None, (), None),
        ("ARG BASE\nFROM --platform=linux/amd64 ${BASE}\n", None, (), None),
        ("ARG BASE\nFROM ${BASE} AS one\nFROM one AS two\nFROM Two\n", None, (), None),
        ("ARG BASE\nFROM golang AS build\nFROM ${BASE}\nCOPY --from=build /x /x\n", None, ("golang",), None),
        ("ARG BASE\nFROM ${BASE} AS run\nFROM debian AS other\n", "run", ("debian",), None),
        ("ARG BASE\nFROM ${BASE}\nRUN a \\\n  # FROM debian\n  FROM debian\n", None, (), None),
        ("ARG BASE\nFROM ${BASE}\nRUN <<EOF\nFROM debian\nEOF\nCOPY --from=uv / /\n", None, ("uv",), 3),
        ("ARG GO=1\nARG BASE\nFROM go:${GO:-2} AS build\nFROM ${BASE}\n", None, ("go:1",), None),
        ("ARG BASE\nFROM ${BASE}\nARG TARGETARCH\n", None, (), None),
        ("ARG BASE\nFROM --platform=$BUILDPLATFORM go AS a\nFROM ${BASE}\n", None, ("go",), 2),
    ],
)
def test_a_dockerfile_stands_on_the_base(
    tmp_path: Path, text: str, target: str | None, unpinned: tuple[str, ...], buildkit: int | None
) -> None:
    found = read(tmp_path, text, target)
    assert found.unpinned == unpinned
    assert (found.buildkit.line if found.buildkit else None) == buildkit


@pytest.mark.parametrize(
    ("text", "target", "said"),
    [
        ("FROM debian:12\n", None, "line 1: FROM debian:12"),
        ("ARG BASE\nFROM ${BASE} AS x\nFROM debian\n", None, "line 3: FROM debian"),
        ("ARG BASE\nFROM debian AS a\nFROM a AS b\nFROM ${BASE}\n", "b", "line 2: FROM debian"),
        ("ARG BASE\n", None, "no FROM"),
        ("ARG BASE\nFROM ${BASE} AS a\n", "b", "no stage b"),
        ("FROM a AS b\nFROM b AS a\n", None, "FROM"),
        ("ARG TAG=12\nARG IMAGE=debian:${TAG}\nFROM ${IMAGE}\n", None, "line 3: FROM debian:12 ignores"),
        ("ARG IMAGE\nFROM ${IMAGE}\n", None, r"line 2: FROM \$\{IMAGE\}: IMAGE has no value"),
    ],
)
def test_a_dockerfile_on_something_else_is_refused(tmp_path: Path, text: str, target: str | None, said: str) -> None:
    with pytest.raises(ImageError, match=said):
        read(tmp_path, text, target)


def test_what_only_buildkit_understands_and_what_has_no_digest_is_found(tmp_path: Path) -> None:
    base = "ARG BASE\nFROM ${BASE}\n"
    assert read(tmp_path, base + "RUN true").buildkit is None
    for rest in (
        "RUN --mount=type=cache,target=/x true",
        "RUN --network=none --mount=type=secret,id=x true",
        "RUN <<E\nx\nE",
        "COPY --chown=1:1 --chmod=644 x /x",
        "ADD --checksum=sha256:0 https://reg/x /x",
    ):
        found = read(tmp_path, base + rest).buildkit
        assert found is not None
        assert found.line == 3
    for rest in ("RUN --mounted", "RUN echo --mount=x", "COPY --chown=1:1 x /--chmod"):
        assert read(tmp_path, base + rest).buildkit is None
    pinned = f"reg/x@sha256:{'0' * 64}"
    text = f"ARG BASE\nFROM golang AS go\nFROM ${{BASE}}\nCOPY --from=go / /\nCOPY --from=uv:1 / /\nCOPY --from={pinned} / /\n"
    assert read(tmp_path, text).unpinned == ("golang", "uv:1")


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("RUN a && b \\\n  || c", ""),
        ("COPY a b/ /x/", ""),
        ("ENV A=1 B=2", ""),
        ("WORKDIR /a/b", ""),
        ('CMD ["a", "b c"]', ""),
        ("RUN --network=host true", "RUN"),
        ('RUN ["true"]', "RUN"),
        ("RUN <<E\ntrue\nE", "RUN"),
        ("COPY --chown=1 a /x", "COPY"),
        ("COPY *.txt /x/", "COPY"),
        ("COPY $A /x", "COPY"),
        ("ENV A=$B", "ENV"),
        ('ENV A="b c"', "ENV"),
        ("ENV A b", "ENV"),
        ("WORKDIR a", "WORKDIR"),
        ("CMD a b", "CMD"),
        ("CMD [1]", "CMD"),
        ("VOLUME /x", "VOLUME"),
        ("ARG X=1", "ARG"),
        ("FROM ${BASE} AS x", "FROM"),
    ],
)
def test_what_can_be_built_without_an_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, word: str
) -> None:
    monkeypatch.setattr(shell, "which", lambda name: f"/usr/bin/{name}")
    steps = read(tmp_path, f"ARG BASE\nFROM ${{BASE}}\n{line}\n").steps
    why = build_without_engine.why_not(ImageSpec.model_validate({"base": {"image": "x"}}), steps)
    assert why.startswith(f"line 3 of the Dockerfile ({word}) needs one") if word else why == ""
    for table in ({"base": {"reference": "x"}}, {"base": {"image": "x"}, "build": {"network": "host"}}):
        assert build_without_engine.why_not(ImageSpec.model_validate(table), steps)


def wheel(folder: Path, name: str, version: str, *needs: str) -> None:
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as out:
        info = f"{name}-{version}.dist-info"
        requires = "".join(f"Requires-Dist: {need}\n" for need in needs)
        out.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}")
        out.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        out.writestr(f"{info}/RECORD", "")


def test_requirements_become_a_lock_without_what_the_base_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, folder = tmp_path / "index", tmp_path / "image"
    for version in ("1.0", "2.0"):
        wheel(index, "heavy", version)
    wheel(index, "wanted", "3.0", "heavy>=1", "helper")
    wheel(index, "helper", "0.1")
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    (folder / "requirements.txt").write_text("wanted\n")
    packages, held, lock = PythonPackages(), {"heavy": "1.0"}, folder / "requirements.lock"

    def refresh(*, locked: bool = False) -> bool:
        return requirements_lock.refresh(packages, folder, held, locked=locked, on_line=lambda _: None)

    with pytest.raises(LockError, match="another requirements"):
        refresh(locked=True)
    assert refresh()
    names = [line.split()[0] for line in lock.read_text().splitlines()[1:]]
    assert names == ["helper==0.1", "wanted==3.0"]
    assert "--hash=sha256:" in lock.read_text()
    assert not refresh(locked=True)
    (folder / "requirements.txt").write_text("wanted\nheavy>=2\n")
    with pytest.raises(ImageError, match="pip finds no solution"):
        refresh()
    lock.write_text("# by another tool\n")
    assert not refresh()


def test_a_first_image_is_written(tmp_path: Path) -> None:
    folder = first_image.write_image_folder("mine", base="train-cpu", packages=["lightning"], project=tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == ["Dockerfile", "image.toml", "requirements.txt"]
    assert (folder / "requirements.txt").read_text() == "lightning\n"
    assert dockerfile_needs.read_dockerfile(folder / "Dockerfile", target=None).buildkit is None
    with pytest.raises(UsageError, match="exists already"):
        first_image.write_image_folder("mine", base="train-cpu", packages=[], project=tmp_path)
    with pytest.raises(UsageError, match="not the name"):
        first_image.write_image_folder("Mine!", base="train-cpu", packages=[], project=tmp_path)


def imported(work: Path, source: Path, name: str) -> squash_and_lock.Outcome:
    (work / "project").mkdir(exist_ok=True)
    return importing.run(
        importing.ImportOrder(uri=str(source), name=name, project=work / "project", store=work / "store"), Silent()
    )


def test_the_kits_own_lock_counts_until_a_build_gives_other_bytes(tmp_path: Path) -> None:
    """The lock of a kit that others installed was not compared with: a build made any bytes, and a new lock in the project."""
    layout = corpus.oci_layout(tmp_path / "layout", corpus.batch({"one": corpus.BATCH["plain"]}), {})
    first = imported(tmp_path, layout, "tiny")
    target = squash_and_lock.Target(
        name="tiny",
        store=tmp_path / "other-store",
        lock_file=tmp_path / "own/containers/tiny/image.lock",
        shipped=first.lock_file,
        source=first.lock.source,
        inputs=first.lock.inputs,
        squash=Squash(),
    )

    def make(target: squash_and_lock.Target) -> squash_and_lock.Outcome:
        store.prepare_store(target.store)
        with store.workspace(target.store) as work:
            content = import_sources.ready(str(layout), work, Silent()).content
            return squash_and_lock.make(target, content, work, Silent())

    assert squash_and_lock.unchanged(target) is None, "its file is not in this store"
    made = make(target)
    assert (made.lock.sha256, made.lock_file) == (first.lock.sha256, first.lock_file)
    assert not target.lock_file.exists()
    assert (found := squash_and_lock.unchanged(target)) and found.lock_file == first.lock_file
    shipped = first.lock_file.read_text()
    other = make(replace(target, inputs="e" * 64))
    assert (other.lock_file, target.current) == (target.lock_file, other.lock)
    assert first.lock_file.read_text() == shipped


def test_the_same_bytes_keep_the_base_by_which_a_build_elsewhere_finds_it(tmp_path: Path) -> None:
    """A base that was loaded into an engine has no digest of a registry: the lock got the engine's id of it."""
    layout = corpus.oci_layout(tmp_path / "layout", corpus.batch({"one": corpus.BATCH["plain"]}), {})
    target = squash_and_lock.Target(
        name="tiny",
        store=tmp_path / "store",
        lock_file=tmp_path / "image.lock",
        source="build",
        inputs="e" * 64,
        squash=Squash(),
    )

    def base_after(target: squash_and_lock.Target, digest: str) -> str:
        with store.workspace(target.store) as work:
            content = replace(
                import_sources.ready(str(layout), work, Silent()).content,
                kind="reference",
                reference="a:1",
                digest=digest,
            )
            squash_and_lock.make(target, content, work, Silent())
        return image_lock.read_lock(target.lock_file).base.digest

    store.prepare_store(target.store)
    registry, loaded = f"sha256:{'1' * 64}", f"sha256:{'2' * 64}"
    assert [base_after(target, digest) for digest in (registry, loaded)] == [registry, registry]
    assert base_after(replace(target, relock=True), loaded) == loaded
    assert base_after(replace(target, inputs="f" * 64), registry) == registry


def test_a_sqsh_as_a_tar_is_the_same_tree(tmp_path: Path) -> None:
    cases = {name: layers for name, layers in corpus.BATCH.items() if "capability" not in name and name != "names-odd"}
    first = imported(tmp_path, corpus.oci_layout(tmp_path / "layout", corpus.batch(cases), {}), "first")
    with sqsh_tar.stream(first.image) as chunks, (tmp_path / "tree.tar").open("wb") as out:
        out.writelines(chunks)
    second = imported(tmp_path, tmp_path / "tree.tar", "second")
    assert difference.files(first.image, second.image) == ()
    assert second.lock.sha256 == first.lock.sha256


def test_capabilities_that_would_be_lost_are_said(tmp_path: Path) -> None:
    layers = corpus.batch({"x": corpus.BATCH["capability"]})
    image = imported(tmp_path, corpus.oci_layout(tmp_path / "layout", layers, {}), "x").image
    with pytest.raises(ImageError, match="capabilities"), sqsh_tar.stream(image):
        pass


def test_a_configuration_becomes_instructions() -> None:
    config = ImageConfig(env={"A": 'q"u$o\\t', "N": "a\nb"}, workdir="/w", cmd=("a b",), labels={"l": "x"})
    assert sqsh_tar.changes(config) == ['ENV A="q\\"u\\$o\\\\t"', 'LABEL "l"="x"', "WORKDIR /w", 'CMD ["a b"]']


def test_secrets_are_found_by_id_or_by_the_file_that_they_become(tmp_path: Path) -> None:
    steps = "RUN --mount=type=secret,id=a,required --mount=type=cache,target=/x true\n"
    steps += "RUN --mount=type=secret,target=/root/.netrc true"
    found = read(tmp_path, f"ARG BASE\nFROM ${{BASE}}\n{steps}\n").secrets
    assert {name: one.line for name, one in found.items()} == {"a": 3, ".netrc": 4}


def test_image_and_dockerfile_name_the_same_secrets(tmp_path: Path) -> None:
    toml = tmp_path / "image.toml"
    needs = read(tmp_path, "ARG BASE\nFROM ${BASE}\nRUN --mount=type=secret,id=a,required true\n")
    with pytest.raises(ImageError, match=r"line 3: image\.toml names no secret a"):
        buildkit.agree(toml, tmp_path / "Dockerfile", needs, Build())
    # What the step does not require may be missing, and this is said.
    needs = read(tmp_path, "ARG BASE\nFROM ${BASE}\nRUN --mount=type=secret,id=a true\n")
    buildkit.agree(toml, tmp_path / "Dockerfile", needs, Build())
    (said,) = buildkit.missing(toml, tmp_path / "Dockerfile", needs, Build())
    assert said.endswith("line 3: no secret a for the step: [build.secrets] in image.toml does not name it")
    optional = Build(secrets={"a": BuildSecret(env="KIT_TEST_NOT_SET", optional=True)})
    (said,) = buildkit.missing(toml, tmp_path / "Dockerfile", needs, optional)
    assert said.endswith("no secret a for the step: KIT_TEST_NOT_SET is not set where 'kit build-image' runs")
    assert list(buildkit._secrets(toml, optional.secrets)) == []
    two = Build(secrets={name: BuildSecret(env="A") for name in "ab"})
    with pytest.raises(ConfigError, match=r"A is not set where .* runs\n.*export A=\.\.\., or add optional = true"):
        list(buildkit._secrets(toml, {"a": BuildSecret(env="A")}))
    with pytest.raises(ConfigError, match=r"build\.secrets\.b: no step of the Dockerfile uses it"):
        buildkit.agree(toml, tmp_path / "Dockerfile", needs, two)


def test_images_that_build_on_each_other_are_refused(tmp_path: Path) -> None:
    """A base without a lock is built first: a circle would never end."""
    for name, base in (("one", "two"), ("two", "three"), ("three", "one")):
        folder = tmp_path / "containers" / name
        folder.mkdir(parents=True)
        (folder / "image.toml").write_text(f'[base]\nimage = "{base}"\n')
        (folder / "Dockerfile").write_text("ARG BASE\nFROM ${BASE}\n")
    order = build.BuildOrder(name="one", project=tmp_path, store=tmp_path / "store")
    with pytest.raises(ImageError, match="image three: its base one is built on it"):
        build.build(order, Silent())
    with pytest.raises(LockError, match="image one: its base, image two, has no lock"):
        build.build(replace(order, locked=True), Silent())
