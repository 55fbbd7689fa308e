"""`python -m torch.distributed.run --nproc-per-node 4 -m ringtree.parallel data_parallel --steps 20`: train, and print losses.

Four rows of the batch a rank, so that four ranks train as the chapters do. NCCL where each rank of a node has a GPU, else Gloo.
"""

import argparse
import os

import torch
import torch.distributed as dist

from ringtree import data
from ringtree.parallel import data_parallel, model

ROWS, BUCKET = 4, 400_000


def by_data_parallel(device, steps):
    """Train, overlapped by hooks; the loss of each step, on rank 0 that of all rows."""
    rank, size = dist.get_rank(), dist.get_world_size()
    tokens, symbols = model.tokens_of(data.prose())
    net = model.seeded(lambda: model.GPT(len(symbols)), seed=rank).to(device)
    data_parallel.same_start(net, dist)
    averaging = data_parallel.Overlapped(net, dist, BUCKET)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    for batch in model.batches(tokens, steps, ROWS * size):
        optimizer.zero_grad()
        loss = model.loss_of(net, batch.chunk(size)[rank].to(device))
        loss.backward()
        averaging.finish()
        optimizer.step()
        mean = loss.detach().clone()
        dist.reduce(mean, dst=0)
        yield mean.item() / size


TECHNIQUES = {"data_parallel": by_data_parallel}


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m ringtree.parallel",
        description="Train the chapters' small GPT on several ranks; rank 0 prints the loss of each step.",
        epilog="Start it with torchrun or python -m torch.distributed.run.",
        allow_abbrev=False,
    )
    parser.add_argument("technique", choices=TECHNIQUES)
    parser.add_argument("--steps", type=int, default=20, metavar="N", help="how many (20)")
    given = parser.parse_args(arguments)
    if "LOCAL_RANK" not in os.environ:
        launcher = "python -m torch.distributed.run --nproc-per-node 4 -m ringtree.parallel"
        parser.exit(2, f"{parser.prog}: these are no ranks: start it as `{launcher} {given.technique}`\n")
    device = join()
    if dist.get_rank() == 0:
        print(f"{given.technique}: {dist.get_world_size()} ranks, {dist.get_backend()}", flush=True)
    for number, loss in enumerate(TECHNIQUES[given.technique](device, given.steps), 1):
        if dist.get_rank() == 0:
            print(f"step {number:3}: loss {loss:.4f}", flush=True)
    dist.destroy_process_group()


def join():
    """Become a rank; returns its device."""
    local_rank = int(os.environ["LOCAL_RANK"])
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        device = torch.device("cpu")
        torch.set_num_threads(1)  # ranks that share cores must not fight for them
        dist.init_process_group("gloo")
    return device


if __name__ == "__main__":
    main()
