# shellcheck shell=sh
# Takes the rest of an image, BYTES of it from FROM on, and renames it once its digest is SHA.
main() {
    folder="$STORE/tmp/ssh-$KIT_UID-$SHA"
    mkdir -p -- "$STORE/sha256" "$STORE/locks" "$STORE/refs" "$STORE/tmp" && kit_enter_own "$folder" || { result 1; return; }
    part=./part
    # Bytes after FROM came over a connection that broke.
    [ ! -e "$part" ] || truncate --size="$FROM" -- "$part" || { result 1; return; }
    head -c "$BYTES" >>"$part" || { kit_room "$STORE"; result 1; return; }
    [ "$(stat -c %s -- "$part")" = "$SIZE" ] || { echo "only a part of it came" >&2; result 1; return; }
    if [ "$(sha256sum <"$part")" != "$SHA  -" ]; then
        rm -rf -- "$folder"
        echo "what came has another digest" >&2
        result 1
        return
    fi
    chmod 644 -- "$part" && sync -- "$part" && mv -T -- "$part" "$STORE/sha256/$SHA.sqsh" && rm -rf -- "$folder"
    result $?
}

result() {
    section result "$1" "$(stat -L -c '%i %s %Y' -- "$STORE/sha256/$SHA.sqsh" 2>/dev/null)"
    printf 'end\n'
}
