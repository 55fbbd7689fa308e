"""Buffers in flight: one that is being sent may be read, one that is being received into may not be touched. All are waited for."""

import torch

from ringtree.simulated import faults


class Guard:
    """Complains where the running rank uses a buffer that is in flight: until it has waited for the message."""

    def __init__(self, clock):
        self.clock = clock
        self.copying = False
        for rank in clock.ranks:
            rank.in_flight = {}

    def copy(self, target, source):
        """Copy for the simulator itself, which does not count as use by the program."""
        self.copying = True
        move(target, source)
        self.copying = False

    def used(self, tensor, written, by=None):
        """A tensor is about to be read or `written`. Raises ProgramError where it is in flight. by: the work that asks for it."""
        if self.copying:
            return
        for work in self.clock.turns[self.clock.running].in_flight:
            for buffer, is_written in work.touches():
                if (written or is_written) and overlap(tensor, buffer):
                    if by is not None and by.place is work.place and written != is_written:
                        raise faults.both_ways(work)
                    raise faults.touched(work, written, is_written)

    def check_all_waited_for(self):
        """At the end of the run. Raises ProgramError where a rank has left a message, or a collective, to itself."""
        for rank in self.clock.ranks:
            for work in rank.in_flight:
                raise faults.never_waited(work)


def move(target, source):
    """Put the contents of one tensor into another, as a transport does: it knows bytes, and neither shapes nor gradients."""
    try:
        target.copy_(source)
    except RuntimeError:  # of other shapes, or torch keeps the target from being changed in place
        with torch.inference_mode():
            target.detach().view(-1).copy_(source.detach().view(-1))


def overlap(one, other):
    """Return whether two tensors share memory."""
    if one.untyped_storage().data_ptr() != other.untyped_storage().data_ptr():
        return False
    first, second = one.storage_offset() * one.element_size(), other.storage_offset() * other.element_size()
    return first < second + other.nbytes and second < first + one.nbytes
