"""Aborts in the midst of collectives and starts again, 20 times in one process, in unmodified
PyTorch. One process for each rank, since torchrun would end both when one waits for nobody:

    for rank in 0 1; do RANK=$rank python3 tests/gpu/abort_again.py & done; wait
"""

import os
import time

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

ROUNDS = 20
RANKS = 2
FIRST_PORT = 29600


def main():
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
    for number in range(ROUNDS):
        meeting = f"tcp://127.0.0.1:{FIRST_PORT + number}"
        options = {"init_method": meeting, "rank": rank, "world_size": RANKS, "device_id": device}
        dist.init_process_group("nccl", **options)
        values = torch.full((1 << 22,), float(rank + 1), device=device)
        dist.all_reduce(values)
        torch.cuda.synchronize()
        assert bool((values == 3.0).all()), f"rank {rank}, round {number}"
        # the other rank may not take part in the last
        for _ in range(3 if rank == 0 else 2 + number % 2):
            dist.all_reduce(values, async_op=True)
        time.sleep(0.05 * (number % 3))
        distributed_c10d._abort_process_group()
    print(f"rank {rank}: {ROUNDS} aborts, every round right", flush=True)
    os._exit(0)


main()
