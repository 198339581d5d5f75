"""Lists the packages installed in a .sqsh by reading the file itself. This needs no engine and works for every source."""

from __future__ import annotations

import re
from pathlib import Path

from kit import shell
from kit.schema.image import Packages, canonical

_INSTALL = "apt-get install squashfs-tools"
_SAMPLE = 32
_DIST_INFO = re.compile(r"/(?:site|dist)-packages/([^/]+)-([^/-]+)\.(?:dist|egg)-info$")


def packages(image: Path) -> Packages:
    """Names and versions of Debian packages and Python distributions, sorted by name; empty if the image has none."""
    unsquashfs = shell.require("unsquashfs", hint=_INSTALL)
    listing = shell.lines([unsquashfs, "-d", "", "-l", str(image)])  # up to 400,000 files in the largest images
    python = dict(sorted((canonical(found[1]), found[2]) for line in listing if (found := _DIST_INFO.search(line))))
    status = shell.run([unsquashfs, "-cat", str(image), "var/lib/dpkg/status"], check=False)
    return Packages(apt=read_dpkg_status(status.stdout) if status.returncode == 0 else {}, pip=python)


def has_stale_bytecode(image: Path, work: Path) -> bool:
    """Whether Python would recompile the image's byte code because all file times are 0. It checks a sample of the files.

    work: a private folder for the sample.
    """
    unsquashfs = shell.require("unsquashfs", hint=_INSTALL)
    listing = shell.run([unsquashfs, "-d", "", "-l", str(image)]).stdout.splitlines()
    compiled = [line.lstrip("/") for line in listing if line.endswith(".pyc")]
    sample = compiled[:: max(len(compiled) // _SAMPLE, 1)]
    if not sample:
        return False
    target, names = work / "bytecode", work / "bytecode.list"
    names.write_text("".join(f"{name}\n" for name in sample), encoding="utf-8")
    shell.run([unsquashfs, "-quiet", "-no-progress", "-no-wildcards", "-d", str(target), "-ef", str(names), str(image)])
    # PEP 552: flags follow four bytes of magic; flags of 0 mean "compare with the source's time".
    return any(_flags(target / name) == 0 for name in sample)


def _flags(compiled: Path) -> int:
    with compiled.open("rb") as file:
        return int.from_bytes(file.read(8)[4:], "little")


def read_dpkg_status(status: str) -> dict[str, str]:
    """Name -> version of each installed package, from dpkg's status file: stanzas with Package, Status and Version."""
    found = {}
    for stanza in status.split("\n\n"):
        fields = dict(re.findall(r"^(Package|Status|Version): (.*)$", stanza, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed") and "Version" in fields:
            found[fields["Package"]] = fields["Version"]
    return dict(sorted(found.items()))
