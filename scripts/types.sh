#!/bin/bash
# types.sh: mypy --strict over the kit, its tests and benchmarks, scripts/, examples/, what runs beside ranks, and the programs of launchers/. Each folder
# of launchers/, launchers/lib/ and examples/ is checked separately, as it runs: its own folder and launchers/ are on the path, and several have a
# train.py. torch and the frameworks are not in .venv, so their types count as Any.
set -euo pipefail

cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
failed=0
.venv/bin/mypy || failed=1
.venv/bin/mypy --explicit-package-bases scripts/*.py || failed=1
# What runs beside ranks promises Python 3.8. mypy reads 3.10 and newer; ruff, and the tests on Python 3.8, find what is not there before.
# The stand-ins have the names of modules, so they are checked alone.
for folder in templates/kit_node templates/kit_node/absent; do
    MYPYPATH="${folder}" .venv/bin/mypy --python-version 3.10 --ignore-missing-imports "${folder}"/*.py || failed=1
done
for folder in launchers/*/ launchers/lib/*/ examples/*/; do
    mapfile -t programs < <(find "${folder}" -maxdepth 1 -name '*.py')
    [[ ${#programs[@]} -gt 0 && "${folder}" != launchers/lib/ ]] || continue
    # A cache of their own: with other options mypy takes nothing from a cache, and writes it anew.
    MYPYPATH="launchers:${folder%/}" .venv/bin/mypy --cache-dir .mypy_cache/programs --no-namespace-packages \
        --ignore-missing-imports --allow-subclassing-any --allow-untyped-decorators --no-warn-return-any "${programs[@]}" || failed=1
done
exit "${failed}"
