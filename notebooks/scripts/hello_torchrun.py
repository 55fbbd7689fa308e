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


def hello(node, local_rank, ranks_here, met_at, **meeting) -> None:
    """Join the others, say which rank this is and what all ranks sum to.

    meeting: for init_process_group; without it that reads RANK, WORLD_SIZE,
    MASTER_ADDR and MASTER_PORT from the environment.
    """
    device = choose_device(local_rank, ranks_here)
    on_gpu = device.type == "cuda"
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        device_id=device if on_gpu else None,
        timeout=timedelta(seconds=60),
        **meeting,
    )
    try:
        total = torch.tensor([dist.get_rank() + 1.0], device=device)
        dist.all_reduce(total)
        say(
            f"node {node}, local rank {local_rank}: "
            f"global rank {dist.get_rank()} of {dist.get_world_size()}, "
            f"sum {total.item()}, met at {met_at}"
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
    env = os.environ
    hello(
        local_rank=int(env["LOCAL_RANK"]),
        ranks_here=int(env["LOCAL_WORLD_SIZE"]),
        node=env["GROUP_RANK"],
        met_at=f"{env['MASTER_ADDR']}:{env['MASTER_PORT']}",
    )
