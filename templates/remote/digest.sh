# shellcheck shell=sh
# Prints the sha256 of an image in the store. Computed once for each file.
main() {
    answer digest sha256sum -- "$STORE/sha256/$SHA.sqsh"
    printf 'end\n'
}
