"""Plain processes that run a function on every rank, for tests that need torch.distributed but no notebook."""

from __future__ import annotations

import atexit
import functools
import multiprocessing
import os
import pickle
import traceback
from datetime import timedelta

from torch.distributed import TCPStore


class Processes:
    """A gloo process group of `size` processes.

    `call(function, *arguments)` runs a function of a test module on every rank, as
    function(dist, *arguments), and returns the results by rank, "died" for a rank that did. patience: seconds
    after which torch gives up on a call.
    """

    def __init__(self, size: int, patience: float = 30):
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        context = forks()
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._pipes, self._processes = [], []
        for rank in range(size):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there, rank, size, self._store.port, patience), daemon=True)
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)

    def call(self, function, *arguments, timeout: float = 60) -> list:
        for pipe in self._pipes:
            pipe.send_bytes(pickle.dumps((function, arguments)))
        answers = []
        for rank, pipe in enumerate(self._pipes):
            if not pipe.poll(timeout):
                raise TimeoutError(f"rank {rank} did not finish {function.__name__} within {timeout} s")
            try:
                answers.append(pickle.loads(pipe.recv_bytes()))
            except EOFError:
                answers.append(("died", None))
        problems = [problem for _, problem in answers if problem]
        if problems:
            raise AssertionError("\n".join(problems))
        return [result for result, _ in answers]

    @property
    def alive(self) -> bool:
        return all(process.is_alive() for process in self._processes)

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()


@functools.cache
def forks():
    """Processes are forked from one that has imported what each would import for itself."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed", "torch._dynamo"])
    return context


@functools.cache
def shared(size: int) -> Processes:
    """One group of processes for every test that leaves it as it found it."""
    processes = Processes(size)
    atexit.register(processes.stop)
    return processes


def _serve(pipe, rank: int, size: int, port: int, patience: float) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        store=dist.TCPStore("127.0.0.1", port, is_master=False),
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=patience),
    )
    while True:
        try:
            function, arguments = pickle.loads(pipe.recv_bytes())
        except EOFError:
            return
        try:
            pipe.send_bytes(pickle.dumps((function(dist, *arguments), None)))
        except Exception:
            pipe.send_bytes(pickle.dumps((None, f"rank {rank}: {traceback.format_exc()}")))
