"""Releases of other people's programs: the release in an image, and the options of that release.

launcher.toml's [releases] lists the known releases. The image's lock lists the installed packages. If the program is not among them
(it is a checkout in the image, or a mount), `[env] PROGRAM_RELEASE` names the release. If that is missing too, an option passes if
any known release has it. The option lists come from the programs' own configuration classes (tests/foreign).
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

from kit.errors import Fault, nearest
from kit.schema.job import Job
from kit.schema.launcher import Launcher
from kit.schema.role_programs import Releases

NAMED = "PROGRAM_RELEASE"
# An unknown option counts as a misspelling of a known one from this similarity on (difflib's ratio, 0 to 1).
_MISSPELT_CUTOFF = 0.88


@dataclass(frozen=True, kw_only=True)
class OptionLists:
    """A file of kit/frameworks/ that lists options.

    value, switch, module: option -> releases. kind: option -> its annotation. The file explains the other fields.
    """

    choose: tuple[str, ...]
    groups: str
    open: frozenset[str]
    value: Mapping[str, str]
    switch: Mapping[str, str]
    module: Mapping[str, str]
    kind: Mapping[str, str] = field(default_factory=dict)

    def names(self, release: str | None) -> list[str]:
        """The options of a release; of all releases if it is None."""
        return [
            name
            for name, has in (*self.value.items(), *self.switch.items())
            if release is None or release in has.split()
        ]

    def chosen_by(self, known: Sequence[str]) -> str:
        """The option that chooses a module. known: the options of the release."""
        return next(option for option in self.choose if option in known)


@cache
def options_of(file: str) -> OptionLists:
    """The option lists in a file."""
    found = tomllib.loads(Path(__file__).with_name(file).read_text(encoding="utf-8"))
    return OptionLists(**{**found, "choose": tuple(found["choose"]), "open": frozenset(found["open"])})


def installed(job: Job, releases: Releases, packages: Mapping[str, str]) -> str | None:
    """The release of the program in the image, written as in `known` if it is known there; None if nothing shows it.

    packages: name -> version of the packages in the image.
    """
    found = job.env.get(NAMED) or _newer(releases, packages) or packages.get(releases.package)
    return next((one for one in releases.known if found == one or (found or "").startswith(f"{one}.")), found)


def _newer(releases: Releases, packages: Mapping[str, str]) -> str | None:
    """The release of a checkout that still has the previous release's version, found by another package of the image."""
    if releases.package not in packages:
        return None
    for release, sign in releases.newer_with.items():
        name, _, least = sign.partition(" ")
        if name in packages and _numbers(packages[name]) >= _numbers(least):
            return release
    return None


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: (0, 3, 1) for 0.3.1.dev59."""
    return tuple(int(part) for part in takewhile(str.isdecimal, version.split(".")))


def chosen(job: Job) -> str | None:
    """The release that `with_release` stored in the job."""
    return job.env.get(NAMED)


def with_release(job: Job, launcher: Launcher, packages: Mapping[str, str]) -> Job:
    """The job as a framework reads it: with the release that it will find."""
    releases = launcher.releases_of(job)
    found = installed(job, releases, packages) if releases else None
    return job if found is None else job.model_copy(update={"env": {**job.env, NAMED: found}})


def faults(job: Job, launcher: Launcher, packages: Mapping[str, str]) -> Iterator[Fault]:
    """The faults of the release that the launcher will find: it is unknown, or lacks options that the job gives."""
    releases = launcher.releases_of(job)
    if releases is None:
        return
    release = installed(job, releases, packages)
    if release is not None and release not in releases.known:
        near = nearest_release(release, releases.known)
        named = NAMED in job.env
        key, what = (f"env.{NAMED}", "release") if named else ("image", releases.package)
        problem = f"launcher {job.launcher!r} does not know {what} {release}"
        hint = (
            f'{NAMED} = "{near}"' if named else f'[env]\n       {NAMED} = "{near}"     # where its options are the same'
        )
        yield Fault(key=key, problem=problem, allowed=", ".join(releases.known), hint=hint)
    elif releases.options and job.is_launchers:
        yield from misspelt(job, releases, None, release=release)


def nearest_release(found: str, known: Sequence[str]) -> str:
    """The known release that shares most leading parts of the number; of several, the newest."""

    def shared(one: str) -> int:
        pairs = zip(one.split("."), found.split("."), strict=False)
        return next((place for place, (a, b) in enumerate(pairs) if a != b), 9)

    return max(known, key=lambda one: (shared(one), known.index(one)))


def said(config: Mapping[str, Any], words: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Option, as the lists write it -> its place (a key of the file or an index of `args`) and its spelling there."""
    options = {}
    for key in _keys(config):
        options[key] = (key, key)
    for place, word in enumerate(words):
        name = word.partition("=")[0]
        if name.startswith("--") and len(name) > 2:
            options[name[2:].replace("-", "_")] = (f"args[{place}]", name)
    return options


def _keys(table: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _keys(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def misspelt(job: Job, releases: Releases, config: Mapping[str, Any] | None, *, release: str | None) -> Iterator[Fault]:
    """Options in `args` that the program does not have.

    config: the program's file as a table; None if the kit cannot read it here.
    """
    if releases.options is None:
        return
    lists = options_of(releases.options)
    given, known = said(config or {}, job.args), lists.names(release)
    names = {*known, *(_negated(name) for name in known if name in lists.switch), *releases.words}
    # The file, or another module, may add options of its own. Then only a likely misspelling is refused.
    own = config is None or release in lists.open or releases.module in job.env
    own = own or any(option in given for option in lists.choose)
    # A named module may have options that another release has elsewhere.
    elsewhere = () if releases.module in job.env else lists.names(None)
    for option, (where, written) in given.items():
        if option not in names:
            meant = option if option in elsewhere else nearest(option, elsewhere, cutoff=_MISSPELT_CUTOFF)
            yield from _unknown(
                releases, lists, option, where, written, names=names, release=release, own=own, meant=meant
            )
        elif not own and release is not None and release in lists.module.get(option, "").split():
            problem = f"{written} is an option of the module {lists.groups}, and args do not name this module"
            yield Fault(key=where, problem=problem, hint=f"--{lists.chosen_by(known)}={lists.groups} in args")


def _unknown(
    releases: Releases,
    lists: OptionLists,
    option: str,
    where: str,
    written: str,
    *,
    names: Collection[str],
    release: str | None,
    own: bool,
    meant: str | None,
) -> Iterator[Fault]:
    """Refuse one unknown option.

    own: the user may add options, so refuse only one that resembles a known option. meant: the option of any release that it
    resembles.
    """
    has = lists.value.get(option) or lists.switch.get(option) or ""
    near = (_same_name_elsewhere(meant, names) if meant else None) or nearest(
        option, names, cutoff=_MISSPELT_CUTOFF if own else 0.6
    )
    if own and not (near or meant):
        return
    known = (
        f"{releases.package} {release} has no" if release else f"no release of {releases.package} that is known has an"
    )
    problem = f"{known} option {written}"
    problem += f"; {', '.join(has.split())} {'have' if ' ' in has else 'has'} it" if has else ""
    shown = f"--{near}" if written.startswith("--") else near
    hint = f"{shown} instead" if near else "remove it, or name the module that brings it"
    hint += f": {releases.module} in [env]" if not near and releases.module else ""
    yield Fault(key=where, problem=problem + (f"; did you mean {shown!r}?" if near else ""), hint=hint)


def _same_name_elsewhere(option: str, known: Collection[str]) -> str | None:
    """The option itself, or the only known option of the same name in another section."""
    if option in known:
        return option
    last = f".{option.rpartition('.')[2]}"
    found = [name for name in known if name.endswith(last)]
    return found[0] if len(found) == 1 else None


def _negated(name: str) -> str:
    section, dot, last = name.rpartition(".")
    return f"{section}{dot}no_{last}"
