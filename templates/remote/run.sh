# shellcheck shell=sh
# One of Slurm's commands: kit_argv prints its words, INPUT bytes of the program's input are its own.
main() {
    kit_environment
    out=$(head -c "$INPUT" | kit_argv)
    section run "$?" "$out"
    printf 'end\n'
}
