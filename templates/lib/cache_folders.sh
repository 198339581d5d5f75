# shellcheck shell=bash
# Compiler and download caches in a node-local folder: on a shared home they hang on locks, in the image they are read-only.

cache_folders::point_at() {
    local dir="$1"
    # The preflight makes it on every node. The test first saves a process on each rank.
    if [[ ! -d "${dir}" ]]; then
        mkdir -p -- "${dir}" 2>/dev/null || true
    fi
    # Files in a cache are executed. So a folder of another user is not used, and the name of the new one cannot be guessed.
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
