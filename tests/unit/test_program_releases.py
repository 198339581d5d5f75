"""Releases of other people's programs: the image's lock says which is there, and its options are those that pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tomli_w

from kit import config
from kit.errors import ConfigError
from kit.frameworks.program_releases import nearest_release
from kit.planning.plan import Plan, plan
from kit.schema.image import Packages
from tests.support import make_lock, make_site, write_job

SHAPE = {"num_layers": 12, "hidden_size": 768, "num_attention_heads": 12, "train_iters": 10}


def made(folder: Path, job: dict[str, Any], **packages: str) -> Plan:
    """A plan in an image that holds these."""
    given = {"name": "x", "image": "train-cpu", "resources": {"nodes": 2, "gpus_per_node": 2}, **job}
    resolved = config.load_job(write_job(folder, tomli_w.dumps(given)), cluster="local")
    lock = make_lock().model_copy(update={"packages": Packages(pip={"torch": "2.13.0", **packages})})
    return plan(resolved, lock, make_site())


def titan(*args: str, **env: str) -> dict[str, Any]:
    return {"launcher": "torchtitan", "args": list(args), "env": env}


@pytest.mark.parametrize(
    ("release", "args", "said"),
    [
        (
            "0.2.2",
            ["--training.seed=3"],
            r"args\[0\]: torchtitan 0.2.2 has no option --training.seed; 0.1.0, 0.2.0 have it",
        ),
        ("0.2.2", ["--training.seed=3"], r"did you mean '--debug.seed'"),
        ("0.2.0", ["--debug.seed=3"], r"0.2.1, 0.2.2, 0.3.0 have it; did you mean '--training.seed'"),
        ("0.2.2", ["--training.stps", "3"], r"did you mean '--training.steps'"),
        ("0.3.0", ["--training.stps", "3"], r"did you mean '--training.steps'"),
        ("0.2.5", [], r"image: launcher 'torchtitan' does not know torchtitan 0.2.5.*\n.*\n.*\"0.2.2\""),
    ],
)
def test_what_a_release_does_not_have_is_refused(tmp_path: Path, release: str, args: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        made(tmp_path, titan(*args), torchtitan=release)


def test_what_it_has_passes(tmp_path: Path) -> None:
    """--x.no-y is how a switch that is on is turned off; a file may choose a module that brings options of its own."""
    for args in (
        ["--debug.seed=3"],
        ["--checkpoint.no-enable"],
        ["--job.custom-config-module=mine", "--mine.depth", "2"],
    ):
        assert made(tmp_path, titan(*args), torchtitan="0.2.2")
    assert made(tmp_path, titan("--module", "llama3", "--config=llama3_8b"), torchtitan="0.3.0")
    assert made(tmp_path, titan("--training.seed=3")), "nothing says the release, and some have it"


def test_a_checkouts_release_is_named(tmp_path: Path) -> None:
    """An image's lock does not name what lies in /opt or on a mount."""
    with pytest.raises(ConfigError, match=r"torchtitan 0.2.2 has no option --training.seed"):
        made(tmp_path, titan("--training.seed=3", PROGRAM_RELEASE="0.2.2"), torchtitan="0.2.0")
    with pytest.raises(ConfigError, match=r"env.PROGRAM_RELEASE: launcher .torchtitan. does not know release 0.4"):
        made(tmp_path, titan(PROGRAM_RELEASE="0.4"))


def test_megatrons_options_are_those_of_the_release(tmp_path: Path) -> None:
    """The list of 0.16 was held against every release: new names were refused as misspelt, and names that are gone passed."""
    for table, without, having in (
        ({"step_batch_size_schedule": "0:8 100:16"}, "0.16.1", "0.19.1"),
        ({"hybrid_attention_ratio": 0.1}, "0.19.1", "0.16.1"),
    ):
        job = {"launcher": "megatron-lm", "megatron": SHAPE | table}
        with pytest.raises(ConfigError, match=f"Megatron-LM {without[:4]} has no such option; 0.*(has|have) it"):
            made(tmp_path, job, **{"megatron-core": without})
        assert made(tmp_path, job, **{"megatron-core": having})
        assert made(tmp_path, job)


@pytest.mark.parametrize(
    ("found", "near"), [("0.2.5", "0.2.2"), ("0.3.1", "0.3.0"), ("1.0", "0.3.0"), ("0.0.2", "0.3.0")]
)
def test_the_nearest_release(found: str, near: str) -> None:
    known = ["0.1.0", "0.2.0", "0.2.1", "0.2.2", "0.3.0"]
    assert nearest_release(found, known) == near


def test_a_named_module_brings_options_that_another_release_has(tmp_path: Path) -> None:
    """v0.2.2's flux has encoder.t5_encoder of its own; it was refused because 0.3.0 has it among its options."""
    args = ["--encoder.t5_encoder", "google/t5", "--validation.enable_classifier_free_guidance"]
    assert made(tmp_path, titan(*args, TORCHTITAN_MODULE="torchtitan.models.flux.train"), torchtitan="0.2.2")
    for wrong in (titan(*args), titan("--training.stps", "3", TORCHTITAN_MODULE="mine")):
        with pytest.raises(ConfigError):
            made(tmp_path, wrong, torchtitan="0.2.2")
