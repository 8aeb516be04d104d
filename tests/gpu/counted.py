"""Whether the bytes that the plugin says it has sent are those of the collectives that ran: of
all_reduce between two ranks each sends as many bytes as the buffer has, since each has one half
reduced and then gives the other the sum.

    tests/gpu/counted.py LOG BYTES COLLECTIVES
"""

import re
import sys

LINE = re.compile(r":(\d+):\d+ \[\d+\] NCCL INFO NET/crosstie : \S+: (\d+) bytes sent to .*")


def main():
    log, size, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    sent = {}
    with open(log, errors="replace") as lines:
        for line in lines:
            found = LINE.search(line)
            if found:
                process = int(found.group(1))
                sent[process] = sent.get(process, 0) + int(found.group(2))
    wanted = size * count
    for process, total in sorted(sent.items()):
        print(f"process {process}: {total} bytes sent, {total / size:.3f} buffers; {count} wanted")
    # NCCL may end each buffer on a line of its own
    right = len(sent) == 2 and all(0 <= total - wanted < size for total in sent.values())
    print("the counters match the traffic" if right else "THE COUNTERS DO NOT MATCH")
    sys.exit(not right)


main()
