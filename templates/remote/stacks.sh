# shellcheck shell=sh
# Runs a step, kit_argv, that writes text files into the new FOLDER, and sends these files.
main() {
    kit_environment
    mkdir -- "$FOLDER" || { section step 1 ''; printf 'end\n'; return; }
    kit_argv >&2 </dev/null
    section step "$?" ''
    printf 'end\n'
    cd -- "$FOLDER" && find . -type f -name '*.txt' -size -1025k -printf '%P\n' \
        | tar --create --file=- --no-recursion --format=gnu --no-unquote --verbatim-files-from --files-from=- 2>/dev/null
    rm -rf -- "$FOLDER"
}
