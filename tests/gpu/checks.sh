# What tests/gpu/run asks of the logs of NCCL; tests/gpu_checks.rs asks it of logs that were made up.

# network_is NAME RANKS LOG...: whether as many processes as there are ranks say that they use this
# network, and none that it uses another; a sentence where not.
network_is() {
    local name=$1 ranks=$2
    shift 2
    awk -v name="$name" -v ranks="$ranks" '
        match($0, /:[0-9]+:[0-9]+ \[[0-9]+\] NCCL INFO (Using network|Assigned NET plugin) /) {
            split(substr($0, RSTART), place, ":")
            split(substr($0, RSTART + RLENGTH), words, " ")
            if (words[1] == name) its[place[2]] = 1
            else other[place[2]] = words[1]
        }
        END {
            for (process in other) {
                printf "process %s used the network %s, not %s\n", process, other[process], name
                wrong = 1
            }
            for (process in its) count++
            if (count != ranks) {
                printf "%d of %d ranks say that they use %s\n", count, ranks, name
                wrong = 1
            }
            exit wrong
        }' "$@"
}

# bytes_went RANKS LOG...: whether as many processes as there are ranks say, at the end of their
# connections, that the plugin has carried bytes of theirs, sent or received (a broadcast's last rank
# sends none); a sentence where not.
bytes_went() {
    local ranks=$1
    shift
    awk -v ranks="$ranks" '
        match($0, /:[0-9]+:[0-9]+ \[[0-9]+\] NCCL INFO NET\/crosstie : [^ ]+: [0-9]+ bytes (sent|received) /) {
            split(substr($0, RSTART), place, ":")
            words = split(substr($0, RSTART, RLENGTH - 1), word, " ")
            carried[place[2]] += word[words - 2]
        }
        END {
            for (process in carried) count += carried[process] > 0
            if (count == ranks) exit 0
            printf "%d of %d ranks say that crosstie has carried bytes of theirs\n", count, ranks
            exit 1
        }' "$@"
}

# carried RANKS LOG...: whether the plugin, and nothing else, has carried what each rank sent.
carried() { network_is crosstie "$@" && bytes_went "$@"; }

# by_memory WAY RANKS LOG...: whether as many processes as there are ranks hand memory of GPUs to the
# plugin (gpu), or none does (any other way); a sentence where not.
by_memory() {
    local way=$1 ranks=$2 count
    shift 2
    count=$(grep -ho ':[0-9]*:[0-9]* \[[0-9]*\] NCCL INFO .*GDRDMA' "$@" | cut -d: -f2 | sort -u | wc -l)
    [ "$way" = gpu ] || ranks=0
    [ "$count" = "$ranks" ] && return
    echo "$count ranks have channels with GDRDMA, and $ranks are meant to"
    return 1
}

# right LOG: whether a program found no value out of bounds, over the plugin.
right() { grep -q 'Out of bounds values : 0 OK' "$1" && carried 2 "$1"; }

# came_back LOG: the same, where rails were lost and are in use again.
came_back() {
    right "$1" && grep -q 'was lost' "$1" && grep -q 'carries bytes again' "$1"
}

# all_rounds WAY LOG...: whether each rank, with a log of its own, has come to its end over the plugin,
# in this way.
all_rounds() {
    local way=$1 log
    shift
    for log in "$@"; do
        if ! grep -q 'every round right' "$log"; then
            echo "$log: not every round was right"
            return 1
        fi
        carried 1 "$log" && by_memory "$way" 1 "$log" || return 1
    done
}
