"""Options of programs that are not the kit's, refused before submit by the lists of each release."""

from __future__ import annotations

from typing import Any

import pytest

from kit import config
from kit.frameworks import option_lists, rl, sft
from kit.schema.checkpoint_and_tracking import Checkpoint
from kit.schema.launcher import Launcher
from kit.schema.rl_and_sft import Rl, Sft
from kit.schema.role_programs import Programs
from tests.support import REPO

FILE = "prime-rl-options.toml"
_SETS = [
    (launcher, name, one)
    for launcher in ("rl", "sft")
    for name, one in config.load_model(REPO / "launchers" / launcher / "launcher.toml", Launcher).programs.items()
    if one.option_lists
]


def said(table: dict[str, Any], *, launcher: str = "rl") -> dict[str, str]:
    programs = next(one for kind, name, one in _SETS if (kind, name) == (launcher, table["programs"]))
    kind = {"rl": Rl, "sft": Sft}[launcher]
    found = rl.broken(kind.model_validate(table), programs, name=launcher, gpus=8, checkpoint=Checkpoint())
    return {fault.key: str(fault) for fault in found}


@pytest.mark.parametrize(
    ("role", "given", "key", "line"),
    [
        ("orchestrator", {"batchsize": 512}, "batchsize", "[rl.orchestrator]\n       batch_size = 512"),
        ("trainer", {"modl": {"impl": "custom"}}, "modl.impl", '[rl.trainer.model]\n       impl = "custom"'),
        ("trainer", {"model": {"ac": {"freqq": 2}}}, "model.ac.freqq", "[rl.trainer.model.ac]\n       freq = 2"),
        ("trainer", {"kckpt": {}}, "kckpt", "[rl.trainer]\n       ckpt = {  }"),
        # A table of a list has no index.
        (
            "orchestrator",
            {"train": {"source": [{"name": "a"}, {"namee": "b"}]}},
            "train.source.namee",
            '[rl.orchestrator.train.source]\n       name = "b"',
        ),
        # Of another release.
        ("orchestrator", {"sampling": {"max_tokens": 9}}, "sampling.max_tokens", "0.4 has it"),
        ("inference", {"zzz": 1}, "zzz", "remove the line"),
    ],
)
def test_an_unknown_option_is_refused_at_any_depth(role: str, given: dict[str, Any], key: str, line: str) -> None:
    found = said({"programs": "prime-rl", role: given})
    assert [*found] == [f"rl.{role}.{key}"]
    assert line in found[f"rl.{role}.{key}"]


@pytest.mark.parametrize(
    ("role", "given"),
    [
        ("orchestrator", {"train": {"source": [{"name": "a", "env": {"anything": {"of": "it"}}}]}}),
        ("orchestrator", {"renderer": {"name": "default", "own": 1}}),
        ("inference", {"vllm": {"an_option_of_vllm": True}}),
        ("trainer", {"ckpt": {}}),
    ],
)
def test_what_is_the_users_own_passes(role: str, given: dict[str, Any]) -> None:
    assert said({"programs": "prime-rl", role: given}) == {}


def test_the_trainer_of_a_fine_tuning_has_a_list_of_its_own() -> None:
    assert said({"programs": "prime-rl", "trainer": {"data": {"batch_size": 32}}}, launcher="sft") == {}
    found = said({"programs": "prime-rl", "trainer": {"data": {"batchsize": 32}}}, launcher="sft")
    assert "[sft.trainer.data]\n       batch_size = 32" in found["sft.trainer.data.batchsize"]


def test_options_of_prefill_servers_are_named_where_they_are_written() -> None:
    found = said({"programs": "prime-rl", "prefill": {"options": {"routr": {}}}, "decode": {}})
    assert [*found] == ["rl.prefill.options.routr"]


@pytest.mark.parametrize(("launcher", "name", "programs"), _SETS, ids=[f"{a}-{b}" for a, b, _ in _SETS])
def test_every_option_that_the_launcher_writes_is_in_the_lists(launcher: str, name: str, programs: Programs) -> None:
    assert programs.option_lists == FILE
    assert programs.releases is not None
    lists = option_lists.lists_of(FILE)
    written = {target for targets in (*programs.keys.values(), *programs.follows.values()) for target in targets}
    written |= {target for implied in programs.implied.values() for target in implied}
    for target in sorted(written):
        role, _, path = target.partition(".")
        program = programs.roles[role]
        listed = lists[program.options_of or program.based_on or role]
        table: dict[str, Any] = {}
        inner = table
        *above, last = path.split(".")
        for part in above:
            inner = inner.setdefault(part, {})
        inner[last] = 1
        assert not [*option_lists.faults(launcher, role, table, listed, programs.releases.known)], (name, target)


def test_the_file_has_every_release_that_a_launcher_knows() -> None:
    listed = {
        one for options in option_lists.lists_of(FILE).values() for has in options.values() for one in has.split()
    }
    assert listed == {one for _, _, programs in _SETS if programs.releases for one in programs.releases.known}
    assert isinstance(sft.framework, rl.RoleTable)
