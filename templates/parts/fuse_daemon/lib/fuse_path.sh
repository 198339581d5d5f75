# shellcheck shell=bash
# Gives Enroot the kit's FUSE programs. BASH_ENV names this file, and Enroot is a bash script: Pyxis passes this variable, but runs
# Enroot with slurmd's PATH instead of the job's. Every other bash of the step is left alone.
if [[ "${0##*/}" == enroot ]]; then
    export PATH="${BASH_SOURCE[0]%/lib/*}/bin/fuse:${PATH}"
    unset BASH_ENV
fi

# Takes the kit's FUSE programs off PATH again, so that they find the real ones.
fuse_path::leave() {
    PATH=":${PATH}:"
    PATH="${PATH//":${BASH_SOURCE[0]%/lib/*}/bin/fuse:"/:}"
    PATH="${PATH#:}"
    export PATH="${PATH%:}"
}
