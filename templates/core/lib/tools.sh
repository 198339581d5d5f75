# shellcheck shell=bash
# Servers for the user's own browser, in the job's container. Each listens on 127.0.0.1 of its node, and needs the token. Its first
# line on standard input is the token, so that no command line shows it. A server ends when its standard input ends.

readonly tools_missing=69

# tools::home CACHE: sets a HOME in the node's cache folder, which stays, where a read-only container has none that can be written.
tools::home() {
    local home="$1/home"
    [[ ! -w "${HOME:-/nonexistent}" ]] || return 0
    # Files of a HOME are executed: see cache_folders::point_at.
    if ! mkdir -p -m 700 -- "${home}" 2>/dev/null || [[ ! -O "${home}" || ! -w "${home}" || -L "${home}" || ! -O "$1" ]]; then
        home="$(mktemp --directory --tmpdir kit-home-XXXXXXXX)"
    fi
    export HOME="${home}"
}

# tools::serve NAME PORT
tools::serve() {
    local -r name="$1" port="$2"
    local token
    IFS= read -r token || return $?
    local -a words=()
    case "${name}" in
        notebook) tools::jupyter "${port}" ;;
        code) tools::code "${port}" ;;
    esac
    if ((${#words[@]} == 0)); then
        log::error "${tools_lacking}"
        return "${tools_missing}"
    fi
    local -i code
    env -- "${KIT_PROGRAM_ENV[@]}" "${words[@]}" <&- &
    local -ri server=$!
    # Nothing more is sent. When the input ends, the program that asked for the server has ended.
    {
        while IFS= read -r _; do :; done
        kill -TERM "${server}"
    } <&0 2>/dev/null &
    local -r listener=$!
    wait "${server}"
    code=$?
    kill "${listener}" 2>/dev/null
    return "${code}"
}

tools::jupyter() {
    tools_lacking="there is no Jupyter in the job's image, or environment: pip install jupyterlab"
    local one
    for one in lab notebook server; do
        command -v "jupyter-${one}" >/dev/null || continue
        export JUPYTER_TOKEN="${token}"
        words=("jupyter-${one}" --no-browser --ip=127.0.0.1 --port="$1" --ServerApp.port_retries=0)
        ((EUID)) || words+=(--allow-root)
        return $?
    done
}

tools::code() {
    tools_lacking="there is no VS Code server in the job's image: openvscode-server, code-server or code"
    local -r kept="$(mktemp)"
    if command -v openvscode-server >/dev/null; then
        printf '%s' "${token}" >"${kept}"
        words=(openvscode-server --host 127.0.0.1 --port "$1" --connection-token-file "${kept}" --accept-server-license-terms)
    elif command -v code-server >/dev/null; then
        export PASSWORD="${token}"
        words=(code-server --bind-addr "127.0.0.1:$1" --auth password)
    elif command -v code >/dev/null; then
        printf '%s' "${token}" >"${kept}"
        words=(code serve-web --host 127.0.0.1 --port "$1" --connection-token-file "${kept}" --accept-server-license-terms)
    fi
}
