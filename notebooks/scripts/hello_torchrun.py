"""Hello from every rank, and one all-reduce. Start it with

    torchrun --nproc_per_node 4 hello_torchrun.py

torchrun starts the processes and tells each, in its environment, which
rank it is.
"""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist


def hello() -> None:
    """Join the others, say which rank this is and what all ranks sum to.

    Reads RANK, LOCAL_RANK, GROUP_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE,
    MASTER_ADDR and MASTER_PORT.
    """
    env = os.environ
    local_rank = int(env["LOCAL_RANK"])
    device = choose_device(local_rank, int(env["LOCAL_WORLD_SIZE"]))
    on_gpu = device.type == "cuda"
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        device_id=device if on_gpu else None,
        timeout=timedelta(seconds=60),
    )
    try:
        total = torch.tensor([dist.get_rank() + 1.0], device=device)
        dist.all_reduce(total)
        say(
            f"node {env['GROUP_RANK']}, local rank {local_rank}: "
            f"global rank {dist.get_rank()} of {dist.get_world_size()}, "
            f"sum {total.item()}, "
            f"met at {env['MASTER_ADDR']}:{env['MASTER_PORT']}"
        )
    finally:
        dist.destroy_process_group()


def choose_device(local_rank: int, ranks_here: int) -> torch.device:
    """A GPU for each rank of the node if there are enough, else the CPU."""
    if torch.cuda.device_count() < ranks_here:
        return torch.device("cpu")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def say(line: str) -> None:
    # torchrun runs Python unbuffered, and print() then writes a line and
    # its end separately: two ranks that share a terminal can mix theirs.
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    hello()
