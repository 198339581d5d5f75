"""Checks that the versions in requirements/dev.lock can be installed with the oldest Python that the kit supports."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, distribution

import pytest
from packaging.specifiers import SpecifierSet

from tests.support import REPO

LOCK = REPO / "requirements/dev.lock"
# What `apt-get install python3` gives on Debian 12, the oldest distribution that `make setup` is for.
OLDEST_PYTHON = "3.11.2"


def _needs() -> dict[str, str]:
    """`name==version` -> the Python that it needs, of the packages that are installed in the locked version."""
    needs = {}
    for name, version in re.findall(r"^([\w.-]+)==(\S+)", LOCK.read_text(encoding="utf-8"), re.MULTILINE):
        try:
            installed = distribution(name)
        except PackageNotFoundError:
            continue
        if installed.version == version:
            said = installed.metadata
            needs[f"{name}=={version}"] = said["Requires-Python"] if "Requires-Python" in said else ""  # noqa: SIM401 - a PackageMetadata has no get
    return needs


def test_debian_12_can_install_the_lock() -> None:
    needs = _needs()
    if len(needs) < 50:
        pytest.skip(f"only {len(needs)} packages have their locked version here; `make setup` installs them")
    too_new = {package: python for package, python in needs.items() if OLDEST_PYTHON not in SpecifierSet(python)}
    assert not too_new, f"bound these in requirements/dev.in, then `make lock`: {too_new}"
