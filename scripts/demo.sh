#!/bin/bash
# Runs the main use case from start to end: a Slurm on this machine, an image that is built, squashed and pinned, a data parallel
# training on two nodes in the container, and a summary of the run. On every way out it takes the cluster down again.
set -euo pipefail

cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
readonly kit=.venv/bin/kit

say() {
    printf '\ndemo: %s\n' "$*" >&2
}

# If the user has already started a cluster of that name, it stays up.
cluster_was_up=""
take_down() {
    if [[ -z "${cluster_was_up}" ]]; then
        say "kit cluster down"
        "${kit}" cluster down
    fi
}

# The lock names packages that a mirror drops when the distribution updates them.
build_image() {
    local code=0
    "${kit}" build-image train-cpu || code=$?
    if ((code == 5)); then
        say "kit build-image train-cpu --relock: packages of today; containers/train-cpu/image.lock changes"
        code=0
        "${kit}" build-image train-cpu --relock || code=$?
    fi
    return "${code}"
}

main() {
    if "${kit}" cluster status --json >/dev/null 2>&1; then
        cluster_was_up=1
    fi
    trap take_down EXIT

    say "kit cluster up"
    "${kit}" cluster up
    say "kit build-image train-cpu"
    build_image
    say "kit submit examples/ddp --follow"
    local run_dir
    run_dir="$("${kit}" submit examples/ddp --wait)"
    "${kit}" logs "${run_dir}" | grep -E '^(batch|rank-0) ' >&2
    say "summary"
    .venv/bin/python scripts/summary.py "${run_dir}"
}

main "$@"
