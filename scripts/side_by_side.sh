# Test programs that run side by side: most of them wait most of the time. `cargo test` runs one
# after the other. tests/rungs.rs plants programs that fail.

# These take longest and begin, so that none of them is left over at the end.
programs_first="adapter/nccl/plugin namespaces_conformance conformance_tcp adapter/nccl/libfabric
    adapter/nccl/gin libfabric_endpoint conformance_libfabric libfabric_threads namespaces
    libfabric_orphan adapter/nccl/between_hosts verbs_losses verbs_away verbs_hosts
    libfabric_severed lanes_tcp sleep"

# These need the machine for themselves, and run behind the others, one after the other.
programs_alone=""

# test_programs ROOT <JSON: a line for each test program of which cargo's messages tell: its name
# with its package's folder before it, the folder, and its file, with tabs between.
test_programs() {
    local folder='.*"manifest_path":"\([^"]*\)/Cargo.toml",'
    local name='"target":{[^}]*"name":"\([^"]*\)".*"overflow_checks":[a-z]*,"test":true}.*'
    sed -n "s|$folder$name\"executable\":\"\([^\"]*\)\".*|\1/\2\t\1\t\3|p" | sed "s|^$1/||"
}

# in_order FIRST ALONE PART <LIST: the programs of one part, `together` or `alone`; the named ones
# first. Fails, with a line for each, where a name is no program's.
in_order() {
    awk -F '\t' -v first="$1" -v alone="$2" -v part="$3" '
        $1 in line { print "two test programs are called " $1 >"/dev/stderr"; lost = 1 }
        { line[$1] = $0; names[NR] = $1 }
        END {
            count = split(first, wanted, " ")
            lone_count = split(alone, lone, " ")
            for (i = 1; i <= lone_count; i++) is_alone[lone[i]] = 1
            for (i = 1; i <= NR; i++) wanted[++count] = names[i]
            for (i = 1; i <= count; i++) {
                name = wanted[i]
                if (!(name in line)) { print name " is no test program" >"/dev/stderr"; lost = 1 }
                else if (!done[name]++ && (name in is_alone) == (part == "alone")) print line[name]
            }
            for (name in is_alone) if (!(name in line)) {
                print name " is no test program" >"/dev/stderr"; lost = 1
            }
            exit lost
        }'
}

# side_by_side MOST LOGS <LIST: runs the programs, so many at a time, each in its package's folder.
# Says a line for each that has ended, and all that one said which failed; fails if one did.
side_by_side() {
    local most=$1 logs=$2 running=0 failed=0 name folder file
    rm -f "$logs/ended"
    mkfifo "$logs/ended"
    exec 8<>"$logs/ended"
    while IFS=$'\t' read -r name folder file; do
        if [ "$running" -ge "$most" ]; then program_ended || failed=1; fi
        program_runs &
        running=$((running + 1))
    done
    while [ "$running" -gt 0 ]; do program_ended || failed=1; done
    exec 8<&-
    return "$failed"
}

# Inside `side_by_side`: runs a program, and tells of its end.
program_runs() {
    local rc=0 began=$SECONDS log=$logs/${name//\//-}
    (cd "$folder" && CARGO_MANIFEST_DIR=$folder exec "$file" 8<&-) >"$log" 2>&1 || rc=$?
    echo "$rc $((SECONDS - began)) $name" >&8
}

# Inside `side_by_side`: waits for the end of one program, and says how it ended.
program_ended() {
    local rc seconds name log
    read -r rc seconds name <&8
    running=$((running - 1))
    log=$logs/${name//\//-}
    if [ "$rc" = 0 ]; then
        printf '%4d s  ok      %s\n' "$seconds" "$name"
    else
        printf '%4d s  FAILED  %s (status %d)\n== %s:\n' "$seconds" "$name" "$rc" "$log"
        cat "$log"
        return 1
    fi
}

# why_failed LOG: in a few short lines, which programs and tests of a rung failed, and how. It is
# said last of all, since the end of the output is what one sees first, or alone.
why_failed() {
    grep -a -A 1 -E ' s  FAILED |^test .* FAILED$|panicked at |^error(\[|:)' "$1" |
        grep -v '^--$' | cut -c 1-200 | awk '!seen[$0]++' | head -n 16
}
