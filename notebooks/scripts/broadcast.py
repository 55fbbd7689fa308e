"""Broadcast over a minimum spanning tree, beside PyTorch's own:

    torchrun --nproc_per_node 4 broadcast.py

Any number of ranks will do, on one node or on several.
"""

import os
import time
from datetime import timedelta
from statistics import median

import torch
import torch.distributed as dist


def mst_broadcast(tensor, dist, root=0):
    """Minimum spanning tree: the ranks split in two halves, the root sends to one rank of the other
    half, and each half goes on alone, with a root of its own.

    Before: `root` has `tensor`. After: every rank has it.
    Cost: ⌈lg p⌉(α + nβ). Source: Chan, Heimlich, Purkayastha, van de Geijn 2007.
    """
    rank = dist.get_rank()
    first, end = 0, dist.get_world_size()
    while end - first > 1:
        middle = (first + end + 1) // 2
        partner = middle if root < middle else first
        if rank == root:
            dist.send(tensor, partner)
        if rank == partner:
            dist.recv(tensor, root)
        if rank < middle:
            end, root = middle, min(root, partner)
        else:
            first, root = middle, max(root, partner)


def main():
    """Run both on the same numbers, compare, and time both."""
    device = join()
    rank, size = dist.get_rank(), dist.get_world_size()
    # Other whole numbers in each place and on each rank; in float64 their sums
    # are exact in whatever order they are added.
    torch.manual_seed(rank)
    mine = torch.randint(10**6, (2**20,), dtype=torch.float64, device=device)
    theirs = mine.clone()
    mst_broadcast(mine, dist)
    dist.broadcast(theirs, src=0)
    assert torch.equal(mine, theirs), f"rank {rank}: not what PyTorch has"
    dist.barrier()  # nobody gets past it if one rank found a difference
    if rank == 0:
        print(f"{dist.get_backend()}, {size} ranks: ours equals PyTorch's")
    calls = {
        "mst_broadcast": lambda: mst_broadcast(mine, dist),
        "PyTorch's": lambda: dist.broadcast(theirs, src=0),
    }
    for name, call in calls.items():
        report(name, call, mine.nbytes, 1, device)
    dist.destroy_process_group()


def join():
    """Become a rank; return its device. NCCL, with a GPU of its own for each
    rank of the node where there are as many, else Gloo on the CPU."""
    local_rank = int(os.environ["LOCAL_RANK"])
    on_gpu = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        device_id=device if on_gpu else None,
        timeout=timedelta(seconds=60),
    )
    return device


def report(name, call, nbytes, bus_factor, device):
    """Time a call and let rank 0 print it: the median of ten, after two to warm
    up. All ranks begin together, and the slowest rank's time counts."""
    finish = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    times = []
    for _ in range(12):
        dist.barrier()
        finish()
        began = time.perf_counter()
        call()
        finish()
        spent = torch.tensor(time.perf_counter() - began, device=device)
        dist.all_reduce(spent, op=dist.ReduceOp.MAX)
        times.append(spent.item())
    middle = median(times[2:])
    algbw = nbytes / middle / 1e9
    if dist.get_rank() == 0:
        print(
            f"{name}: {nbytes} bytes, median {middle * 1e3:.3f} ms, "
            f"algbw {algbw:.3f} GB/s, busbw {algbw * bus_factor:.3f} GB/s"
        )


if __name__ == "__main__":
    main()
