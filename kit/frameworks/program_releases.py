"""Releases of other people's programs: which one an image holds, and which options it has.

launcher.toml's [releases] says which the launcher knows. The image's lock names what is installed; where it does not (a checkout in
the image, a mount), `[env] PROGRAM_RELEASE` says it, and without that an option passes that any known release has. The lists of
options are what the programs' own classes say of themselves (tests/foreign).
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kit.errors import Fault, nearest
from kit.spec.job import Job
from kit.spec.launcher import Launcher, Releases

NAMED = "PROGRAM_RELEASE"
# How alike an unknown name and a known one are when the first is taken for a misspelt second, of difflib's 0 to 1.
_ALIKE = 0.88


@dataclass(frozen=True, kw_only=True)
class OptionLists:
    """A file of kit/frameworks/ that lists options. value, switch, module: option -> releases; the rest as the file says."""

    choose: tuple[str, ...]
    groups: str
    open: frozenset[str]
    value: Mapping[str, str]
    switch: Mapping[str, str]
    module: Mapping[str, str]

    def names(self, release: str | None) -> list[str]:
        """Those of a release; of all where it is not known."""
        return [
            name
            for name, has in (*self.value.items(), *self.switch.items())
            if release is None or release in has.split()
        ]

    def chosen_by(self, known: Sequence[str]) -> str:
        """The option that chooses a module, in the release whose options are known."""
        return next(option for option in self.choose if option in known)


@cache
def options_of(file: str) -> OptionLists:
    """The lists of a file."""
    found = tomllib.loads(Path(__file__).with_name(file).read_text(encoding="utf-8"))
    return OptionLists(**{**found, "choose": tuple(found["choose"]), "open": frozenset(found["open"])})


def installed(job: Job, releases: Releases, packages: Mapping[str, str]) -> str | None:
    """The release that the job will find, as `known` has it where it does; None where nothing says it. packages: of the image."""
    found = job.env.get(NAMED) or packages.get(releases.package)
    return next((one for one in releases.known if found == one or (found or "").startswith(f"{one}.")), found)


def chosen(job: Job) -> str | None:
    """The release that `with_release` found."""
    return job.env.get(NAMED)


def with_release(job: Job, launcher: Launcher, packages: Mapping[str, str]) -> Job:
    """The job as a framework reads it: with the release that it will find."""
    found = installed(job, launcher.releases, packages) if launcher.releases else None
    return job if found is None else job.model_copy(update={"env": {**job.env, NAMED: found}})


def faults(job: Job, launcher: Launcher, packages: Mapping[str, str]) -> Iterator[Fault]:
    """A release that the launcher does not know, and options that the one it will find does not have."""
    releases = launcher.releases
    if releases is None:
        return
    found = installed(job, releases, packages)
    if found is not None and found not in releases.known:
        near = nearest_release(found, releases.known)
        named = NAMED in job.env
        key, what = (f"env.{NAMED}", "the release") if named else ("image", f"its {releases.package}")
        problem = f"{what}, {found}, is none that launcher {job.launcher!r} knows"
        hint = (
            f'{NAMED} = "{near}"' if named else f'[env]\n       {NAMED} = "{near}"     # where its options are the same'
        )
        yield Fault(key=key, problem=problem, allowed=", ".join(releases.known), hint=hint)
    elif releases.options and job.is_launchers:
        yield from misspelt(job, releases, None, release=found)


def nearest_release(found: str, known: Sequence[str]) -> str:
    """The known release that shares most of the number, the newest of these."""

    def shared(one: str) -> int:
        pairs = zip(one.split("."), found.split("."), strict=False)
        return next((place for place, (a, b) in enumerate(pairs) if a != b), 9)

    return max(known, key=lambda one: (shared(one), known.index(one)))


def said(config: Mapping[str, Any], words: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Option, as the lists write it -> where it is said, and as what: a key of the file, or the place of an argument."""
    found = {}
    for key in _keys(config):
        found[key] = (key, key)
    for place, word in enumerate(words):
        name = word.partition("=")[0]
        if name.startswith("--") and len(name) > 2:
            found[name[2:].replace("-", "_")] = (f"args[{place}]", name)
    return found


def _keys(table: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _keys(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def misspelt(job: Job, releases: Releases, config: Mapping[str, Any] | None, *, release: str | None) -> Iterator[Fault]:
    """Options in `args` that the program does not have. config: of its file, as a table; None where it cannot be read here."""
    if releases.options is None:
        return
    lists = options_of(releases.options)
    given, known = said(config or {}, job.args), lists.names(release)
    names = {*known, *(_off(name) for name in known if name in lists.switch), *releases.words}
    # What the file chooses, or another module, may bring options of its own: then only a likely slip is one.
    own = config is None or release in lists.open or releases.module in job.env
    own = own or any(option in given for option in lists.choose)
    for option, (where, written) in given.items():
        if option not in names:
            yield from _unknown(releases, lists, option, where, written, names=names, release=release, own=own)
        elif not own and release is not None and release in lists.module.get(option, "").split():
            problem = f"{written} is an option of {lists.groups}, and nothing names this module"
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
) -> Iterator[Fault]:
    """own: options of the user's own are possible, so that only one that is like a known one is refused."""
    meant = option if option in lists.names(None) else nearest(option, lists.names(None), cutoff=_ALIKE)
    has = lists.value.get(option) or lists.switch.get(option) or ""
    near = (_moved(meant, names) if meant else None) or nearest(option, names, cutoff=_ALIKE if own else 0.6)
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


def _moved(option: str, known: Collection[str]) -> str | None:
    """The option itself, or the same name in another section, where one alone has it."""
    if option in known:
        return option
    last = f".{option.rpartition('.')[2]}"
    found = [name for name in known if name.endswith(last)]
    return found[0] if len(found) == 1 else None


def _off(name: str) -> str:
    section, dot, last = name.rpartition(".")
    return f"{section}{dot}no_{last}"
