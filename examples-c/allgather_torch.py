#!/usr/bin/env python3
"""PyTorch gathers over crosstie, by ctypes: on a stream, in a CUDA graph, and beside NCCL.

    torchrun --nproc-per-node 2 examples-c/allgather_torch.py --library dist/lib/libcrosstie.so.0

The window is a tensor. Within a host copy engines move the bytes, and no kernel does. For each size
the program verifies every byte, and prints the time of one AllGather of crosstie and of NCCL, in
place, eager and in a graph; then how fast a kernel of the program runs beside each.
"""
import argparse
import ctypes
import os
import time

import torch
import torch.distributed as dist

CUDA = 2  # XTIE_MEMORY_CUDA
GATHER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t,
                          ctypes.c_void_p)


class EndpointConfig(ctypes.Structure):
    """xtie_endpoint_config"""
    _fields_ = [(name, ctypes.c_uint32) for name in (
        "struct_size", "device", "connections_max", "requests_max", "regions_max",
        "eager_bytes_max", "send_ring_bytes", "write_ring_bytes")] + [
        ("heap_bytes", ctypes.c_uint64)] + [(name, ctypes.c_uint32) for name in (
            "connect_timeout_ms", "flags", "rails_max", "reserved")]


class GroupConfig(ctypes.Structure):
    """xtie_group_config"""
    _fields_ = [(name, ctypes.c_uint32) for name in (
        "struct_size", "rank", "ranks", "windows_max", "signals_max", "counters_max",
        "barriers_max", "timeout_ms")] + [
        ("context", ctypes.c_void_p), ("gather", GATHER), ("look", ctypes.c_void_p)]


class Crosstie:
    """An endpoint, a group of all ranks, and one window."""

    def __init__(self, path, tensor):
        self.xtie = ctypes.CDLL(path)
        self.xtie.xtie_result_str.restype = ctypes.c_char_p
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.endpoint, self.group = ctypes.c_void_p(), ctypes.c_void_p()
        self.window, self.memory = ctypes.c_void_p(), ctypes.c_void_p()
        self.tensor = tensor
        self.open_endpoint()
        self.open_group()
        data, size = ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(tensor.nbytes)
        self.call("xtie_memory_register", self.endpoint, data, size, ctypes.c_uint32(CUDA),
                  ctypes.byref(self.memory))
        self.call("xtie_window_register", self.group, data, size, self.memory, ctypes.c_uint32(0),
                  ctypes.byref(self.window))
        self.call("xtie_window_exchange", self.group, self.window, ctypes.c_uint32(0))

    def call(self, name, *arguments):
        code = getattr(self.xtie, name)(*arguments)
        if code < 0:
            raise RuntimeError(f"{name}: {self.xtie.xtie_result_str(code).decode()} ({code})")
        return code

    def storage(self, size):
        """Zeroed memory at a multiple of 64."""
        raw = ctypes.create_string_buffer(size + 64)
        return raw, ctypes.c_void_p((ctypes.addressof(raw) + 63) // 64 * 64)

    def open_endpoint(self):
        size, config = ctypes.c_size_t(), EndpointConfig()
        self.call("xtie_endpoint_config_init", ctypes.byref(config),
                  ctypes.c_size_t(ctypes.sizeof(config)))
        config.connections_max = 2 * self.ranks + 2
        config.requests_max = 64
        config.regions_max = 16
        self.call("xtie_endpoint_size", ctypes.byref(config), ctypes.byref(size))
        self.endpoint_raw, place = self.storage(size.value)
        self.call("xtie_endpoint_open", place, size, ctypes.byref(config),
                  ctypes.byref(self.endpoint))

    def open_group(self):
        def gather(_context, mine, size, everyone):
            parts = [None] * self.ranks
            dist.all_gather_object(parts, ctypes.string_at(mine, size), group=GLOO)
            joined = b"".join(parts)
            ctypes.memmove(everyone, joined, len(joined))
            return 0

        self.gather = GATHER(gather)  # it must outlive the call
        config = GroupConfig(ctypes.sizeof(GroupConfig), self.rank, self.ranks, 4, 0, 0, 1, 60000,
                             None, self.gather, None)
        size = ctypes.c_size_t()
        self.call("xtie_group_size", ctypes.byref(config), ctypes.byref(size))
        self.group_raw, place = self.storage(size.value)
        self.call("xtie_group_open", self.endpoint, place, size, ctypes.byref(config),
                  ctypes.byref(self.group))

    def all_gather(self, chunk_bytes):
        """In place, on PyTorch's current stream: recorded where that is captured."""
        start = self.tensor.data_ptr()
        stream = torch.cuda.current_stream().cuda_stream
        self.call("xtie_window_all_gather", self.group, self.window,
                  ctypes.c_void_p(start + self.rank * chunk_bytes), ctypes.c_void_p(start),
                  ctypes.c_size_t(chunk_bytes), ctypes.c_void_p(stream))

    def settle(self):
        """Waits for the GPU; between hosts the library needs this rank meanwhile."""
        event = torch.cuda.Event()
        event.record()
        while not event.query():
            self.call("xtie_group_progress", self.group)
        self.call("xtie_all_gather_check", self.group, None)

    def close(self):
        while self.call("xtie_window_free", self.group, self.window) == 1:
            self.call("xtie_group_progress", self.group)
        dist.barrier(group=GLOO)
        self.call("xtie_memory_deregister", self.endpoint, self.memory)
        self.call("xtie_group_close", self.group)
        self.call("xtie_endpoint_close", self.endpoint)


def recorded(work):
    """A graph of some work. Warm-ups run on a stream of their own, as PyTorch asks."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def timed(work, settle, rounds=50):
    """Microseconds of one of many."""
    for _ in range(10):
        work()
    settle()
    dist.barrier(group=GLOO)
    start = time.perf_counter()
    for _ in range(rounds):
        work()
    settle()
    return (time.perf_counter() - start) / rounds * 1e6


def verified(tensor, chunk, graph, xtie):
    """Replays with changed data: every byte."""
    for step in range(5):
        own = tensor[xtie.rank * chunk:(xtie.rank + 1) * chunk]
        own.copy_(pattern(xtie.rank, step, chunk))
        graph.replay()
        xtie.settle()
        for rank in range(xtie.ranks):
            part = tensor[rank * chunk:(rank + 1) * chunk]
            if not torch.equal(part, pattern(rank, step, chunk)):
                raise SystemExit(f"rank {xtie.rank}: the chunk of rank {rank} is WRONG")
        dist.barrier(group=GLOO)


def pattern(rank, step, count):
    base = torch.arange(count, device="cuda", dtype=torch.int64)
    return ((base * 31 + rank * 7919 + step * 104729) % 251).to(torch.uint8)


def busy_share(work, settle):
    """How fast a kernel of the program runs beside the work, as a share of its speed alone."""
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    side, out = torch.cuda.Stream(), torch.empty_like(a)
    times = []
    for is_beside in (False, True):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        dist.barrier(group=GLOO)
        with torch.cuda.stream(side):
            torch.matmul(a, a, out=out)
            begin.record()
            for _ in range(200):
                torch.matmul(a, a, out=out)
            end.record()
        if is_beside:
            for _ in range(BESIDE):  # as many at all ranks, longer than the kernels
                work()
        settle()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    dist.barrier(group=GLOO)
    return times[0] / times[1]


def nccl_memory(is_plain):
    """Memory for NCCL, and its end: what its zero-SM AllGather takes, where both have that."""
    plain = torch.zeros(MOST, dtype=torch.uint8, device="cuda")
    if is_plain:
        return plain, lambda: None
    try:
        backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cuda"))
        pool = torch.cuda.MemPool(backend.mem_allocator)
        with torch.cuda.use_mem_pool(pool):
            tensor = torch.zeros(MOST, dtype=torch.uint8, device="cuda")
        backend.register_mem_pool(pool, symm=True)
        return tensor, lambda: backend.deregister_mem_pool(pool)
    except (AttributeError, RuntimeError, TypeError) as error:
        if dist.get_rank() == 0:
            print(f"NCCL has no symmetric memory here: {error}")
        return plain, lambda: None


MOST = 128 << 20
SIZES = [64 << 10, 4 << 20, 8 << 20, 32 << 20, MOST]
GLOO = None
BESIDE = 400


def main():
    global GLOO
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", default="libcrosstie.so.0")
    parser.add_argument("--without-nccl", action="store_true")
    parser.add_argument("--plain", action="store_true", help="NCCL gets unregistered memory")
    arguments = parser.parse_args()
    gpu = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(gpu)
    if arguments.without_nccl:
        dist.init_process_group("gloo")
    else:
        # with its device NCCL's communicator is there at once, as symmetric memory asks
        dist.init_process_group("nccl", device_id=gpu)
    GLOO = dist.new_group(backend="gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    tensor = torch.zeros(MOST, dtype=torch.uint8, device="cuda")
    xtie = Crosstie(arguments.library, tensor)
    theirs, end, other = None, lambda: None, None
    if not arguments.without_nccl:
        theirs, end = nccl_memory(arguments.plain)
    if rank == 0:
        print(f"{'bytes':>10} {'crosstie':>9} {'graph':>9} {'NCCL':>9} {'graph':>9}   "
              "microseconds, in place")
    for size in SIZES:
        chunk = size // ranks
        graph = recorded(lambda: xtie.all_gather(chunk))
        verified(tensor, chunk, graph, xtie)
        row = [timed(lambda: xtie.all_gather(chunk), xtie.settle),
               timed(graph.replay, xtie.settle)]
        if not arguments.without_nccl:
            whole = theirs[:chunk * ranks]
            own = whole[rank * chunk:(rank + 1) * chunk]
            work = lambda: dist.all_gather_into_tensor(whole, own)
            work()
            torch.cuda.synchronize()
            other = recorded(work)
            row += [timed(work, torch.cuda.synchronize),
                    timed(other.replay, torch.cuda.synchronize)]
        if rank == 0:
            print(f"{size:>10} " + " ".join(f"{us:>9.1f}" for us in row), flush=True)
    share = busy_share(graph.replay, xtie.settle)
    words = [f"a kernel beside it runs at {100 * share:.1f} % of its speed with crosstie"]
    if not arguments.without_nccl:
        words.append(f"{100 * busy_share(other.replay, torch.cuda.synchronize):.1f} % with NCCL")
    if rank == 0:
        print(", ".join(words))
        print("every byte verified")
    # NCCL ends no communicator that a graph holds
    del graph, other
    torch.cuda.synchronize()
    end()
    xtie.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
