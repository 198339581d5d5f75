"""Words of the command line that change the program's arguments by name: `kit submit -- --lr 0.05 --epochs 3`.

An option is a word that begins with a dash and is not a negative number. Its value is all words up to the next option, or the text
after its `=`. The spelling is the user's own: `--batch_size` and `--batch-size` are two options, and so are `--x` and `--no-x`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kit.errors import ConfigError, Fault, nearest
from kit.validation import COMMAND_LINE, toml

# Separates the keys of --set from the program's words, on the command line and in a list of overrides. In the program's own words
# it ends the options, as getopt(3) and argparse have it.
SEPARATOR = "--"
# The place of the words in faults.
PLACE = "the words after --"
_NUMBER = re.compile(r"^-?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$")
_OPTION_KEY = re.compile(r"args\.(-[^=\s]*)")


@dataclass(frozen=True, kw_only=True)
class ProgramWords:
    """What a command line changes in `args`. dropped: options without their values. added: the words, in their order.

    typed: all of it as the user wrote it, for the record.
    """

    dropped: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    typed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.dropped or self.added)

    def __str__(self) -> str:
        return shlex.join(self.typed)

    @property
    def options(self) -> frozenset[str]:
        """The names of the options that they set or drop."""
        return frozenset(self.dropped) | {group.option for group in _groups(self.added)[0] if group.option}


@dataclass(frozen=True)
class _Group:
    """An option with its value, or one positional word (option is empty)."""

    option: str
    words: tuple[str, ...]

    @property
    def values(self) -> int:
        """The number of words that follow the option."""
        return len(self.words) - 1


def is_value(word: str) -> bool:
    """Whether a word cannot be an option: it does not begin with a dash, or is a negative number or a dash alone."""
    return not word.startswith("-") or word == "-" or bool(_NUMBER.match(word))


def split(overrides: Sequence[str]) -> tuple[tuple[str, ...], ProgramWords]:
    """The keys of `--set`, and the words for the program: those after `--`, and `args.--lr=0.05`; `args.--lr=false` drops it."""
    at = overrides.index(SEPARATOR) if SEPARATOR in overrides else len(overrides)
    after = tuple(overrides[at + 1 :])
    keys: list[str] = []
    dropped: list[str] = []
    set_here: list[str] = []
    typed: list[str] = []
    for text in overrides[:at]:
        key, equals, value = text.partition("=")
        match = _OPTION_KEY.fullmatch(key.strip())
        if not match or not equals:
            keys.append(text)
            continue
        typed += ["--set", text]
        if value == "false":
            dropped.append(match[1])
        else:
            set_here += [match[1], *_texts(value)]
    typed += [SEPARATOR, *after] if after else []
    return tuple(keys), ProgramWords(dropped=tuple(dropped), added=(*set_here, *after), typed=tuple(typed))


def with_keys(overrides: Sequence[str], more: Iterable[str]) -> list[str]:
    """The overrides with further keys: they come before the program's words."""
    at = list(overrides).index(SEPARATOR) if SEPARATOR in overrides else len(overrides)
    return [*overrides[:at], *more, *overrides[at:]]


def _texts(value: str) -> list[str]:
    """The words of a value in TOML: none for true, one for each of a list. Other text is one word."""
    import tomllib

    try:
        read = tomllib.loads(f"value = {value}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return [value]
    if read is True:
        return []
    if isinstance(read, list):
        return [one if isinstance(one, str) else str(one) for one in read]
    return [read] if isinstance(read, str) else [value]


def values_of(words: ProgramWords, option: str) -> list[str]:
    """The value that the words give to an option: none for an option alone."""
    found: list[str] = []
    for group in _groups(words.added)[0]:
        if group.option == option:
            _, equals, joined = group.words[0].partition("=")
            found += [joined] if equals else group.words[1:]
    return found


def merged(args: Sequence[str], words: ProgramWords) -> tuple[str, ...]:
    """`args` with the words. ConfigError where it is not clear which words of `args` are an option's value.

    An option that `args` has is replaced at its place, with all its occurrences and its whole value. New options and positional
    words are appended, before a `--` of `args`.
    """
    old, old_tail = _groups(args)
    new, new_tail = _groups(words.added)
    had = dict.fromkeys(group.option for group in old if group.option)
    missing = [option for option in words.dropped if option not in had]
    old = [group for group in old if group.option not in words.dropped]
    named = {group.option for group in new if group.option}
    faults = [fault for option in sorted(named) for fault in _unclear(option, old, new, words)]
    if faults := [*(_not_there(option, [*had]) for option in missing), *faults]:
        raise ConfigError.of(*faults)
    arguments: list[str] = []
    placed: set[str] = set()
    for group in old:
        if group.option not in named:
            arguments += group.words
        elif group.option not in placed:
            placed.add(group.option)
            arguments += [word for one in new if one.option == group.option for word in one.words]
    arguments += [word for one in new if one.option not in placed for word in one.words]
    return (*arguments, *old_tail, *(new_tail[1:] if old_tail else new_tail))


def _unclear(option: str, old: Sequence[_Group], new: Sequence[_Group], words: ProgramWords) -> Iterator[Fault]:
    """Refuse to guess: words after an option are its value, or words of their own."""
    given = max(one.values for one in new if one.option == option)
    joined = any("=" in one.words[0] for one in new if one.option == option)
    for group in old:
        if group.option != option or not group.values:
            continue
        if (given == 0 and not joined) or (group.values > 1 and given <= 1):
            shown = shlex.join(group.words)
            rest = shlex.join([SEPARATOR, *_with_rest(words, option, group.words[2:])])
            yield Fault(
                file=PLACE,
                key=option,
                problem=f"args has {shown!r}: which of these words are the value of {option} is not clear",
                hint=f"--set args.{option}=false {rest}",
            )


def _with_rest(words: ProgramWords, option: str, rest: Sequence[str]) -> list[str]:
    """The words, with further ones after an option and its value: nothing of `args` is lost when the option is left out first."""
    groups, tail = _groups(words.added)
    made = [word for one in groups for word in (*one.words, *(rest if one.option == option else ()))]
    return [*made, *tail]


def _not_there(option: str, had: Sequence[str]) -> Fault:
    near = nearest(option, had)
    hint = f"{COMMAND_LINE} args.{near}=false" if near else f"leave {COMMAND_LINE} args.{option}=false out"
    problem = "args has no such option that could be left out"
    return Fault(file=COMMAND_LINE, key=f"args.{option}", problem=problem, allowed=", ".join(had), hint=hint)


def _groups(words: Iterable[str]) -> tuple[list[_Group], tuple[str, ...]]:
    """Options with their values, positional words, and what follows a `--`, with it."""
    groups: list[_Group] = []
    given = list(words)
    end = given.index(SEPARATOR) if SEPARATOR in given else len(given)
    for word in given[:end]:
        last = groups[-1] if groups else None
        if not is_value(word):
            groups.append(_Group(word.partition("=")[0], (word,)))
        elif last and last.option and "=" not in last.words[0]:
            groups[-1] = _Group(last.option, (*last.words, word))
        else:
            groups.append(_Group("", (word,)))
    return groups, tuple(given[end:])


def changes(before: Sequence[str], after: Sequence[str]) -> list[str]:
    """What differs between two lists of arguments, an option at a time, for people: `--lr 0.1 -> --lr 0.05`."""
    old, new = _by_option(before), _by_option(after)
    lines = []
    for option in dict.fromkeys([*old, *new]):
        was, now = old.get(option, []), new.get(option, [])
        if was == now:
            continue
        if not option and now[: len(was)] == was:
            was, now = [], now[len(was) :]
        if was and now:
            lines.append(f"{shlex.join(was)} -> {shlex.join(now)}")
        else:
            lines.append(f"{shlex.join(was)} -> left out" if was else f"{shlex.join(now)} added")
    return lines


def _by_option(words: Sequence[str]) -> Mapping[str, list[str]]:
    options: dict[str, list[str]] = {}
    groups, tail = _groups(words)
    for group in groups:
        options.setdefault(group.option, []).extend(group.words)
    if tail:
        options.setdefault("", []).extend(tail)
    return options


def twins(args: Sequence[str], words: ProgramWords, command: Sequence[str] = ()) -> Iterator[str]:
    """Sentences about options that are there twice now: in another spelling, as its opposite, or in `command`."""
    groups = _groups(args)[0]
    there = dict.fromkeys(group.option for group in groups if group.option)
    inside = {word.partition("=")[0] for word in command if not is_value(word)}
    for option in sorted(words.options - {*words.dropped}):
        for other in there:
            if other not in words.options and _plain(other) == _plain(option):
                yield f"the program gets {other} as well as {option}: --set args.{other}=false leaves it out"
        if option in inside:
            yield f"command has {option} too: the program gets it twice, and the one of args is the later one"


def _plain(option: str) -> str:
    """`--no-batch_size` -> `batch-size`."""
    return option.lstrip("-").replace("_", "-").removeprefix("no-")


def roles_fault(words: ProgramWords, roles: Mapping[str, Sequence[str]], table: str) -> Fault:
    """The fault of words for a job with several programs. roles: the args of each. table: `roles` or `stages`."""
    named = [name for name, args in roles.items() if words.options & {one.option for one in _groups(args)[0]}]
    name = next(iter([*named, *roles]))
    args = list(merged(roles[name], words)) if not words.dropped else list(roles[name])
    return Fault(
        file=PLACE,
        key="args",
        problem=f"the job has several programs, in [{table}], and these words do not say which one is meant",
        hint=f"--set {shlex.quote(f'{table}.{name}.args={toml(args)}')}",
    )
