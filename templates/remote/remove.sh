# shellcheck shell=sh
# Removes the folder RUN, of which nothing was submitted.
main() {
    cd -- "$RUNS" && rm -rf -- "./$RUN"
    section removed "$?" ''
    printf 'end\n'
}
