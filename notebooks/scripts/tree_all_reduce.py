"""All-reduce over a tree, up and down, beside PyTorch's own:

    torchrun --nproc_per_node 4 tree_all_reduce.py

Any number of ranks will do, on one node or on several.
"""

import os
import time
from datetime import timedelta
from statistics import median

import torch
import torch.distributed as dist


def mst_all_reduce(tensor, dist, op=torch.add):
    """Reduce to rank 0 over a minimum spanning tree, then broadcast over the same tree.

    Cost: ⌈lg p⌉(2α + 2nβ + nγ). Source: Chan, Heimlich, Purkayastha, van de Geijn 2007.
    """
    rank, root = dist.get_rank(), 0
    first, end, edges = 0, dist.get_world_size(), []
    while end - first > 1:
        middle = (first + end + 1) // 2
        edges.append((first, middle))
        if rank < middle:
            end = middle
        else:
            first = middle
    received = torch.empty_like(tensor)
    for root, partner in reversed(edges):
        if rank == partner:
            dist.send(tensor, root)
        if rank == root:
            dist.recv(received, partner)
            op(tensor, received, out=tensor)
    for root, partner in edges:
        if rank == root:
            dist.send(tensor, partner)
        if rank == partner:
            dist.recv(tensor, root)


def main():
    """Run both on the same numbers, compare, and time both."""
    device = join()
    rank, size = dist.get_rank(), dist.get_world_size()
    # Other whole numbers in each place and on each rank; in float64 their sums
    # are exact in whatever order they are added.
    torch.manual_seed(rank)
    mine = torch.randint(10**6, (2**20,), dtype=torch.float64, device=device)
    theirs = mine.clone()
    mst_all_reduce(mine, dist)
    dist.all_reduce(theirs)
    assert torch.equal(mine, theirs), f"rank {rank}: not what PyTorch has"
    dist.barrier()  # nobody gets past it if one rank found a difference
    if rank == 0:
        print(f"{dist.get_backend()}, {size} ranks: ours equals PyTorch's")
    calls = {
        "mst_all_reduce": lambda: mst_all_reduce(mine, dist),
        "PyTorch's": lambda: dist.all_reduce(theirs),
    }
    for name, call in calls.items():
        report(name, call, mine.nbytes, 2 * (size - 1) / size, device)
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
