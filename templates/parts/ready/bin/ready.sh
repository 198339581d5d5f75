#!/bin/bash
# ready.sh tcp|http|file ADDRESS PORT [PATH]: whether the port is open, its answer is 2xx, or the file exists.
# For a file, PORT is its name in the run folder. Written in bash, because not all nodes have curl.
set -euo pipefail

http() {
    local status
    exec 3<>"/dev/tcp/$1/$2"
    printf 'GET %s HTTP/1.0\r\nHost: %s:%s\r\n\r\n' "${3:-/}" "$1" "$2" >&3
    read -r _ status _ <&3
    [[ "${status}" == 2* ]]
}

main() {
    case "$1" in
        tcp) exec 3<>"/dev/tcp/$2/$3" ;;
        http) http "$2" "$3" "${4:-}" ;;
        file) [[ -e "${BASH_SOURCE[0]%/bin/*}/$3" ]] ;;
    esac
}

main "$@"
