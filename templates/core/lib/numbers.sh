# shellcheck shell=bash
# Numbers that another process has written: in a file, through a pipe, in an answer. bash evaluates the text of a variable in
# arithmetic, so that `x[$(command)]` runs the command. A variable with such text is passed to numbers::keep before it is used in
# `((…))`, in `$((…))`, or is assigned to a variable of `local -i`. tests/scripts/test_numbers.py looks for those that are not.

# numbers::keep NAME…: sets to 0 those of the caller's variables that do not hold a whole number from 0 to 18 digits.
numbers::keep() {
    local numbers_name
    for numbers_name in "$@"; do
        local -n numbers_text="${numbers_name}"
        [[ "${numbers_text}" =~ ^(0|[1-9][0-9]{0,17})$ ]] || numbers_text=0
    done
}
