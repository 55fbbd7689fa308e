"""`python -m torch.distributed.run --nproc-per-node 4 -m ringtree.parallel data_parallel --steps 20`: train, and print losses.

Four rows of the batch a rank, so that four ranks train as the chapters do. NCCL where each rank of a node has a GPU, else Gloo.
"""

import argparse
import os
from functools import partial

import torch
import torch.distributed as dist
from torch.nn import functional as F

from ringtree import data
from ringtree.parallel import data_parallel, experts, model, pipeline, sharded, tensor_parallel, uneven

ROWS, BUCKET, MICROBATCHES = 4, 400_000, 8


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


def by_sharded(device, steps):
    """Train by ZeRO-3; the loss of each step, on rank 0 that of all rows."""
    rank, size = dist.get_rank(), dist.get_world_size()
    tokens, symbols = model.tokens_of(data.prose())
    net = model.seeded(lambda: model.GPT(len(symbols))).to(device)
    units = [[net.token, net.place], *([block] for block in net.blocks), [net.norm, net.head]]
    share = sharded.ZeRO3(units, dist, partial(torch.optim.AdamW, lr=3e-3))
    for batch in model.batches(tokens, steps, ROWS * size):
        loss = model.loss_of(net, batch.chunk(size)[rank].to(device))
        loss.backward()
        share.step()
        mean = loss.detach().clone()
        dist.reduce(mean, dst=0)
        yield mean.item() / size


def by_pipeline(device, steps):
    """Train eight layers by 1F1B, in eight micro-batches; the loss of each step, on rank 0 that of all rows."""
    rank, size = dist.get_rank(), dist.get_world_size()
    tokens, symbols = model.tokens_of(data.prose())
    net = model.seeded(lambda: model.GPT(len(symbols), layers=8))
    stage = pipeline.Stage(net, rank, size).to(device)
    rounds = pipeline.one_f_one_b(rank, size, MICROBATCHES)
    optimizer = torch.optim.AdamW(stage.parameters(), lr=3e-3)
    for batch in model.batches(tokens, steps, ROWS * size):
        optimizer.zero_grad()
        rows = batch.to(device).chunk(MICROBATCHES)
        inputs, wanted = [each[:, :-1] for each in rows], [each[:, 1:].flatten() for each in rows]
        like = torch.empty(*inputs[0].shape, net.norm.weight.numel(), device=device)
        losses = pipeline.step(
            rounds, {rank: stage}, size, inputs, lambda y, i: F.cross_entropy(y.flatten(0, 1), wanted[i]), like, dist
        )
        optimizer.step()
        mean = torch.stack(losses).mean() if losses else torch.zeros((), device=device)
        dist.broadcast(mean, src=size - 1)
        yield mean.item()


def by_experts(device, steps):
    """Train with two experts a rank and a balance loss; the loss of each step without that, on rank 0 that of all rows."""
    rank, size = dist.get_rank(), dist.get_world_size()
    tokens, symbols = model.tokens_of(data.prose())
    layer = partial(experts.Experts, count=2 * size, best=2, make=model.FeedForward)
    net = model.seeded(lambda: model.GPT(len(symbols), feed_forward=layer)).to(device)
    experts.share_out(net, dist)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    for batch in model.batches(tokens, steps, ROWS * size):
        optimizer.zero_grad()
        loss = model.loss_of(net, batch.chunk(size)[rank].to(device))
        (loss + 0.01 * experts.balance_loss(net, dist)).backward()
        experts.average_gradients(net, dist)
        optimizer.step()
        mean = loss.detach().clone()
        dist.reduce(mean, dst=0)
        yield mean.item() / size


def by_tensor_parallel(device, steps):
    """Train on ranks that share the matrices, all on the same rows; the loss of each step, which every rank has."""
    tokens, symbols = model.tokens_of(data.prose())
    net = model.seeded(lambda: model.GPT(len(symbols))).to(device)
    tensor_parallel.share(net, dist, sequence=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    for batch in model.batches(tokens, steps, ROWS * dist.get_world_size()):
        optimizer.zero_grad()
        loss = model.loss_of(net, batch.to(device))
        loss.backward()
        tensor_parallel.sum_of_parts(net, dist)
        optimizer.step()
        yield loss.item()


def by_uneven(device, steps):
    """Train where the last rank has no rows in each third step; the loss of each step, on rank 0 that of all rows."""
    rank, size = dist.get_rank(), dist.get_world_size()
    tokens, symbols = model.tokens_of(data.prose())
    net = model.seeded(lambda: model.GPT(len(symbols))).to(device)
    parts = [batch.chunk(size)[rank].to(device) for batch in model.batches(tokens, steps, ROWS * size)]
    if rank == size - 1:
        parts[2::3] = [part[:0] for part in parts[2::3]]
    average = partial(data_parallel.average_buckets, net, dist, BUCKET)
    for loss in uneven.together(net, parts, model.loss_of, average, dist):
        mean = torch.tensor(loss, device=device)
        dist.reduce(mean, dst=0)
        yield mean.item() / size


TECHNIQUES = {
    "data_parallel": by_data_parallel,
    "sharded": by_sharded,
    "pipeline": by_pipeline,
    "experts": by_experts,
    "tensor_parallel": by_tensor_parallel,
    "uneven": by_uneven,
}


def main(arguments=None, prog="ringtree parallel"):
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Train the chapters' small GPT on several ranks; rank 0 prints the loss of each step.",
        epilog="Start it with torchrun or python -m torch.distributed.run.",
        allow_abbrev=False,
    )
    parser.add_argument("technique", choices=TECHNIQUES)
    parser.add_argument("--steps", type=int, default=20, metavar="N", help="how many (20)")
    given = parser.parse_args(arguments)
    if "LOCAL_RANK" not in os.environ:
        launcher = "python -m torch.distributed.run --nproc-per-node 4 -m ringtree.parallel"
        parser.exit(2, f"{parser.prog}: these are not ranks: start it as `{launcher} {given.technique}`\n")
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
