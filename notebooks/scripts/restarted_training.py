"""A training that outlives the loss of a rank. Start it with

    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --nproc_per_node 2 \\
        --max-restarts 1 restarted_training.py checkpoint.pt --lose 1:9

Rank 1 is killed before step 9, once; torchrun starts all ranks again, and
they go on from the last checkpoint.
"""

import argparse
import os
import signal
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from ringtree import data
from ringtree.parallel import checkpoint, data_parallel, model


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("path", help="where the checkpoint is kept")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--every", type=int, default=3, help="steps between checkpoints")
    parser.add_argument(
        "--lose", default="0:0", help="RANK:STEP, killed before this step"
    )
    given = parser.parse_args()
    lost = tuple(map(int, given.lose.split(":")))
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    device = join()
    rank, size = dist.get_rank(), dist.get_world_size()

    tokens, symbols = model.tokens_of(data.prose())
    net = model.seeded(lambda: model.GPT(len(symbols))).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    done = checkpoint.resume(given.path, net, optimizer, dist)
    for step, batch in enumerate(model.batches(tokens, given.steps), 1):
        if step <= done:
            continue  # the rows of a step are the same in every attempt
        if attempt == 0 and (rank, step) == lost:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        loss = model.loss_of(net, batch.chunk(size)[rank].to(device))
        loss.backward()
        data_parallel.average_buckets(net, dist, 1_000_000)
        optimizer.step()
        mean = loss.detach().clone()
        dist.reduce(mean, dst=0)
        if rank == 0:
            say(f"attempt {attempt}, step {step}: loss {mean.item() / size:.4f}")
            if step % given.every == 0:
                checkpoint.save(given.path, step, net, optimizer)
    dist.destroy_process_group()


def join():
    """Become a rank; return its device."""
    local_rank = int(os.environ["LOCAL_RANK"])
    on_gpu = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)  # ranks that share cores must not fight for them
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        device_id=device if on_gpu else None,
        timeout=timedelta(seconds=60),
    )
    return device


def say(line):
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
