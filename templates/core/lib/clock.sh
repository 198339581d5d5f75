# shellcheck shell=bash
# The time, in each bash that the kit promises to run in: 4.4 (RHEL 8, SLES 15) has none of the variables of bash 5. Each program
# sources this file first.
#
#   EPOCHSECONDS       seconds since 1970, as in bash 5, without a process
#   clock::now NAME    sets a variable to seconds since 1970 with six decimals

if ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] < 404)); then
    printf '%s: bash %s is too old here: the kit needs bash 4.4 or newer\n' "${SLURMD_NODENAME:-${HOSTNAME:-host}}" "${BASH_VERSION}" >&2
    exit 72
fi

if ((BASH_VERSINFO[0] >= 5)); then
    # LC_NUMERIC decides between point and comma.
    clock::now() {
        printf -v "$1" '%s' "${EPOCHREALTIME/,/.}"
    }
else
    # SECONDS counts on from what it is set to.
    printf -v SECONDS '%(%s)T' -1
    declare -gn EPOCHSECONDS=SECONDS
    clock::now() {
        # A rank whose container's files are gone has no `date` either.
        printf -v "$1" '%s' "$({ date +%s.%6N || printf '%(%s)T.000000' -1; } 2>&-)"
    }
fi
