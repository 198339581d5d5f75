"""A software bill of materials of an image, from its lock alone: CycloneDX 1.6 or SPDX 2.3, as JSON.

The lock names each Debian and Python package with its version, and the image with its sha256. cyclonedx-python-lib and spdx-tools
write and check the two formats. They are the extra `sbom`, since a login node needs neither to start a run.
"""

from __future__ import annotations

import io
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from kit.errors import ToolError
from kit.schema.image import ImageLock

Form = Literal["spdx", "cyclonedx"]

# Each document's identity comes from the image's digest: one image gives the same document on every machine.
_IDENTITY = uuid.uuid5(uuid.NAMESPACE_URL, "urn:slurm-kit:sbom")


@dataclass(frozen=True, kw_only=True)
class _Package:
    """A package of the image. kind, namespace: as in package URLs."""

    kind: Literal["deb", "pypi"]
    namespace: str | None
    name: str
    version: str


def make_sbom(lock: ImageLock, form: Form, *, now: datetime) -> str:
    """The document. now: its creation time, in UTC. ToolError when the library that writes it is not installed."""
    try:
        return _cyclonedx(lock, now) if form == "cyclonedx" else _spdx(lock, now)
    except ImportError as error:
        raise ToolError(
            f"{error.name or form}, which writes the bill of materials, is not installed",
            hint="pip install 'slurm-kit[sbom]'",
        ) from None


def _packages(lock: ImageLock) -> Iterator[_Package]:
    apt = lock.packages.apt
    vendor = "ubuntu" if any("ubuntu" in version for version in apt.values()) else "debian"
    for name, version in apt.items():
        yield _Package(kind="deb", namespace=vendor, name=name, version=version)
    for name, version in lock.packages.pip.items():
        yield _Package(kind="pypi", namespace=None, name=name, version=version)


def _identity(lock: ImageLock) -> uuid.UUID:
    return uuid.uuid5(_IDENTITY, lock.digest)


def _cyclonedx(lock: ImageLock, now: datetime) -> str:
    from cyclonedx.model import HashAlgorithm, HashType
    from cyclonedx.model.bom import Bom, BomMetaData
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.output.json import JsonV1Dot6
    from packageurl import PackageURL

    image = Component(
        name=lock.name,
        type=ComponentType.CONTAINER,
        version=lock.digest,
        bom_ref=lock.digest,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=lock.sha256)],
    )
    bom = Bom(serial_number=_identity(lock), metadata=BomMetaData(component=image, timestamp=now))
    for one in _packages(lock):
        url = PackageURL(one.kind, one.namespace, one.name, one.version)
        bom.components.add(Component(name=one.name, version=one.version, purl=url, bom_ref=url.to_string()))
    bom.register_dependency(image, bom.components)
    text: str = JsonV1Dot6(bom).output_as_string(indent=2)
    return f"{text}\n"


def _spdx(lock: ImageLock, now: datetime) -> str:
    from packageurl import PackageURL
    from spdx_tools.spdx import model
    from spdx_tools.spdx.writer.json.json_writer import write_document_to_stream

    def package(number: int, component: _Package) -> model.Package:
        url = PackageURL(component.kind, component.namespace, component.name, component.version).to_string()
        where = model.ExternalPackageRef(model.ExternalPackageRefCategory.PACKAGE_MANAGER, "purl", url)
        return model.Package(
            spdx_id=f"SPDXRef-{component.kind}-{number}",
            name=component.name,
            version=component.version,
            download_location=model.SpdxNoAssertion(),
            files_analyzed=False,
            external_references=[where],
        )

    image = model.Package(
        spdx_id="SPDXRef-image",
        name=lock.name,
        version=lock.digest,
        download_location=model.SpdxNoAssertion(),
        files_analyzed=False,
        checksums=[model.Checksum(model.ChecksumAlgorithm.SHA256, lock.sha256)],
        primary_package_purpose=model.PackagePurpose.CONTAINER,
    )
    packages = [package(number, component) for number, component in enumerate(_packages(lock))]
    info = model.CreationInfo(
        spdx_version="SPDX-2.3",
        spdx_id="SPDXRef-DOCUMENT",
        name=lock.name,
        document_namespace=f"https://spdx.org/spdxdocs/{lock.name}-{_identity(lock)}",
        creators=[model.Actor(model.ActorType.TOOL, "slurm-kit")],
        created=now.replace(microsecond=0, tzinfo=None),
    )
    described = model.Relationship("SPDXRef-DOCUMENT", model.RelationshipType.DESCRIBES, image.spdx_id)
    held = [
        model.Relationship(image.spdx_id, model.RelationshipType.CONTAINS, component.spdx_id) for component in packages
    ]
    stream = io.StringIO()
    document = model.Document(info, packages=[image, *packages], relationships=[described, *held])
    write_document_to_stream(document, stream, validate=False)
    return stream.getvalue() + "\n"
