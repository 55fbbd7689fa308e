"""torch.distributed, simulated: what a rank program talks to."""

from dataclasses import dataclass
from functools import partial

import torch

from ringtree.collectives import call_names
from ringtree.simulated import builtin, faults
from ringtree.simulated.faults import caller


@dataclass(frozen=True)
class Group:
    """Some of the ranks, as `new_group` returns them."""

    ranks: tuple
    number: int


def _global(group, rank):
    return rank if group is None else group.ranks[rank]


class SimulatedDist:
    """Speaks like `torch.distributed`, on a virtual clock; made by `simulate`, one for each rank.

    Collectives run a named algorithm of `ringtree.algorithms`, so that their cost is known:
    see `ringtree.simulated.builtin`.
    """

    __slots__ = ("_rank", "_size", "_post", "_groups")  # and no __getattr__, which would make every call of a method slower

    ReduceOp = torch.distributed.ReduceOp

    def __init__(self, rank, messages):
        self._rank, self._size, self._post = rank, messages.size, messages.post
        self._groups = 0  # how many this rank has made: every rank makes the same, so they have the same numbers

    def get_rank(self, group=None):
        rank = self._rank.number
        if group is None:
            return rank
        return group.ranks.index(rank) if rank in group.ranks else -1

    def get_world_size(self, group=None):
        return self._size if group is None else len(group.ranks)

    def get_global_rank(self, group, group_rank):
        return _global(group, group_rank)

    def get_process_group_ranks(self, group=None):
        return list(range(self._size)) if group is None else list(group.ranks)

    def new_group(self, ranks=None, **_):
        """A group of these ranks. Every rank calls it, in the same order, as with torch."""
        self._groups += 1
        return Group(tuple(sorted(range(self._size) if ranks is None else ranks)), self._groups)

    def isend(self, tensor, dst=None, group=None, tag=0, group_dst=None):
        return self._post(self._rank, (self.P2POp(self.isend, tensor, dst, group, tag, group_dst),), caller())[0]

    def irecv(self, tensor, src=None, group=None, tag=0, group_src=None):
        return self._post(self._rank, (self.P2POp(self.irecv, tensor, src, group, tag, group_src),), caller())[0]

    def send(self, tensor, dst=None, group=None, tag=0, group_dst=None):
        self._post(self._rank, (self.P2POp(self.isend, tensor, dst, group, tag, group_dst),), caller())[0].wait()

    def recv(self, tensor, src=None, group=None, tag=0, group_src=None):
        work = self._post(self._rank, (self.P2POp(self.irecv, tensor, src, group, tag, group_src),), caller())[0]
        work.wait()
        return work.peer

    def P2POp(self, op, tensor, peer=None, group=None, tag=0, group_peer=None):
        """An entry for `batch_isend_irecv`: `op` is `dist.isend` or `dist.irecv`."""
        try:
            sends = SENDS[op.__func__]
        except (AttributeError, KeyError, TypeError):
            raise faults.no_operation(self._rank.number, op) from None
        if group_peer is not None:
            peer = _global(group, group_peer)
        return sends, tensor, peer, tag if group is None else (group.number, tag)

    def batch_isend_irecv(self, operations):
        if not operations or type(operations) is not list:
            raise faults.no_batch(self._rank.number, operations)
        return self._post(self._rank, operations, caller())


class Members:
    """What a collective's algorithm talks to: a group's ranks, numbered from 0, with messages apart from the program's own."""

    TAG = -1  # no program can use it: torch takes only tags from 0 on

    def __init__(self, dist, group):
        self._dist, self._group = dist, group
        self._rank, self._post = dist._rank, dist._post
        self.batch_isend_irecv = dist.batch_isend_irecv

    def get_rank(self):
        return self._dist.get_rank(self._group)

    def get_world_size(self):
        return self._dist.get_world_size(self._group)

    def isend(self, tensor, dst):
        return self._post(self._rank, (self.P2POp(self.isend, tensor, dst),), caller())[0]

    def irecv(self, tensor, src):
        return self._post(self._rank, (self.P2POp(self.irecv, tensor, src),), caller())[0]

    def send(self, tensor, dst):
        self._post(self._rank, (self.P2POp(self.isend, tensor, dst),), caller())[0].wait()

    def recv(self, tensor, src):
        self._post(self._rank, (self.P2POp(self.irecv, tensor, src),), caller())[0].wait()

    def P2POp(self, op, tensor, peer):
        return self._dist.P2POp(op, tensor, None, self._group, self.TAG, peer)

    def root(self, rank, group_rank):
        """The root's number in the group, from the one of two arguments that is given."""
        if group_rank is not None:
            return group_rank
        ranks = self._dist.get_process_group_ranks(self._group)
        if (rank or 0) not in ranks:
            raise ValueError(f"the root is rank {rank}, which is not in the group of ranks {ranks}: give one of them")
        return ranks.index(rank or 0)


SENDS = {SimulatedDist.isend: True, SimulatedDist.irecv: False, Members.isend: True, Members.irecv: False}


def _collective(name):
    def call(dist, *args, **kwargs):
        return builtin.call(name, partial(Members, dist), *args, **kwargs)

    return call


for _name in call_names():
    setattr(SimulatedDist, _name, _collective(_name))
