"""torch.distributed, simulated: what a rank program talks to."""

from collections import Counter
from dataclasses import dataclass
from functools import partial

import torch

from ringtree import algorithms, calls
from ringtree.collectives import call_names, find
from ringtree.simulated import faults
from ringtree.simulated.faults import caller
from ringtree.simulated.streams import CollectiveWork, Streams
from ringtree.simulated.torch_modes import within_torch


@dataclass(frozen=True)
class Group:
    """Some of the ranks, as `new_group` returns them."""

    ranks: tuple
    number: int
    among_members: bool = False  # made by its members alone, with use_local_synchronization


class SimulatedDist:
    """Speaks like `torch.distributed`, on a virtual clock; made by `simulate`, one for each rank.

    Collectives run a named algorithm of `ringtree.algorithms`, so that their cost is known:
    see `algorithm_of`. What torch refuses with any backend is refused, for its reason. Where backends differ, tensors with
    gaps and lengths that cannot be shared out are refused as by NCCL, lists of several lengths as by Gloo; and types that
    Gloo does not reduce are taken.
    """

    __slots__ = ("_rank", "_size", "_post", "_made", "_streams", "_called", "_collectives", "_graphs")
    # and no __getattr__, which would make every call of a method slower

    ReduceOp = torch.distributed.ReduceOp

    def __init__(self, rank, messages):
        self._rank, self._size, self._post = rank, messages.size, messages.post
        self._collectives = messages.collectives  # by group, what was called in it
        self._graphs = messages.graphs
        self._streams = self._called = None  # by group, made with the first collective: most ranks of large runs call none
        self._made = None  # this rank's groups, from 1 on: every rank makes the same, so they have the same numbers

    def get_rank(self, group=None):
        rank = self._rank.number
        if group is None:
            return rank
        self.get_process_group_ranks(group)
        return group.ranks.index(rank) if rank in group.ranks else -1

    def get_world_size(self, group=None):
        return self._size if group is None else len(group.ranks)

    def get_global_rank(self, group, group_rank):
        return self._peer(None, group, group_rank)

    def get_process_group_ranks(self, group=None):
        if group is None:
            return list(range(self._size))
        if type(group) is not Group:
            raise ValueError(f"group={group!r} is no group: give one that new_group returned, or leave it out for all ranks")
        return list(group.ranks)

    def new_group(self, ranks=None, use_local_synchronization=False, **_):
        """A group of these ranks. Every rank calls it, in the same order, as with torch."""
        if strangers := [rank for rank in ranks or () if rank not in range(self._size)]:
            raise ValueError(f"new_group was given rank {strangers[0]!r}: give ranks from 0 to {self._size - 1}")
        if self._made is None:
            self._made = [None]
        members = tuple(sorted(range(self._size) if ranks is None else ranks))
        group = Group(members, len(self._made), use_local_synchronization)
        self._made.append(group)
        return group

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
        if group_peer is None and group is None and not tag:
            return sends, tensor, peer, 0  # as most are
        return sends, tensor, self._peer(peer, group, group_peer), self._tag(tag, group)

    def _peer(self, peer, group, group_peer):
        """The other rank, from the one of two arguments that is given."""
        if group_peer is not None:
            if peer is not None:
                raise ValueError(f"a message was given rank {peer} and group rank {group_peer}: give one of them")
            ranks = self.get_process_group_ranks(group)
            if type(group_peer) is not int or not 0 <= group_peer < len(ranks):
                raise ValueError(f"a message was given group rank {group_peer!r}: give 0 to {len(ranks) - 1}")
            return ranks[group_peer]
        if peer not in (ranks := self.get_process_group_ranks(group)):
            raise ValueError(f"a message was given rank {peer!r}, which is not in the group of ranks {ranks}: give one of them")
        return peer

    def _tag(self, tag, group):
        if type(tag) is not int or tag < 0:
            raise ValueError(f"a message was given tag={tag!r}: give a whole number, 0 or more")
        return tag if group is None else (group.number, tag)

    def batch_isend_irecv(self, operations):
        if not operations or type(operations) is not list:
            raise faults.no_batch(self._rank.number, operations)
        works = self._post(self._rank, operations, caller())
        if self._made is not None:
            self._refuse_several_groups(operations)
        return works

    def _refuse_several_groups(self, operations):
        groups = {tag[0] if type(tag) is tuple else 0 for _, _, _, tag in operations}
        if len(groups) > 1:
            raise faults.several_groups(self._rank.number)

    # -- collectives

    def _call(self, asked, algorithm, place):
        """Run a collective: at once, or on the group's stream where it is asynchronous or others of the group still run."""
        group, rank = asked.group, self._rank
        rank.clock.refuse_threads(rank)
        mine = self.get_rank(group)
        if mine < 0:
            return None
        ranks = tuple(self.get_process_group_ranks(group))
        asked.refuse(mine, ranks)
        number = 0 if group is None else group.number
        if self._called is None:
            self._streams, self._called = Streams(rank), Counter()
        self._same_for_all(number, asked, place)
        run = partial(_as_torch_does, asked.run) if self._graphs else asked.run
        if asked.async_op or self._streams.busy(number):
            stream = self._streams.of(number)
            work = CollectiveWork(stream, asked, ranks, partial(run, algorithm, Members(self, group, stream)), place)
            return work if asked.async_op else work.wait() and None
        began = rank.now
        run(algorithm, Members(self, group, rank))
        rank.clock.notes.called(rank.number, asked, ranks, began, began, rank.now, False)
        return None

    def _same_for_all(self, group, asked, place):
        """The k-th collective of a group is one for all its ranks; what the others called is known to the first."""
        count = self._called[group]
        self._called[group] = count + 1
        called = self._collectives.setdefault(group, [])
        if count == len(called):
            called.append((asked, self._rank.number, place))
        elif not asked.meets(called[count][0]):
            raise faults.other_collective(count, called[count], (asked, self._rank.number, place))


def _as_torch_does(run, *given):
    with within_torch():
        return run(*given)


class Members:
    """What a collective's algorithm talks to: a group's ranks, numbered from 0, with messages apart from the program's own."""

    TAG = -1  # no program can use it: torch takes only tags from 0 on

    def __init__(self, dist, group, rank):
        self._rank, self._post = rank, dist._post  # the rank, or the stream beside it
        self._mine, self._ranks = dist.get_rank(group), range(dist.get_world_size()) if group is None else group.ranks
        self._tag = self.TAG if group is None else (group.number, self.TAG)

    def get_rank(self):
        return self._mine

    def get_world_size(self):
        return len(self._ranks)

    def isend(self, tensor, dst):
        return self._post(self._rank, (self.P2POp(self.isend, tensor, dst),), caller())[0]

    def irecv(self, tensor, src):
        return self._post(self._rank, (self.P2POp(self.irecv, tensor, src),), caller())[0]

    def send(self, tensor, dst):
        self._post(self._rank, (self.P2POp(self.isend, tensor, dst),), caller())[0].wait()

    def recv(self, tensor, src):
        self._post(self._rank, (self.P2POp(self.irecv, tensor, src),), caller())[0].wait()

    def P2POp(self, op, tensor, peer):
        return SENDS[op.__func__], tensor, self._ranks[peer], self._tag

    def batch_isend_irecv(self, operations):
        return self._post(self._rank, operations, caller())


def of_a_collective(message) -> bool:
    """Whether a message of a trace is one of those that a collective is made of."""
    return (message.tag[1] if isinstance(message.tag, tuple) else message.tag) == Members.TAG


SENDS = {SimulatedDist.isend: True, SimulatedDist.irecv: False, Members.isend: True, Members.irecv: False}


def algorithm_of(name):
    """What the simulator runs for a collective of `ringtree.collectives`, or for one of torch's functions for it."""
    return getattr(algorithms, find(name).algorithm)


def _collective(name):
    algorithm = algorithm_of(name)

    def call(dist, *args, **kwargs):
        return dist._call(calls.read(name, args, kwargs), algorithm, caller())

    return call


for _name in call_names():
    setattr(SimulatedDist, _name, _collective(_name))


def check_same_groups(dists):
    """Raise ProgramError where ranks did not call new_group for the same groups, in the same order: with torch they hang."""
    made = [[list(group.ranks) for group in each._made or [] if group and not group.among_members] for each in dists]
    for rank, groups in enumerate(made):
        if groups != made[0]:
            raise faults.ProgramError(
                f"rank {rank} called new_group for {groups or 'no group'}, and rank 0 for {made[0] or 'no group'}: "
                "every rank must call it for every group, also for those that it is not in, and in the same order"
            )
