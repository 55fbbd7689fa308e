"""The same hello with torch.multiprocessing.spawn, without a launcher:

    python hello_spawn.py

spawn starts the processes and gives each its number. What torchrun would
write into the environment, we write here ourselves.
"""

import os

import torch.distributed as dist
import torch.multiprocessing as mp

from hello_torchrun import hello

RANKS = 4


def rank_main(rank: int, port: int) -> None:
    """What each process runs: say who it is, then the same hello."""
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        GROUP_RANK="0",
        WORLD_SIZE=str(RANKS),
        LOCAL_WORLD_SIZE=str(RANKS),
        MASTER_ADDR="localhost",
        MASTER_PORT=str(port),
        # The parent listens already, so rank 0 must not.
        TORCHELASTIC_USE_AGENT_STORE="True",
    )
    hello()


if __name__ == "__main__":
    # Port 0 asks the system for a free one: two runs never clash.
    store = dist.TCPStore(
        "localhost", 0, is_master=True, wait_for_workers=False
    )
    mp.spawn(rank_main, args=(store.port,), nprocs=RANKS)
