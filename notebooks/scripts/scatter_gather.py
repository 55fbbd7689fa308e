"""Scatter and gather over a tree, beside PyTorch's own:

    torchrun --nproc_per_node 4 scatter_gather.py

Any number of ranks will do, on one node or on several.
"""

import os
import time
from datetime import timedelta
from itertools import accumulate
from statistics import median

import torch
import torch.distributed as dist


def mst_scatter(tensor, dist, root=0):
    """Minimum spanning tree: the root sends one rank of the other half the shards of all that half,
    and each half goes on alone, with a root of its own.

    Before: `root` has all of `tensor`. After: rank r has its shard r; its other shards may have
    been overwritten. Cost: ⌈lg p⌉α + (p−1)/p·nβ where the root always keeps the larger half, as
    root 0 does. Source: Chan et al. 2007.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    cuts = [0, *accumulate(len(shard) for shard in tensor.tensor_split(size))]
    first, end = 0, size
    while end - first > 1:
        middle = (first + end + 1) // 2
        partner = middle if root < middle else first
        begin, stop = (middle, end) if root < middle else (first, middle)
        half = tensor[cuts[begin] : cuts[stop]]
        if rank == root:
            dist.send(half, partner)
        if rank == partner:
            dist.recv(half, root)
        if rank < middle:
            end, root = middle, min(root, partner)
        else:
            first, root = middle, max(root, partner)


def mst_gather(tensor, dist, root=0):
    """Minimum spanning tree: the tree of the scatter, walked from its leaves to the root.

    Before: rank r has shard r of `tensor`. After: `root` has all of it; the others may have got
    some shards. Cost: ⌈lg p⌉α + (p−1)/p·nβ where the root always keeps the larger half, as root 0
    does. Source: Chan et al. 2007.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    cuts = [0, *accumulate(len(shard) for shard in tensor.tensor_split(size))]
    first, end, edges = 0, size, []
    while end - first > 1:
        middle = (first + end + 1) // 2
        partner = middle if root < middle else first
        begin, stop = (middle, end) if root < middle else (first, middle)
        half = tensor[cuts[begin] : cuts[stop]]
        edges.append((root, partner, half))
        if rank < middle:
            end, root = middle, min(root, partner)
        else:
            first, root = middle, max(root, partner)
    for root, partner, half in reversed(edges):
        if rank == partner:
            dist.send(half, root)
        if rank == root:
            dist.recv(half, partner)


def main():
    """Run both on the same numbers, compare, and time both."""
    device = join()
    rank, size = dist.get_rank(), dist.get_world_size()
    # Other whole numbers in each place and on each rank; in float64 their sums
    # are exact in whatever order they are added.
    torch.manual_seed(rank)
    length = 2**20 // size * size  # PyTorch's call wants shards of one length
    whole = torch.randint(10**6, (length,), dtype=torch.float64, device=device)
    shards = list(whole.tensor_split(size)) if rank == 0 else None
    # Scatter: a shard from rank 0 to each.
    mine, theirs = whole.clone(), whole.new_empty(length // size)
    mst_scatter(mine, dist)
    dist.scatter(theirs, shards, 0)
    shard = mine.tensor_split(size)[rank].clone()
    assert torch.equal(shard, theirs), f"rank {rank}: not what PyTorch has"
    # Gather: the shards back to rank 0, which alone has them all then.
    back = torch.zeros_like(whole)
    back.tensor_split(size)[rank].copy_(shard)
    places = [torch.zeros_like(shard) for _ in range(size)] if rank == 0 else None
    mst_gather(back, dist)
    dist.gather(shard, places, 0)
    assert rank != 0 or torch.equal(back, torch.cat(places)), "not what PyTorch has"
    dist.barrier()  # nobody gets past it if one rank found a difference
    if rank == 0:
        print(f"{dist.get_backend()}, {size} ranks: ours equals PyTorch's")
    calls = {
        "mst_scatter": lambda: mst_scatter(mine, dist),
        "PyTorch's scatter": lambda: dist.scatter(theirs, shards, 0),
        "mst_gather": lambda: mst_gather(back, dist),
        "PyTorch's gather": lambda: dist.gather(shard, places, 0),
    }
    for name, call in calls.items():
        report(name, call, whole.nbytes, (size - 1) / size, device)
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
