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
from kit.images.dockerfile_needs import Dockerfile, Instruction, modern_flag
from kit.spec.image import Build, BuildSecret

# From this release on, the engine's own Dockerfile frontend reads here-documents, and the `docker` program leaves BuildKit to its
# plugin buildx (release notes of Docker Engine 23.0).
_MODERN_RELEASE = 23
_TAIL_LINES = 15


@dataclass(frozen=True, kw_only=True)
class Session:
    """A `docker` program that can hold a BuildKit session. secrets: values of its option --secret. env: its environment."""

    program: str
    secrets: tuple[str, ...]
    env: Mapping[str, str]


def agree(toml: Path, file: Path, needs: Dockerfile, options: Build) -> None:
    """Check that image.toml and the Dockerfile name the same secrets. ConfigError or ImageError names the missing one."""
    for name, one in needs.secrets.items():
        if name not in options.secrets:
            hint = f'in {toml.name}: [build.secrets] {name} = {{ env = "VARIABLE" }}, or {{ file = "PATH" }}'
            raise ImageError(f"{file}: line {one.line}: image.toml names no secret {name}", hint=hint)
    for name in options.secrets:
        if name not in needs.secrets:
            problem = "no step of the Dockerfile uses it"
            hint = f"write RUN --mount=type=secret,id={name} before the command that reads /run/secrets/{name}, or remove the line"
            raise ConfigError.of(Fault(file=shown(toml), key=f"build.secrets.{name}", problem=problem, hint=hint))


def session(toml: Path, file: Path, needs: Dockerfile, options: Build, engine: str) -> Session:
    """Find everything that a build by BuildKit needs. engine: its version, or `Podman`.

    ImageError with the line that needs BuildKit, if this engine or this machine has none. ConfigError for a secret that does not
    exist.
    """
    assert needs.buildkit is not None
    what, instead = _feature_and_alternative(needs.buildkit)
    place = f"{file}: line {needs.buildkit.line}: {what} needs BuildKit"
    if engine == "Podman":
        hint = "build it with 'buildah build', push it to an OCI layout, and take that: kit import-image ./layout"
        raise ImageError(f"{place}, and the engine is Podman", hint=f"{instead}; or {hint}")
    if needs.heredoc is not None and not needs.syntax and _major(engine) < _MODERN_RELEASE:
        problem = f"a here-document needs Docker Engine {_MODERN_RELEASE}.0 or newer, and this one is {engine}"
        raise ImageError(
            f"{file}: line {needs.heredoc.line}: {problem}", hint=_feature_and_alternative(needs.heredoc)[1]
        )
    env = _environment()
    program = next((one for one in _programs() if _holds_sessions(one, env)), None)
    if program is None:
        problem = f"{place}, and no 'docker' program of this machine can use it"
        raise ImageError(
            problem, hint=f"install Docker's plugin buildx, so that 'docker buildx version' answers; or {instead}"
        )
    return Session(program=program, secrets=tuple(_secrets(toml, options.secrets)), env=env)


def build(
    held: Session,
    context: Iterable[bytes],
    *,
    tag: str,
    base: str,
    options: Build,
    no_cache: bool,
    work: Path,
    on_line: Callable[[str], None],
) -> str:
    """Build from a tar stream that contains the Dockerfile; return the image's id. base: a tag that the engine holds.

    ImageError names the step that failed and shows its last lines.
    """
    file = work / "image-id"
    argv = [
        held.program,
        "build",
        "--progress=plain",
        f"--network={options.network}",
        f"--iidfile={file}",
        f"--tag={tag}",
    ]
    argv += [f"--build-arg={name}={value}" for name, value in {"BASE": base, **options.args}.items()]
    argv += [f"--secret={secret}" for secret in held.secrets]
    argv += [f"--target={options.target}"] if options.target else []
    argv += [f"--platform={options.platform}"] if options.platform else []
    argv += ["--no-cache"] if no_cache else []
    said: list[str] = []
    try:
        for line in shell.lines(shell.bound([*argv, "-"]), env=held.env, chunks=context):
            said.append(line)
            shown_line = re.sub(r"^#\d+ ", "", line)
            if shown_line.strip() and not shown_line.startswith("sha256:"):
                on_line(shown_line)
    except ToolError:
        raise ImageError(_failure(said), hint="mend the Dockerfile at that step") from None
    return file.read_text(encoding="utf-8").strip()


def _feature_and_alternative(one: Instruction) -> tuple[str, str]:
    """The BuildKit feature in the line, and how to write the line without it."""
    if one.heredoc:
        return "a here-document", "write the lines as one RUN, joined with && and a backslash"
    flag = modern_flag(one)
    if flag == "--mount":
        return "RUN --mount", "do without: packages come from wheels/, which needs no cache, and a job has [secrets]"
    return f"{one.word} {flag}", f"write the {one.word} without {flag}"


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
    for name, one in wanted.items():
        if one.env is not None:
            if one.env not in os.environ:
                problem, hint = f"{one.env} is not set where 'kit build-image' runs", f"export {one.env}=..."
                faults.append(Fault(file=shown(toml), key=f"build.secrets.{name}.env", problem=problem, hint=hint))
            yield _comma_separated(f"id={name}", f"env={one.env}")
        else:
            path = toml.parent / Path(one.file or "").expanduser()
            if not os.access(path, os.R_OK) or not path.is_file():
                problem, hint = (
                    f"{path} is not a file that this user can read",
                    "name a file, from the image's folder on",
                )
                faults.append(Fault(file=shown(toml), key=f"build.secrets.{name}.file", problem=problem, hint=hint))
            yield _comma_separated(f"id={name}", f"src={path}")
    if faults:
        raise ConfigError.of(*faults)


def _comma_separated(*fields: str) -> str:
    """One line of CSV, the format of --secret: a path may contain a comma."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(fields)
    return line.getvalue()


def _failure(said: list[str]) -> str:
    """The failed step, its last lines, and BuildKit's final message.

    BuildKit prints each line as `#STEP SECONDS TEXT`, and the final message last.
    """
    verdict = next((line for line in reversed(said) if line.strip() and not set(line) <= {"-"}), "it printed nothing")
    failed = next((found for line in reversed(said) if (found := re.match(r"#(\d+) ERROR: ", line))), None)
    if failed is None:
        return f"the build failed before the first step\n  {verdict}"
    number = failed[1]
    title = next((line for line in said if re.match(rf"#{number} \[", line)), failed[0])
    step = re.sub(r"^#\d+ (\[[^]]*\] )?", "", title)
    printed = [found[1] for line in said if (found := re.match(rf"#{number} \d+\.\d+ (.*)", line))]
    return "\n".join([f"the build failed at {step}", *(f"  {line}" for line in printed[-_TAIL_LINES:]), f"  {verdict}"])
