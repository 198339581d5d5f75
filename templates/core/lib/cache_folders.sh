# shellcheck shell=bash
# Compiler and download caches in a node-local folder: on a shared home they hang on locks, in the image they are read-only. Compiled
# code belongs to an image: what one PyTorch has compiled must not be loaded by another.

# cache_folders::point_at FOLDER [IMAGE]: IMAGE is the image's short digest; without one, compiled code belongs to the node.
cache_folders::point_at() {
    local dir="$1" compiled
    # The preflight makes it on every node. The test first saves a process on each rank.
    if [[ ! -d "${dir}" ]]; then
        mkdir -p -- "${dir}" 2>/dev/null || true
    fi
    # Files in a cache are executed. So a folder of another user is not used, and the name of the new one cannot be guessed.
    if [[ ! -d "${dir}" || ! -w "${dir}" || ! -O "${dir}" || -L "${dir}" ]]; then
        dir="$(mktemp --directory --tmpdir kit-cache-XXXXXXXX)"
    fi
    compiled="${dir}${2:+/compiled/$2}"
    export TRITON_CACHE_DIR="${TRITON_CACHE_DIR:-${compiled}/triton}"
    export TORCH_EXTENSIONS_DIR="${TORCH_EXTENSIONS_DIR:-${compiled}/torch_extensions}"
    export TORCHINDUCTOR_CACHE_DIR="${TORCHINDUCTOR_CACHE_DIR:-${compiled}/inductor}"
    export CUDA_CACHE_PATH="${CUDA_CACHE_PATH:-${compiled}/cuda}"
    export HF_HOME="${HF_HOME:-${dir}/huggingface}"
    export XDG_CACHE_HOME="${XDG_CACHE_HOME:-${dir}/xdg}"
    export MPLCONFIGDIR="${MPLCONFIGDIR:-${dir}/matplotlib}"
}
