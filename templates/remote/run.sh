# shellcheck shell=sh
# Runs one of Slurm's commands: kit_argv prints its words. It gets INPUT bytes of this program's input.
main() {
    kit_environment
    out=$(head -c "$INPUT" | kit_argv)
    section run "$?" "$out"
    printf 'end\n'
}
