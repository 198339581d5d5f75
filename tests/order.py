"""In which order files of tests are given to the workers of `make test`: none waits at the end for one that took long.

xdist hands out files (`--dist loadfile`) in the order of their number of tests, which says little: two tests of a cluster
wait for a minute, two hundred of a parser take one second. Here the longest come first; and since tests of a cluster wait
for Slurm where the others compute, the two kinds come in turn, so that both are done at about the same time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

# Seconds of a test where a file's are not below. Those of tests/training skip where torch is not installed, as in .venv.
_OF_A_TEST = {"cluster": 6.0, "training": 0.01}
_OF_ANOTHER = 0.15
# Files that differ from that, roughly: taken on a busy machine, where a test of a cluster took ten times as long.
SECONDS = {
    "tests/cluster/test_bisect.py": 60.0,
    "tests/cluster/test_image_buildkit.py": 8.0,
    "tests/cluster/test_image_corpus.py": 10.0,
    "tests/cluster/test_image_environment.py": 2.0,
    "tests/cluster/test_image_kills.py": 45.0,
    "tests/cluster/test_image_registry.py": 6.0,
    "tests/cluster/test_images.py": 70.0,
}


def in_turn(tests: Iterable[str]) -> list[str]:
    """The files of these tests (`tests/unit/test_x.py::test_y`), in the order in which they are to begin."""
    count = Counter(test.partition("::")[0] for test in tests)
    cost = {
        file: SECONDS.get(file, number * _OF_A_TEST.get(Path(file).parent.name, _OF_ANOTHER))
        for file, number in count.items()
    }
    kinds = ([file for file in cost if _waits(file)], [file for file in cost if not _waits(file)])
    share = {file: place for files in kinds for file, place in _shares({file: cost[file] for file in files})}
    return sorted(share, key=lambda file: (share[file], -cost[file], file))


def _waits(file: str) -> bool:
    return file.startswith("tests/cluster/")


def _shares(cost: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """Each file and the share of all seconds that comes before it, longest first."""
    whole, before = sum(cost.values()), 0.0
    for file in sorted(cost, key=lambda file: (-cost[file], file)):
        yield file, before / whole
        before += cost[file]
