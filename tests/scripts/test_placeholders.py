"""lib/placeholders.sh: addresses and ports in a role's words, and everything else byte for byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit import shell
from tests import laid_out

KNOWN = {
    "KIT_ROLE_SERVER_ADDR": "10.0.0.1",
    "KIT_ROLE_SERVER_NODES": "10.0.0.1 10.0.0.2",
    "KIT_ROLE_SERVER_PORT_HTTP": "20123",
    "KIT_ROLE_RAY_HEAD_PORT_NODE_MANAGER": "20777",
    "KIT_ROLE_INDEX": "3",
}


def filled(folder: Path, *words: str) -> list[str]:
    """The words as a program gets them."""
    script = folder / "say.sh"
    script.write_text(
        'set -euo pipefail\nsource "$1"\nshift\nwords=("$@")\nplaceholders::all words\nprintf "%s\\0" "${words[@]}"\n',
        encoding="utf-8",
    )
    said = shell.run(
        ["bash", str(script), str(laid_out.LIB / "placeholders.sh"), *words],
        env={"PATH": "/usr/bin:/bin", **KNOWN},
    )
    return said.stdout.split("\0")[:-1]


@pytest.mark.parametrize(
    ("word", "becomes"),
    [
        ("http://{server.address}:{server.port.http}/v1", "http://10.0.0.1:20123/v1"),
        ("{server.nodes}", "10.0.0.1 10.0.0.2"),
        ("{ray-head.port.node-manager}", "20777"),
        ("{self.index}", "3"),
        ("{server.port.http}{server.port.http}", "2012320123"),
        ("a{server.port.grpc}b{server.address}", "a{server.port.grpc}b10.0.0.1"),
        (
            "{nobody.address} {self.address} {} {server} ${HOME} `x` $(y) *",
            "{nobody.address} {self.address} {} {server} ${HOME} `x` $(y) *",
        ),
        ("", ""),
        ("line\nbreak {server.address}\n", "line\nbreak 10.0.0.1\n"),
    ],
)
def test_a_word(tmp_path: Path, word: str, becomes: str) -> None:
    assert filled(tmp_path, "before", word, "after") == ["before", becomes, "after"]
