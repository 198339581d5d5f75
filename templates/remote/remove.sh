# shellcheck shell=sh
# Removes the folder RUN, from which nothing was submitted.
main() {
    cd -- "$RUNS" && rm -rf -- "./$RUN"
    section removed "$?" ''
    printf 'end\n'
}
