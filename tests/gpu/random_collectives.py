"""Random collectives for a while, in unmodified PyTorch, every value compared.

    torchrun --nproc-per-node 2 tests/gpu/random_collectives.py SECONDS SEED

Kinds, sizes, groups of processes and how many stand at a time are drawn from the seed, the same on
every rank. Sums are of small integers, which are exact.
"""

import os
import random
import sys
import time

import torch
import torch.distributed as dist

STANDING_MAX = 6
BYTES_MAX = 1 << 25


def values(draw, count, rank, device):
    return (torch.arange(count, device=device, dtype=torch.int32) * 7 + draw + 31 * rank) % 4093


def begin(draw, kind, count, rank, ranks, device, group):
    """Starts one; gives what to wait for, and pairs of what came and what must have come."""
    of = [values(draw, count, other, device) for other in range(ranks)]
    mine = of[rank].clone()
    empty = [torch.empty_like(mine) for _ in range(ranks)]
    options = {"group": group, "async_op": True}
    if kind == "all_reduce":
        return dist.all_reduce(mine, **options), [(mine, sum(of))]
    if kind == "broadcast":
        root = draw % ranks
        return dist.broadcast(mine, root, **options), [(mine, of[root])]
    if kind == "all_gather":
        return dist.all_gather(empty, mine, **options), list(zip(empty, of))
    if kind == "reduce_scatter":
        parts = [mine + to for to in range(ranks)]
        return dist.reduce_scatter(empty[0], parts, **options), [(empty[0], sum(of) + ranks * rank)]
    parts = [mine + to for to in range(ranks)]
    wanted = [of[other] + rank for other in range(ranks)]
    return dist.all_to_all(empty, parts, **options), list(zip(empty, wanted))


def main():
    seconds, seed = float(sys.argv[1]), int(sys.argv[2])
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    ranks = dist.get_world_size()
    groups = [dist.new_group(list(range(ranks))) for _ in range(4)]
    choice = random.Random(seed)
    kinds = ["all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all"]
    end = time.monotonic() + seconds
    done = 0
    while True:
        # all ranks end together
        over = torch.tensor([time.monotonic() >= end], device=device, dtype=torch.int32)
        dist.all_reduce(over)
        if over.item() > 0:
            break
        standing = []
        for _ in range(choice.randint(1, STANDING_MAX)):
            count = max(1, int(2 ** choice.uniform(0, 25)) // 4)
            count = min(count, BYTES_MAX // 4)
            draw, kind = choice.randrange(1000), choice.choice(kinds)
            group = choice.choice(groups)
            standing.append((kind, count, begin(draw, kind, count, rank, ranks, device, group)))
        for kind, count, (work, pairs) in standing:
            work.wait()
            for got, want in pairs:
                if not torch.equal(got, want):
                    raise SystemExit(f"{kind} of {count} values: wrong on rank {rank}, seed {seed}")
            done += 1
    if rank == 0:
        print(f"{done} random collectives, every value verified")
    dist.destroy_process_group()


main()
