"""Shuts down one TCP socket at a time between processes of a name, from outside. Those that have
not sent a MiB are left alone: NCCL's own, and those of whoever started the processes.

    tests/gpu/socket_killer.py NAME SECONDS_BETWEEN SECONDS
"""

import ctypes
import os
import random
import socket
import struct
import sys
import time

PIDFD_GETFD = 438  # of the kernel's table of system calls
ESTABLISHED = "01"
COMM_BYTES = 15  # of a name, that the kernel keeps
# `tcpi_bytes_acked` of `struct tcp_info`
BYTES_ACKED = struct.Struct("=120xQ")


def streams():
    """The ends of the host's streams, by inode."""
    with open("/proc/net/tcp") as table:
        rows = [line.split() for line in table.readlines()[1:]]
    return {row[9]: (row[1], row[2]) for row in rows if row[3] == ESTABLISHED}


def sockets_of(name):
    """Pairs of process and descriptor whose peer is another process of this host."""
    known = streams()
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/comm") as comm:
                if comm.read().strip() != name[:COMM_BYTES]:
                    continue
            for fd in os.listdir(f"/proc/{pid}/fd"):
                end = known.get(os.readlink(f"/proc/{pid}/fd/{fd}")[len("socket:["):-1])
                if end and end[0].split(":")[0] == end[1].split(":")[0]:
                    found.append((int(pid), int(fd)))
        except OSError:
            pass  # it has ended
    return found


def shut_down(pid, fd):
    """Whether it was one that had sent so much."""
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return False  # it has ended
    try:
        copy = ctypes.CDLL(None).syscall(PIDFD_GETFD, process, fd, 0)
        if copy < 0:
            return False
        with socket.socket(fileno=copy) as stream:
            told = stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, BYTES_ACKED.size)
            is_rail = len(told) == BYTES_ACKED.size and BYTES_ACKED.unpack(told)[0] > 1 << 20
            if is_rail:
                stream.shutdown(socket.SHUT_RDWR)
        return is_rail
    except OSError:
        return False  # it has just been closed
    finally:
        os.close(process)


def main():
    name, pause, seconds = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
    random.seed(1)
    end, count = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        time.sleep(pause)
        found = sockets_of(name)
        random.shuffle(found)
        count += any(shut_down(*it) for it in found)
        print(f"{count} sockets shut down", flush=True)


main()
