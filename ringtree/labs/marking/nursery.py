"""A clean process, everything imported, from which one process for each exercise is forked: `python -m … FD`.

It runs nothing of the learner's itself, so that one exercise cannot leave anything for another to find.
"""

import ctypes
import gc
import json
import os
import resource
import signal
import socket
import sys
import tempfile

import torch

from ringtree.algorithms import ring_all_reduce
from ringtree.cost import Link
from ringtree.labs.forbidding import without_ready_made
from ringtree.labs.marking.cells import run_cells
from ringtree.labs.marking.fence import fence
from ringtree.labs.marking.verdict import verdict_on
from ringtree.simulated import simulate
from ringtree.simulated.torch_modes import unwritten_memory_shows

MEMORY = 2**31  # bytes of address space, beside what the imports take
FILES = 2**26  # bytes of one file
SECONDS = 600  # of a processor
PROCESSES = 256  # beside those that the user has already; without effect on root


def main(control):
    control = socket.socket(fileno=control)
    _die_with_the_parent()
    torch.set_num_threads(1)  # a pool of threads does not survive a fork
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    _warm_up()
    gc.freeze()
    control.send(b"r")
    while True:
        word, descriptors, *_ = socket.recv_fds(control, 1, 1)
        if not word:
            return
        if os.fork() == 0:
            _judge(control, descriptors[0])
        os.close(descriptors[0])


def _warm_up():
    """Import what torch loads when its modes are first used, and IPython: otherwise every exercise would import it again."""
    simulate(ring_all_reduce, [torch.ones(4)] * 2, Link(1.0, 0.0), checked=True, rules="nccl")
    with unwritten_memory_shows(), without_ready_made():
        torch.cat(torch.empty(4).tensor_split(2)).tolist()
    run_cells({1: "%time 1"})


def _judge(control, descriptor):
    """Limit and fence this process, read a request, and answer it with a verdict: one line of JSON."""
    try:
        control.close()
        _die_with_the_parent()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        _limit()
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


def _die_with_the_parent():
    """End this process when its parent ends, even if the parent is killed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


PR_SET_PDEATHSIG = 1  # of linux/prctl.h


def _limit():
    with open("/proc/self/statm") as file:
        address_space = int(file.read().split()[0]) * resource.getpagesize()
    for what, most in (
        (resource.RLIMIT_AS, address_space + MEMORY),
        (resource.RLIMIT_FSIZE, FILES),
        (resource.RLIMIT_CPU, SECONDS),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, _threads_of_mine() + PROCESSES),
    ):
        resource.setrlimit(what, (most, most))


def _threads_of_mine():
    """Return the number of threads in all processes of this user: RLIMIT_NPROC counts these."""
    count, mine = 0, os.getuid()
    for name in os.listdir("/proc"):
        try:
            if name.isdecimal() and os.stat(f"/proc/{name}").st_uid == mine:
                count += len(os.listdir(f"/proc/{name}/task"))
        except OSError:  # it has ended meanwhile
            continue
    return count


if __name__ == "__main__":
    main(int(sys.argv[1]))
