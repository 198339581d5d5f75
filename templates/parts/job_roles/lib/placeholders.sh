# shellcheck shell=bash
# Fills in addresses and ports, which are known only when the job runs. In a role's command and environment, `{NAME.address}`,
# `{NAME.nodes}` and `{NAME.port.PORT}` become those of role NAME. `{self.index}` becomes the role's number among those with the
# same program. Other text in braces stays unchanged.

# placeholders::all ARRAY…: fills in the arrays in place.
placeholders::all() {
    local array_name index
    for array_name in "$@"; do
        local -n placeholders_array="${array_name}"
        for index in "${!placeholders_array[@]}"; do
            placeholders::word "${placeholders_array[index]}"
            placeholders_array[index]="${placeholders_word}"
        done
    done
}

placeholders::word() {
    local -r pattern='\{([a-z][a-z0-9-]*)\.(address|nodes|index|port\.[a-z][a-z0-9-]*)\}'
    local rest="$1" before variable
    placeholders_word=""
    while [[ "${rest}" =~ ${pattern} ]]; do
        before="${rest%%"${BASH_REMATCH[0]}"*}"
        variable="KIT_ROLE_${BASH_REMATCH[1]^^}_${BASH_REMATCH[2]^^}"
        variable="${variable//[-.]/_}"
        variable="${variable/%_ADDRESS/_ADDR}"
        variable="${variable/#KIT_ROLE_SELF_/KIT_ROLE_}"
        placeholders_word+="${before}${!variable-${BASH_REMATCH[0]}}"
        rest="${rest#*"${BASH_REMATCH[0]}"}"
    done
    placeholders_word+="${rest}"
}
