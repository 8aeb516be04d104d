"""Eight communicators at once, in unmodified PyTorch, every value compared.

    torchrun --nproc-per-node 2 tests/gpu/communicators_at_once.py
"""

import os

import torch
import torch.distributed as dist

COMMUNICATORS = 8
ROUNDS = 30


def main():
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
    dist.init_process_group("nccl", device_id=device)
    ranks = list(range(dist.get_world_size()))
    groups = [dist.new_group(ranks) for _ in range(COMMUNICATORS)]
    for number in range(ROUNDS):
        count = 1 << (10 + number % 12)
        sums = [torch.full((count,), float(rank + 1 + at), device=device) for at in range(len(groups))]
        works = [dist.all_reduce(it, group=group, async_op=True) for it, group in zip(sums, groups)]
        for work in works:
            work.wait()
        for at, it in enumerate(sums):
            wanted = float(sum(other + 1 + at for other in ranks))
            assert bool((it == wanted).all()), f"rank {rank}, round {number}, communicator {at}"
    print(f"rank {rank}: {COMMUNICATORS} communicators at once, every value verified", flush=True)
    dist.destroy_process_group()


main()
