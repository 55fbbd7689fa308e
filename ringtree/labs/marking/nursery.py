"""A clean process, everything imported, from which one process for each exercise is forked: `python -m … SOCKET`.

It runs nothing of the learner's itself, so that one exercise cannot leave anything for another to find.
"""

import json
import os
import socket
import sys
import tempfile

import torch

from ringtree.algorithms import ring_all_reduce
from ringtree.cost import Link
from ringtree.labs.conditions import unwritten_memory_shows
from ringtree.labs.forbidding import without_ready_made
from ringtree.labs.marking.cells import run_cells
from ringtree.labs.marking.fence import fence
from ringtree.labs.marking.verdict import verdict_on
from ringtree.live.processes import forks
from ringtree.simulated import simulate

MEMORY = 2**31  # bytes of address space, beside what the imports take
FILES = 2**26  # bytes of one file
SECONDS = 600  # of a processor
PROCESSES = 256  # beside those that the user has already; without effect on root


def main(owner):
    forks.die_with()
    torch.set_num_threads(1)  # a pool of threads does not survive a fork
    _warm_up()
    forks.load()
    _judge(*forks.Server(owner).serve()[1])


def _warm_up():
    """Import what torch loads when its modes are first used, and IPython: otherwise every exercise would import it again."""
    simulate(ring_all_reduce, [torch.ones(4)] * 2, Link(1.0, 0.0), checked=True, rules="nccl")
    with unwritten_memory_shows(), without_ready_made():
        torch.cat(torch.empty(4).tensor_split(2)).tolist()
    run_cells({1: "%time 1"})


def _judge(descriptor):
    """Limit and fence this process, read a request, and answer it with a verdict: one line of JSON."""
    try:
        forks.limit(MEMORY, FILES, SECONDS, PROCESSES)
        _leave_one_folder()
        with socket.socket(fileno=descriptor) as connection:
            request = json.loads(b"".join(iter(lambda: connection.recv(2**20), b"")))
            request["cells"] = {int(number): text for number, text in request["cells"].items()}
            connection.sendall(json.dumps(verdict_on(**request)).encode() + b"\n")
    finally:
        os._exit(0)


def _leave_one_folder():
    """Give this process a folder of its own, and a fence around everything else."""
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    os.environ.update(HOME=folder, TMPDIR=folder)
    tempfile.tempdir = None  # it is found again
    fence(folder)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
