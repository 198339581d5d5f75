# shellcheck shell=sh
# The sha256 of an image that is in the store: computed once for each file.
main() {
    answer digest sha256sum -- "$STORE/sha256/$SHA.sqsh"
    printf 'end\n'
}
