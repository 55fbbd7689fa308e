"""The conditions under which a learner's function runs: nothing ready-made, and memory that shows what was never written."""

import contextlib

import torch

from ringtree.labs.forbidding import without_ready_made
from ringtree.labs.patches import put_back


@contextlib.contextmanager
def conditions(exercise):
    """Allow nothing ready-made, let unwritten memory show, and put back afterwards what the function has replaced."""
    with put_back(), unwritten_memory_shows(), contextlib.nullcontext() if exercise.builtin else without_ready_made():
        yield


@contextlib.contextmanager
def one_thread():
    """Run torch on one thread: the tensors are small, and several threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextlib.contextmanager
def unwritten_memory_shows():
    """Fill new memory with nan, so that numbers which an earlier run left there cannot pass for results."""
    mode = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("warn")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)
