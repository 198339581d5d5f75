"""A build by BuildKit, for a Dockerfile that the engine's classic builder cannot read.

The Docker SDK has no BuildKit session, so the `docker` program holds the session, with the same engine. Base, network, context and
clean-up are the same as in every other build.
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kit import shell
from kit.config import shown
from kit.errors import ConfigError, Fault, ImageError, ToolError
from kit.images.build import dockerfile_features, dockerfile_lines
from kit.images.build.dockerfile_needs import Dockerfile
from kit.images.sources import build_failure, oci
from kit.schema.image import Build, BuildSecret

# From this release on, the `docker` program leaves BuildKit to its plugin buildx (release notes of Docker Engine 23.0).
_MODERN_RELEASE = 23


@dataclass(frozen=True, kw_only=True)
class BuildKitSession:
    """A `docker` program that can hold a BuildKit session. secrets: values of its option --secret. env: its environment.

    dockerfile: the text to send. fetched: the frontend that the engine fetches from a registry; empty for its own.
    """

    program: str
    secrets: tuple[str, ...]
    env: Mapping[str, str]
    dockerfile: str
    fetched: str


def agree(toml: Path, file: Path, needs: Dockerfile, options: Build) -> None:
    """Check that image.toml and the Dockerfile name the same secrets. ConfigError or ImageError names the missing one."""
    for name, one in needs.secrets.items():
        if name not in options.secrets and name in needs.required:
            hint = f'in {toml.name}: [build.secrets] {name} = {{ env = "VARIABLE" }}, or {{ file = "PATH" }}'
            raise ImageError(f"{file}: line {one.line}: image.toml names no secret {name}", hint=hint)
    for name in options.secrets:
        if name not in needs.secrets:
            problem = "no step of the Dockerfile uses it"
            hint = f"write RUN --mount=type=secret,id={name} before the command that reads /run/secrets/{name}, or remove the line"
            raise ConfigError.of(Fault(file=shown(toml), key=f"build.secrets.{name}", problem=problem, hint=hint))


def missing(toml: Path, file: Path, needs: Dockerfile, options: Build) -> Iterator[str]:
    """A sentence for each secret without which the steps run, because image.toml does not name it or it does not exist here."""
    for name, one in needs.secrets.items():
        source = options.secrets.get(name)
        if source is None:
            yield f"{file}: line {one.line}: no secret {name} for the step: [build.secrets] in {toml.name} does not name it"
        elif source.optional and (problem := _lacks(toml, source)):
            yield f"{file}: line {one.line}: no secret {name} for the step: {problem}"


def session(toml: Path, file: Path, needs: Dockerfile, options: Build, engine: str) -> BuildKitSession:
    """Find everything that a build by BuildKit needs. engine: its version, or `Podman`.

    ImageError with the line that needs BuildKit, if this engine or this machine has none. ConfigError for a secret that does not
    exist.
    """
    first = needs.features[0]
    cause = f"{file}: line {first.at.line}: {first.what} needs BuildKit"
    if engine == "Podman":
        hint = "build it with 'buildah build', push it to an OCI layout, and take that: kit import-image ./layout"
        raise ImageError(f"{cause}, and the engine is Podman", hint=f"{first.instead}; or {hint}")
    text, fetched = _frontend(file, needs, engine)
    env = _environment()
    program = next((one for one in _programs() if _holds_sessions(one, env)), None)
    if program is None:
        problem = f"{cause}, and no 'docker' program of this machine can use it"
        raise ImageError(
            problem, hint=f"install Docker's plugin buildx, so that 'docker buildx version' answers; or {first.instead}"
        )
    secrets = tuple(_secrets(toml, options.secrets))
    return BuildKitSession(program=program, secrets=secrets, env=env, dockerfile=text, fetched=fetched)


def _frontend(file: Path, needs: Dockerfile, engine: str) -> tuple[str, str]:
    """The text to send, and the frontend that the engine fetches for it; see BuildKitSession.

    The engine's own frontend needs no registry, so a `# syntax=` line stays only if the engine is too old for the file, or if the
    line names another frontend. ImageError if the engine is too old and there is no such line.
    """
    refused = next((one for one in needs.features if not one.release), None)
    if refused is not None:
        problem = f"{file}: line {refused.at.line}: {refused.what} needs rights that no engine gives to a build"
        raise ImageError(problem, hint=refused.instead)
    new = next((one for one in needs.features if one.release > _major(engine)), None)
    if new is not None and not needs.syntax:
        problem = f"{new.what} needs Docker Engine {new.release}.0 or newer, and this one is {engine}"
        hint = (
            f"{new.instead}; or begin the file with # syntax=docker/dockerfile:1, if the engine reaches that registry"
        )
        raise ImageError(f"{file}: line {new.at.line}: {problem}", hint=hint)
    if needs.syntax and (new is not None or not dockerfile_features.is_own_frontend(needs.syntax)):
        return needs.text, needs.syntax
    return dockerfile_lines.without(needs.text, "syntax"), ""


def build(
    held: BuildKitSession,
    context: Iterable[bytes],
    *,
    tag: str,
    base: str | None,
    options: Build,
    no_cache: bool,
    work: Path,
    on_line: Callable[[str], None],
    dockerfile: str = "Dockerfile",
) -> str:
    """Build from a tar stream that contains the Dockerfile; return the image's id.

    base: a tag that the engine holds; None: the Dockerfile names its own base.

    ImageError names the step that failed and shows its last lines.
    """
    file = work / "image-id"
    args = options.args if base is None else {"BASE": base, **options.args}
    argv = [
        held.program,
        "build",
        f"--file={dockerfile}",
        "--progress=plain",
        f"--network={options.network}",
        f"--iidfile={file}",
        f"--tag={tag}",
    ]
    argv += [f"--build-arg={name}={value}" for name, value in args.items()]
    argv += [f"--label={oci.MARK}=1"] if base is None else []
    argv += [f"--secret={secret}" for secret in held.secrets]
    argv += [f"--target={options.target}"] if options.target else []
    argv += [f"--platform={options.platform}"] if options.platform else []
    argv += ["--no-cache"] if no_cache else []
    output: list[str] = []
    try:
        for line in shell.lines(shell.bound([*argv, "-"]), env=held.env, chunks=context):
            output.append(line)
            shown_line = re.sub(r"^#\d+ ", "", line)
            if shown_line.strip() and not shown_line.startswith("sha256:"):
                on_line(shown_line)
    except ToolError:
        raise build_failure.error(_failure(output, held), network=options.network) from None
    return file.read_text(encoding="utf-8").strip()


def _major(version: str) -> int:
    found = re.match(r"\d+", version)
    return int(found[0]) if found else 0


def _environment() -> dict[str, str]:
    """Environment of the `docker` program: use the SDK's engine, not the contexts and builders that the user has chosen."""
    chosen = {
        "DOCKER_BUILDKIT": "1",
        "DOCKER_HOST": os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock",
        "BUILDX_BUILDER": "default",
        # An attestation would turn the image into an index and name this machine's builder in it.
        "BUILDX_NO_DEFAULT_ATTESTATIONS": "1",
    }
    return {**os.environ, **chosen}


def _programs() -> Iterator[str]:
    """Each `docker` in PATH: the first one may lack the plugin buildx, and a later, older one may not need it."""
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        found = shell.which_in(folder, "docker")
        if found is not None:
            yield found


def _holds_sessions(program: str, env: Mapping[str, str]) -> bool:
    with contextlib.suppress(ToolError):
        if shell.run([program, "buildx", "version"], check=False, env=env, timeout=30).returncode == 0:
            return True
        said = shell.run([program, "--version"], check=False, env=env, timeout=30).stdout
        version = re.search(r"version (\d+)", said)
        return version is not None and int(version[1]) < _MODERN_RELEASE
    return False


def _secrets(toml: Path, wanted: Mapping[str, BuildSecret]) -> Iterator[str]:
    faults = []
    for name, secret in wanted.items():
        problem = _lacks(toml, secret)
        if problem and not secret.optional:
            key = f"build.secrets.{name}.{'env' if secret.env is not None else 'file'}"
            instead = (
                f"export {secret.env}=..." if secret.env is not None else "name a file, from the image's folder on"
            )
            faults.append(Fault(file=shown(toml), key=key, problem=problem, hint=f"{instead}, or add optional = true"))
        elif not problem:
            source = f"env={secret.env}" if secret.env is not None else f"src={_file(toml, secret)}"
            yield _comma_separated(f"id={name}", source)
    if faults:
        raise ConfigError.of(*faults)


def _lacks(toml: Path, one: BuildSecret) -> str:
    """Why a secret does not exist on this machine; empty if it does."""
    if one.env is not None:
        return "" if one.env in os.environ else f"{one.env} is not set where 'kit build-image' runs"
    path = _file(toml, one)
    return "" if os.access(path, os.R_OK) and path.is_file() else f"{path} is not a file that this user can read"


def _file(toml: Path, one: BuildSecret) -> Path:
    return toml.parent / Path(one.file or "").expanduser()


def _comma_separated(*fields: str) -> str:
    """One line of CSV, the format of --secret: a path may contain a comma."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(fields)
    return line.getvalue()


def _failure(output: list[str], held: BuildKitSession) -> build_failure.FailedBuild:
    """BuildKit prints each line as `#STEP SECONDS TEXT`, and its final message last."""
    verdict = next((line for line in reversed(output) if line.strip() and not set(line) <= {"-"}), "it printed nothing")
    failed = next((match for line in reversed(output) if (match := re.match(r"#(\d+) ERROR: ", line))), None)
    if failed is not None and any(re.match(rf"#{failed[1]} resolve image config for ", line) for line in output):
        verdict = f"the line # syntax={held.fetched} names a frontend of a registry, and the engine could not fetch it: {verdict}"
        failed = None
    if failed is None:
        return build_failure.FailedBuild(step="", printed=(), verdict=verdict)
    number = failed[1]
    title = next((line for line in output if re.match(rf"#{number} \[", line)), failed[0])
    step = re.sub(r"^#\d+ (\[[^]]*\] )?", "", title)
    printed = [match[1] for line in output if (match := re.match(rf"#{number} \d+\.\d+ (.*)", line))]
    return build_failure.FailedBuild(step=step, printed=printed, verdict=verdict)
