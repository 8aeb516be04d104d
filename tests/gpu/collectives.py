"""Collectives and a small training in unmodified PyTorch, over whatever network NCCL has.

    torchrun --nproc-per-node 2 tests/gpu/collectives.py losses.txt

Every rank compares what each collective gave with what it must give; rank 0 writes the losses of
200 steps of data-parallel training, one per line, so that two runs can be compared with cmp(1).
With two processes the order of every sum is fixed, so the losses are equal to the last bit
whatever the network. doc/nccl.md says how NCCL is made to use it between processes of one host.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 200


def check(name, got, want):
    if not torch.equal(got, want):
        raise SystemExit(f"{name}: wrong on rank {dist.get_rank()}")


def collectives(rank, ranks, device):
    for count in (1, 3, 1000, 1 << 16, (1 << 20) + 7, 1 << 24):
        part = torch.arange(count, device=device, dtype=torch.int64) % 1009
        of = [part * (1 + other) for other in range(ranks)]
        total = of[0] * 0
        for each in of:
            total = total + each
        mine = of[rank].clone()
        dist.all_reduce(mine)
        check("all_reduce", mine, total)
        gathered = [torch.empty_like(part) for _ in range(ranks)]
        dist.all_gather(gathered, of[rank])
        for got, want in zip(gathered, of):
            check("all_gather", got, want)
        scattered = torch.empty_like(part)
        dist.reduce_scatter(scattered, [part * (1 + to) for to in range(ranks)])
        check("reduce_scatter", scattered, part * (1 + rank) * ranks)
        from_first = of[rank].clone()
        dist.broadcast(from_first, 0)
        check("broadcast", from_first, of[0])
        exchanged = [torch.empty_like(part) for _ in range(ranks)]
        dist.all_to_all(exchanged, [part * (1 + rank) + to for to in range(ranks)])
        for other, got in enumerate(exchanged):
            check("all_to_all", got, part * (1 + other) + rank)


def training(rank, ranks, device):
    torch.manual_seed(5)
    torch.use_deterministic_algorithms(True)
    net = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU())
    net = nn.Sequential(net, nn.Linear(1024, 16)).to(device)
    model = DistributedDataParallel(net, device_ids=[device.index])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    samples = torch.Generator().manual_seed(100 + rank)
    losses = []
    for _ in range(STEPS):
        batch = torch.randn(64, 256, generator=samples).to(device)
        target = batch[:, :16].sin()
        loss = nn.functional.mse_loss(model(batch), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        shared = loss.detach().clone()
        dist.all_reduce(shared)
        losses.append(shared.item() / ranks)
    return losses


def main():
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    ranks = dist.get_world_size()
    collectives(rank, ranks, device)
    losses = training(rank, ranks, device)
    if rank == 0:
        with open(sys.argv[1], "w") as file:
            file.writelines(f"{loss!r}\n" for loss in losses)
        print(f"collectives: every value verified; loss {losses[0]:.6f} to {losses[-1]:.6f}")
    dist.destroy_process_group()


main()
