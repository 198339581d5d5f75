# shellcheck shell=bash
# Compiler and download caches on a node-local folder: on a shared home they hang on locks, in the image they are read-only.

cache_folders::point_at() {
    local dir="$1"
    # The preflight made it on every node; asking first spares a process on each rank.
    if [[ ! -d "${dir}" ]]; then
        mkdir -p -- "${dir}" 2>/dev/null || true
    fi
    # What lies in a cache runs. A folder that somebody else made is left alone, and the name of another one cannot be guessed.
    if [[ ! -d "${dir}" || ! -w "${dir}" || ! -O "${dir}" || -L "${dir}" ]]; then
        dir="$(mktemp --directory --tmpdir kit-cache-XXXXXXXX)"
    fi
    export TRITON_CACHE_DIR="${TRITON_CACHE_DIR:-${dir}/triton}"
    export TORCH_EXTENSIONS_DIR="${TORCH_EXTENSIONS_DIR:-${dir}/torch_extensions}"
    export TORCHINDUCTOR_CACHE_DIR="${TORCHINDUCTOR_CACHE_DIR:-${dir}/inductor}"
    export HF_HOME="${HF_HOME:-${dir}/huggingface}"
    export XDG_CACHE_HOME="${XDG_CACHE_HOME:-${dir}/xdg}"
    export MPLCONFIGDIR="${MPLCONFIGDIR:-${dir}/matplotlib}"
}
