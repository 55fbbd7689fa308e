"""Reduce-scatter round a ring, beside PyTorch's own:

    torchrun --nproc_per_node 4 reduce_scatter.py

Any number of ranks will do, on one node or on several.
"""

import os
import time
from datetime import timedelta
from statistics import median

import torch
import torch.distributed as dist


def ring_reduce_scatter(tensor, dist, op=torch.add):
    """Each shard goes once round the ring, and every rank adds its own to it on the way.

    Before: every rank has its own `tensor`. After: rank r has the result in shard r; its other
    shards are partial results. Cost: (p−1)α + (p−1)/p·n(β + γ).
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    shards = tensor.tensor_split(size)
    for step in range(size - 1):
        shard = shards[(rank - step - 2) % size]
        received = torch.empty_like(shard)
        for work in dist.batch_isend_irecv([
            dist.P2POp(dist.isend, shards[(rank - step - 1) % size], right),
            dist.P2POp(dist.irecv, received, left),
        ]):
            work.wait()
        op(shard, received, out=shard)


def main():
    """Run both on the same numbers, compare, and time both."""
    device = join()
    rank, size = dist.get_rank(), dist.get_world_size()
    # Other whole numbers in each place and on each rank; in float64 their sums
    # are exact in whatever order they are added.
    torch.manual_seed(rank)
    length = 2**20 // size * size  # PyTorch's call wants shards of one length
    whole = torch.randint(10**6, (length,), dtype=torch.float64, device=device)
    mine, theirs = whole.clone(), whole.new_empty(length // size)
    shard, shards = mine.tensor_split(size)[rank], list(whole.tensor_split(size))
    ring_reduce_scatter(mine, dist)
    dist.reduce_scatter(theirs, shards)
    assert torch.equal(shard, theirs), f"rank {rank}: not what PyTorch has"
    dist.barrier()  # nobody gets past it if one rank found a difference
    if rank == 0:
        print(f"{dist.get_backend()}, {size} ranks: ours equals PyTorch's")
    calls = {
        "ring_reduce_scatter": lambda: ring_reduce_scatter(mine, dist),
        "PyTorch's": lambda: dist.reduce_scatter(theirs, shards),
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
