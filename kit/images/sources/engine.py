"""The container engine. Only this module uses the Docker SDK, and imports it when an engine is first needed."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kit.errors import EngineError, ImageError
from kit.files.owning_process import Owner
from kit.images.sources import build_failure, oci
from kit.images.sources.engine_hints import registry_hint
from kit.schema.image import Build, ImageConfig

if TYPE_CHECKING:
    from docker import APIClient

# This is long because a RUN line may print nothing for as long as it works. The engine's death is noticed at once anyway.
_SILENCE_S = 3600
_EXPORT_CHUNK = 1 << 20
# The SDK's function always keeps one file.
_NO_FILE = ".kit/no-such-file"
OWNER = "slurm-kit.files.owning_process"
_START = "start Docker (in a clone of slurm-kit, make setup does it), or point DOCKER_HOST at an engine that runs"


@dataclass(frozen=True, kw_only=True)
class EngineImage:
    """An image that the engine holds.

    size: of all layers, in bytes. layers: folders of the layers on this machine, topmost first; empty if this process cannot read
    them. diff_ids: digests of the layers' tars, lowest first. repo_digests: `name@sha256:…` as registries know it. triggers:
    ONBUILD instructions for images that build on this one.
    """

    id: str
    size: int
    config: ImageConfig
    layers: tuple[Path, ...]
    diff_ids: tuple[str, ...]
    repo_digests: tuple[str, ...]
    architecture: str = ""
    triggers: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class OwnedContainer:
    """A container that a kit created and never starts. made: seconds since the epoch, by the engine's clock."""

    id: str
    owner: Owner | None
    made: float


class Engine:
    """A connection to a container engine. Every method raises EngineError if the engine does not answer, ImageError if it
    refuses.

    platform: of the engine's machine, as `linux/amd64`.
    """

    def __init__(self, client: APIClient, version: str, *, podman: bool = False, platform: str = "linux/amd64") -> None:
        self._client = client
        self.version = version
        self.podman = podman
        self.platform = platform

    def inspect(self, reference: str) -> EngineImage | None:
        """The image; None when the engine does not hold it."""
        from docker.errors import ImageNotFound

        with _faults(f"inspect {reference}"):
            try:
                answer: dict[str, Any] = self._client.inspect_image(reference)  # type: ignore[no-untyped-call]
            except ImageNotFound:
                return None
        return EngineImage(
            id=answer["Id"],
            size=answer["Size"],
            config=oci.config(answer.get("Config") or {}),
            layers=_reachable(answer.get("GraphDriver") or {}),
            diff_ids=tuple((answer.get("RootFS") or {}).get("Layers") or ()),
            repo_digests=tuple(answer.get("RepoDigests") or ()),
            architecture=str(answer.get("Architecture") or ""),
            triggers=tuple((answer.get("Config") or {}).get("OnBuild") or ()),
            tags=tuple(answer.get("RepoTags") or ()),
        )

    def pull(self, reference: str, *, platform: str | None, on_line: Callable[[str], None]) -> None:
        """Fetch an image from its registry, with the credentials of Docker's own configuration."""
        with _faults(f"pull {reference}"):
            for item in self._client.pull(reference, stream=True, decode=True, platform=platform):
                if "error" in item:
                    raise ImageError(f"pull {reference}: {item['error']}", hint=registry_hint(item["error"]))
                if "progress" not in item and item.get("status"):
                    on_line(f"{item.get('id', '')} {item['status']}".strip())

    def import_tar(self, tar: Path, reference: str) -> None:
        """Make a one-layer image from a root filesystem's tar."""
        repository, _, tag = reference.rpartition(":")
        with _faults(f"import {reference}"):
            self._client.import_image(src=str(tar), repository=repository, tag=tag, changes=[f'LABEL "{oci.MARK}"="1"'])

    def import_stream(self, chunks: Iterable[bytes], reference: str, *, changes: Sequence[str]) -> None:
        """Make a one-layer image from a tar that comes in chunks. changes: Dockerfile instructions that only set configuration."""
        repository, _, tag = reference.rpartition(":")
        with _faults(f"import {reference}"):
            self._client.import_image(
                src=chunks, repository=repository, tag=tag, changes=list(changes), stream_src=True
            )

    def load(self, archive: Path) -> str:
        """Load an archive of `docker save`; return the reference or id of its first image."""
        with _faults(f"load {archive}"), archive.open("rb") as stream:
            for item in self._client.load_image(stream):  # type: ignore[no-untyped-call]
                if "error" in item:
                    raise ImageError(f"{archive}: {item['error']}")
                loaded = re.match(r"Loaded image(?: ID)?: (\S+)", item.get("stream", ""))
                if loaded:
                    return loaded[1]
        raise ImageError(f"{archive}: the engine found no image in it", hint="make it with 'docker save -o FILE IMAGE'")

    def build(
        self,
        context: Iterable[bytes],
        *,
        tag: str | None,
        base: str | None,
        options: Build,
        no_cache: bool,
        on_line: Callable[[str], None],
        dockerfile: str = "Dockerfile",
    ) -> str:
        """Build from a tar stream that contains the Dockerfile; return the image's id.

        base: for the argument BASE; None: the Dockerfile names its own base, and the image gets the kit's mark at its end.
        on_line is called with each line that the engine prints. ImageError names the step that failed and shows its last lines.
        """
        output: list[str] = []
        image = ""
        with _faults("build"):
            answer = self._client.build(
                fileobj=context,  # type: ignore[arg-type]  # it is handed to requests, which takes any iterable of bytes
                custom_context=True,
                tag=tag,
                buildargs=options.args if base is None else {"BASE": base, **options.args},
                labels={oci.MARK: "1"} if base is None else None,
                dockerfile=dockerfile,
                target=options.target,
                platform=options.platform,
                network_mode=options.network,
                nocache=no_cache,
                rm=True,
                forcerm=True,
                decode=True,
            )
            for item in answer:
                if "error" in item:
                    if base is None:
                        self._remove_unfinished(output)
                    raise build_failure.error(_failure(output, item["error"]), network=options.network)
                image = (item.get("aux") or {}).get("ID", image)
                for line in str(item.get("stream", "")).splitlines():
                    if line.strip():
                        output.append(line)
                        on_line(line)
        return image

    def _remove_unfinished(self, said: Sequence[str]) -> None:
        """Remove the steps of a failed build. They have no mark if the base has none."""
        made = [step[1] for line in said if (step := re.fullmatch(r" ---> ([0-9a-f]{12})", line))]
        for image in made[-1:]:
            found = self.inspect(image)
            if found is not None and not found.tags:
                self.remove_loose(image)

    @contextlib.contextmanager
    def export(self, image: str) -> Iterator[Iterator[bytes]]:
        """The image's merged tree as a tar stream, from a container that is never started and is removed afterwards."""
        with _faults("export"):
            container = self.create(image)
            try:
                yield _chunks(self._client.export(container, chunk_size=_EXPORT_CHUNK))
            finally:
                self.remove_container(container)

    def create(self, image: str) -> str:
        """Create a container that is never started, owned by this process. Return its id."""
        # The engine requires a command although it never runs, and an image may have none.
        made = self._client.create_container(
            image, command=["/bin/true"], network_disabled=True, labels={OWNER: str(Owner.current())}
        )
        return str(made["Id"])

    def owned_containers(self) -> list[OwnedContainer]:
        """Containers that `create` made, of all processes."""
        with _faults("list containers"):
            found = self._client.containers(all=True, filters={"label": OWNER})
        return [
            OwnedContainer(id=one["Id"], owner=Owner.parse(str(one["Labels"].get(OWNER))), made=float(one["Created"]))
            for one in found
        ]

    def remove_container(self, container: str) -> None:
        """Remove a container and its volumes; do nothing if it does not exist."""
        from docker.errors import NotFound

        with _faults("remove a container"), contextlib.suppress(NotFound):
            self._client.remove_container(container, force=True, v=True)

    def loose_images(self) -> list[str]:
        """Ids of marked images that have no tag and no image built on them."""
        with _faults("list images"):
            return [one["Id"] for one in self._client.images(filters={"dangling": True, "label": oci.MARK})]

    def remove_loose(self, image: str) -> None:
        """Remove an untagged image and its untagged parents; do nothing if something uses it."""
        from docker.errors import APIError

        with _faults("remove an image"), contextlib.suppress(APIError):
            self._client.remove_image(image)

    def tags(self, repository: str) -> list[str]:
        """All `repository:tag` that the engine holds."""
        with _faults(f"list {repository}"):
            found = self._client.images(name=repository)
        return [name for one in found for name in one.get("RepoTags") or () if name.startswith(f"{repository}:")]

    def tag(self, image: str, reference: str) -> None:
        """Give an image another tag."""
        repository, _, tag = reference.rpartition(":")
        with _faults(f"tag {reference}"):
            self._client.tag(image, repository, tag)

    def remove(self, reference: str) -> None:
        """Remove a tag, and the image with its last tag; do nothing if the tag does not exist."""
        from docker.errors import ImageNotFound

        with _faults(f"remove {reference}"), contextlib.suppress(ImageNotFound):
            self._client.remove_image(reference, force=True)


def connect() -> Engine:
    """The engine that DOCKER_HOST names, or the local one. EngineError, with a hint, when none answers."""
    from docker import APIClient
    from docker.errors import DockerException
    from docker.utils import kwargs_from_env

    try:
        client = APIClient(**kwargs_from_env(), version="auto", timeout=_SILENCE_S)
        said = client.version()
        parts = [str(part.get("Name")) for part in said.get("Components") or ()]
        platform = f"{said.get('Os') or 'linux'}/{said.get('Arch') or oci.here()}"
        podman = any("Podman" in part for part in parts)
        return Engine(client, str(said["Version"]), podman=podman, platform=platform)
    except DockerException as error:
        address = os.environ.get("DOCKER_HOST", "the local socket")
        if "Permission denied" in str(error) or "PermissionError" in str(error):
            hint = "ask an administrator to add you to the group 'docker', or use a rootless engine through DOCKER_HOST"
            raise EngineError(
                f"this user has no permission to use the container engine at {address}", hint=hint
            ) from None
        raise EngineError(f"no container engine answers at {address}", hint=_START) from None


def ignored_by(folder: Path, patterns: list[str], *, keep: str = "Dockerfile") -> Callable[[str], bool]:
    """A function that tells whether these lines of a .dockerignore exclude a path of `folder`.

    keep: a path that no line excludes.
    """
    from docker.utils.build import exclude_paths

    rules = [line.strip() for line in patterns if line.strip() and not line.startswith("#")]
    kept = {Path(path).as_posix() for path in exclude_paths(str(folder), rules, dockerfile=keep or _NO_FILE)}
    return lambda name: name not in kept


def _chunks(stream: Iterable[bytes]) -> Iterator[bytes]:
    with _faults("export"):
        yield from stream


@contextlib.contextmanager
def _faults(doing: str) -> Iterator[None]:
    """Turn errors of the SDK and of its transport into the kit's own."""
    from docker.errors import APIError, DockerException
    from requests.exceptions import RequestException
    from urllib3.exceptions import HTTPError

    try:
        yield
    except APIError as error:
        said = str(error.explanation or error)
        raise ImageError(f"{doing}: the engine refused: {said}", hint=registry_hint(said)) from None
    except (RequestException, HTTPError, DockerException, ConnectionError) as error:
        raise EngineError(f"{doing}: the container engine stopped answering: {error}", hint=_START) from None


def _failure(output: list[str], error: str) -> build_failure.FailedBuild:
    """The engine's final message repeats the command; its exit code says as much."""
    start = max((number for number, line in enumerate(output) if re.match(r"Step \d+/\d+ : ", line)), default=None)
    code = re.search(r"returned a non-zero code: (\d+)", error)
    return build_failure.FailedBuild(
        step=output[start] if start is not None else "",
        printed=output[start + 1 :] if start is not None else (),
        verdict=f"exit code {code[1]}" if code else error,
    )


def _reachable(driver: dict[str, Any]) -> tuple[Path, ...]:
    """Layer folders that this process may mount: it is root, the driver is overlay2, and the engine runs on this machine."""
    if driver.get("Name") != "overlay2" or os.geteuid() != 0:
        return ()
    data = driver.get("Data") or {}
    named = [data.get("UpperDir", ""), *filter(None, data.get("LowerDir", "").split(":"))]
    layers = tuple(Path(folder) for folder in named)
    return layers if all(folder.is_absolute() and folder.is_dir() for folder in layers) else ()
