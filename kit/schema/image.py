"""Image: the container image of a job. `containers/<name>/image.toml`, and the lock that the kit writes next to it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from kit.schema.schema_base import EnvName, Model, Name, Text
from kit.schema.wrong_value_messages import Form, Invalid

_HEX = "0123456789abcdef" * 4
Sha256 = Annotated[
    str, Form(pattern=r"[0-9a-f]{64}", what="a sha256", how="64 hexadecimal digits in lower case", example=_HEX)
]
Digest = Annotated[
    str,
    Form(
        pattern=r"sha256:[0-9a-f]{64}",
        what="a digest",
        how="sha256: and 64 hexadecimal digits in lower case",
        example=f"sha256:{_HEX}",
        nearest=lambda text: f"sha256:{text}",
    ),
]

# Names in apt and dpkg (Debian Policy 5.6.7, "Package"). mmdebstrap cannot take such a name for an option.
PackageName = Annotated[
    str,
    Form(
        pattern=r"[a-z0-9][a-z0-9+.-]+",
        what="the name of a package",
        how="lower-case letters, digits and + . -, two characters at least",
        example="python3",
        nearest=str.lower,
    ),
]
SuiteName = Annotated[
    str,
    Form(
        pattern=r"[a-z][a-z0-9.-]*",
        what="the name of a release",
        how="its code name in lower case, as the mirror spells it",
        example="bookworm",
        nearest=str.lower,
    ),
]
PythonVersion = Annotated[
    str,
    Form(
        pattern=r"3\.[0-9]+",
        what="a version of Python",
        how="3, a point and the minor version",
        example="3.11",
        nearest=lambda text: ".".join(text.split(".")[:2]),
    ),
]
PlatformTag = Annotated[
    str,
    Form(
        pattern=r"[a-z0-9_]+",
        what="a platform tag of wheels",
        how="lower-case letters, digits and _, as in a wheel's file name",
        example="manylinux_2_28_x86_64",
        nearest=lambda text: text.lower().replace("-", "_"),
    ),
]
Platform = Annotated[
    str,
    Form(
        pattern=r"linux/[a-z0-9]+(/v[0-9])?",
        what="the platform of an image",
        how="write linux/ and Docker's name of the architecture",
        example="linux/amd64",
        nearest=lambda text: f"linux/{text.lower()}",
    ),
]
BufferMemory = Annotated[
    str,
    Form(
        pattern=r"[0-9]+[MG]",
        what="an amount of memory",
        how="a whole number with M or G after it",
        example="64M",
        nearest=lambda text: text.upper().replace(" ", "").removesuffix("B"),
    ),
]


class Bootstrap(Model):
    """A base made from the distribution's own packages, for machines that reach no container registry."""

    suite: SuiteName = Field(description="Code name of the release, as the mirror spells it.")
    packages: tuple[PackageName, ...] = Field(default=(), description="Packages in addition to the minimal system.")
    components: tuple[PackageName, ...] = Field(
        default=("main",), description="Components of the distribution's archive."
    )
    mirror: Text | None = Field(
        default=None,
        description="URL of a mirror. Default: the host's apt sources if they have the suite; otherwise the default of "
        "mmdebstrap or debootstrap.",
    )


class Base(Model):
    """The base that the Dockerfile's `FROM ${BASE}` starts from: exactly one of reference, bootstrap and image."""

    reference: Text | None = Field(
        default=None, description="An image that the engine has or can pull.", examples=["debian:bookworm"]
    )
    bootstrap: Bootstrap | None = Field(default=None, description="A base made from packages.")
    image: Name | None = Field(
        default=None,
        description="An image of containers/ that has a lock. The base is exactly the locked bytes.",
        examples=["train-cpu"],
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        named = [one for one in ("reference", "bootstrap", "image") if getattr(self, one) is not None]
        if len(named) != 1:
            what = f"names {' and '.join(named)}" if named else "names neither a reference nor a bootstrap nor an image"
            raise Invalid(f"the base {what}: it needs one of them", write="debian:bookworm", at=("base", "reference"))
        return self


class PythonPackages(Model):
    """Python packages. The host fetches their wheels, checks the hashes in the lock, and passes the wheels to the build as
    `wheels/`.
    """

    requirements: Text = Field(
        default="requirements.lock", description="pip's lock file with hashes, in the image's folder."
    )
    version: PythonVersion = Field(default="3.11", description="Version of Python in the image.")
    platforms: tuple[PlatformTag, ...] = Field(
        default=("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64"),
        description="Platform tags of the binary wheels that run in the image. pip takes no others, except that "
        "manylinux2014 also admits manylinux2010 and manylinux1.",
    )
    sdists: tuple[PackageName, ...] = Field(
        default=(), description="Packages that exist only as source. The Dockerfile builds them from wheels/*.tar.gz."
    )
    extra_indexes: tuple[Text, ...] = Field(
        default=(),
        alias="extra-indexes",
        description="Indexes that pip also asks if it does not find a package with the host's own configuration.",
    )


# Valid ids for `docker build --secret id=`. A comma would end the id.
SecretId = Annotated[
    str,
    Form(
        pattern=r"[A-Za-z0-9_.-]+",
        what="the id of a secret",
        how="it has letters, digits and _ . - only; RUN --mount=type=secret,id=ID names it",
        example="pip-token",
        nearest=lambda text: re.sub(r"[^A-Za-z0-9_.-]+", "-", text),
    ),
]


class BuildSecret(Model):
    """The source of a build secret: exactly one of env and file."""

    env: EnvName | None = Field(
        default=None, description="An environment variable of the user who builds.", examples=["PIP_TOKEN"]
    )
    file: Text | None = Field(default=None, description="A file on the machine that builds.", examples=["~/.netrc"])
    optional: bool = Field(
        default=False, description="If the variable or the file does not exist, the steps run without the secret."
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if (self.env is None) == (self.file is None):
            problem = "a secret comes from one place: a variable (env) or a file"
            raise Invalid(problem, write="PIP_TOKEN", at=("env",))
        return self


class Build(Model):
    """Options for `docker build`."""

    context: Text | None = Field(
        default=None,
        description="Folder that COPY copies from, relative to the image's folder. Its .dockerignore counts. Default: the image's "
        "folder.",
        examples=["../.."],
    )
    dockerfile: Text = Field(default="Dockerfile", description="The Dockerfile, relative to the context.")
    args: dict[EnvName, Text] = Field(default={}, description="Build arguments (ARG).")
    target: Text | None = Field(default=None, description="The stage to build; default: the last one.")
    platform: Platform | None = Field(
        default=None,
        description="Platform of the image; default: the engine's own. Another one needs an emulator in the engine's kernel.",
    )
    network: Literal["none", "default", "host"] = Field(
        default="none",
        description="Network of the RUN lines. With a network, the next build may give other bytes, and the lock records "
        "this.",
    )
    secrets: dict[SecretId, BuildSecret] = Field(
        default={},
        description="Secrets by their ID. A line RUN --mount=type=secret,id=ID finds its secret in /run/secrets/ID while "
        "it runs. This needs BuildKit. No layer contains the secret. A secret that the line does not require may be missing here.",
    )


class Squash(Model):
    """Options of the image's .sqsh. The defaults make the file fastest to write and to start."""

    compressor: Literal["zstd", "gzip", "lz4", "lzo", "xz", "none"] = Field(
        default="zstd", description="Compressor of mksquashfs (-comp)."
    )
    level: Annotated[int, Field(ge=1, le=22)] | None = Field(
        default=None, description="Compression level; default: 1 for zstd, mksquashfs's own for gzip."
    )
    block: Literal["4K", "8K", "16K", "32K", "64K", "128K", "256K", "512K", "1M"] = Field(
        default="128K", description="Block size. Larger blocks make the file smaller and the start slower."
    )
    memory: BufferMemory = Field(default="64M", description="Maximum memory for mksquashfs's buffers.")

    @model_validator(mode="after")
    def _level_fits(self) -> Self:
        if self.level is not None and self.compressor not in {"zstd", "gzip"}:
            problem = f"{self.compressor} has no level: only zstd (1-22) and gzip (1-9) have one"
            raise Invalid(problem, key=("level",), hint="remove the line")
        if self.compressor == "gzip" and (self.level or 1) > 9:
            raise Invalid(f"{self.level} is too large: gzip's levels are 1 to 9", key=("level",), write=9)
        return self


class ImageSpec(Model):
    """`containers/<name>/image.toml`: the contents of the image. Missing tables get their defaults."""

    description: Text = Field(
        default="", description="One line that describes the image, in the output of `kit images`."
    )
    base: Base | None = Field(
        default=None,
        description="The base. It is left out if [build] context is set and the Dockerfile names its base itself.",
    )
    python: PythonPackages | None = None
    build: Build = Build()
    squash: Squash = Squash()

    @model_validator(mode="after")
    def _has_a_base(self) -> Self:
        if self.base is None and self.build.context is None:
            hint = 'write the table [base] with reference = "debian:bookworm", or [build] context'
            raise Invalid("the image has no base", key=("base",), hint=hint)
        if self.python is not None and self.build.context is not None:
            problem = "a repository's own Dockerfile installs its packages itself: wheels/ is not in its context"
            raise Invalid(problem, key=("python",), hint="remove [python], or [build] context")
        return self


class ImageConfig(Model):
    """Settings by the image's author: environment, working directory, command. They apply in every runtime."""

    env: dict[str, str] = Field(default={})
    workdir: str = "/"
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()
    labels: dict[str, str] = Field(default={})


class LockedBase(Model):
    """The base of the image.

    digest: of the bootstrapped tar, the registry's manifest, the other image's .sqsh, or the imported bytes.
    """

    kind: Literal["bootstrap", "reference", "image", "import"]
    reference: str
    digest: Digest


class LockedTools(Model):
    """Versions of tools that may affect the bytes, and the engine's own id of the image, which differs in each build."""

    kit: str
    mksquashfs: str
    engine: str = ""
    image_id: str = ""


def canonical(name: str) -> str:
    """A Python package's name in PyPI's normalized form (PEP 503): `Megatron_Core` is `megatron-core`."""
    return re.sub(r"[-_.]+", "-", name).lower()


class Packages(Model):
    """Name -> version of the packages installed in the image, sorted by name."""

    apt: dict[str, str] = Field(default={})
    pip: dict[str, str] = Field(default={})

    def lacking(self, required: Iterable[str]) -> list[str]:
        """The missing Python packages; empty if the image lists no packages at all."""
        held = {canonical(name) for name in self.pip}
        return [name for name in required if canonical(name) not in held] if held else []


class ImageLock(Model):
    """`containers/<name>/image.lock`: the bytes that a run of this image gets, and their inputs.

    sha256, size: of the .sqsh; size in bytes. source: `build`, or the imported URI. inputs: digest of everything in the folder that
    determines the bytes. context: digest of the files that a repository's own Dockerfile can copy. reproducible: False if the build
    had a network. notes: for the reader. platform: `linux/amd64`; None if nothing says it (an imported folder), or in older
    locks.
    """

    # pydantic's models have a method `schema`, so the field has another name.
    schema_version: Literal[1] = Field(default=1, alias="schema")
    name: Name
    sha256: Sha256
    size: Annotated[int, Field(gt=0)]
    platform: Platform | None = None
    source: str
    inputs: Sha256
    context: Sha256 | None = None
    reproducible: bool = True
    notes: tuple[str, ...] = ()
    base: LockedBase
    squash: Squash
    config: ImageConfig
    tools: LockedTools
    packages: Packages

    @property
    def digest(self) -> str:
        """`sha256:<hex>`, the image's digest in runs and reports."""
        return f"sha256:{self.sha256}"
