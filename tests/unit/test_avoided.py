"""A refusal that may come of nodes which the kit itself avoids."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from kit.errors import SlurmError
from kit.runs import submit


@pytest.mark.parametrize("avoid", [(), ("n1", "n2")])
def test_p2_a_refusal_names_the_nodes_that_the_kit_avoids(
    monkeypatch: pytest.MonkeyPatch, avoid: tuple[str, ...]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise SlurmError("Requested node configuration is not available")

    monkeypatch.setattr("kit.runs.submit.client.test_only", refuse)
    site = SimpleNamespace(avoid=avoid)
    plan = SimpleNamespace(decisions=SimpleNamespace(site=site), text_of=lambda name: "", argv=("sbatch", "-", "-"))
    with pytest.raises(SlurmError) as error:
        submit.ask_slurm(cast(Any, SimpleNamespace(plan=plan, env={})))
    assert ("kept off n1, n2" in error.value.message) == bool(avoid)
    assert error.value.hint == ("kit nodes --forget n1" if avoid else "")
