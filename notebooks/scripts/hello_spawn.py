"""The same hello with torch.multiprocessing.spawn, without a launcher:

    python hello_spawn.py

spawn starts the processes and gives each its number. Where they meet is a
store that this script makes; no environment variable is needed.
"""

import torch.distributed as dist
import torch.multiprocessing as mp

from hello_torchrun import hello

RANKS = 4


def rank_main(rank: int, port: int) -> None:
    """What each process runs: find the store, then the same hello."""
    store = dist.TCPStore("localhost", port, is_master=False)
    hello(
        node=0,
        local_rank=rank,
        ranks_here=RANKS,
        met_at=f"localhost:{port}",
        store=store,
        rank=rank,
        world_size=RANKS,
    )


if __name__ == "__main__":
    # Port 0 asks the system for a free one: two runs never clash.
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    mp.spawn(rank_main, args=(store.port,), nprocs=RANKS)
