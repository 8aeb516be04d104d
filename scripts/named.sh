# Tests that a rung selects by name. After a rename an old name selects nothing, and the rung would
# pass without its tests. So each name is first looked up in what `PROGRAM --list` prints.
# tests/rungs.rs plants wrong names.

# each_selects RUNG WORD... <LIST: fails, with a line for each, where a word selects no test. The
# words are those of a test program's command line: filters, `--skip` with a filter, options.
each_selects() {
    local rung=$1 word all kept filters=() skips=() lost=0
    shift
    while [ $# -gt 0 ]; do
        case $1 in
            --skip) skips+=("$2"); shift ;;
            -*) ;;
            *) filters+=("$1") ;;
        esac
        shift
    done
    all=$(sed -n 's/: test$//p')
    kept=$all
    for word in "${skips[@]}"; do
        grep -qF -e "$word" <<<"$all" ||
            { echo "$rung: --skip '$word' matches no test"; lost=1; }
        kept=$(grep -vF -e "$word" <<<"$kept" || true)
    done
    [ -n "$kept" ] || { echo "$rung: no test is selected"; lost=1; }
    for word in "${filters[@]}"; do
        grep -qF -e "$word" <<<"$kept" ||
            { echo "$rung: filter '$word' matches no test"; lost=1; }
    done
    return "$lost"
}

# none_is_empty RUNG <LIST: fails, with a line for each, where a test program has no test at all, as
# with a condition at its head that no longer holds. LIST is all that cargo prints.
none_is_empty() {
    awk -v rung="$1" '
        $1 == "Running" { program = $0; sub(/^ *Running (unittests )?/, "", program)
            sub(/ \(.*/, "", program); programs++ }
        /^0 tests, / { print rung ": " program " has no test"; lost = 1 }
        END { if (!programs) { print rung ": no test program was listed"; lost = 1 }; exit lost }'
}

# each_exists RUNG FILE...: fails, with a line for each, where a pattern or name means no file.
each_exists() {
    local rung=$1 file lost=0
    shift
    for file in "$@"; do
        [ -e "$file" ] || { echo "$rung: '$file' matches no file"; lost=1; }
    done
    return "$lost"
}

# no_program RUNG <LIST: a line for the program that cargo could not find.
no_program() {
    sed -n "s/.*no test target named \`\([^\`]*\)\`.*/$1: program '\1' is no test program/p"
}

# named_tests WORD...: the command `cargo test` or alike, in full, once each of its names is known to
# select a test: programs before `--`, filters after it.
named_tests() {
    local before=() list lost=0
    while [ $# -gt 0 ] && [ "$1" != -- ]; do
        before+=("$1")
        shift
    done
    [ $# -eq 0 ] || shift
    list=$(CARGO_TERM_COLOR=never "${before[@]}" -- --list 2>&1) ||
        { printf '%s\n' "$list"; no_program "$rung" <<<"$list"; return 1; }
    none_is_empty "$rung" <<<"$list" || lost=1
    each_selects "$rung" "$@" <<<"$list" || lost=1
    [ "$lost" = 0 ] || return 1
    "${before[@]}" -- "$@"
}
