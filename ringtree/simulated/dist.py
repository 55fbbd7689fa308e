"""torch.distributed, simulated: what a rank program talks to."""

from collections import Counter
from dataclasses import dataclass
from functools import partial

import torch

from ringtree import algorithms, calls
from ringtree.collectives import call_names, find
from ringtree.simulated import faults
from ringtree.simulated.faults import caller
from ringtree.simulated.streams import CollectiveWork, Inside, Streams
from ringtree.simulated.torch_modes import within_torch
from ringtree.speaks import Among, Speaks


@dataclass(frozen=True)
class Group:
    """Some of the ranks, as `new_group` returns them."""

    ranks: tuple
    number: int
    among_members: bool = False  # made by its members alone, with use_local_synchronization


class SimulatedDist(Speaks):
    """Speaks like `torch.distributed`, on a virtual clock; made by `simulate`, one for each rank.

    Collectives run a named algorithm of `ringtree.algorithms`, so that their cost is known: see `algorithm_of`; a ring goes
    once through each network card where nodes have several. What torch refuses with any backend is refused, for its reason.
    Where backends differ, tensors with gaps and lengths that cannot be shared out are refused as by NCCL, lists of several
    lengths as by Gloo; and types that Gloo does not reduce are taken.
    """

    __slots__ = ("_rank", "_size", "_post", "_made", "_streams", "_called", "_collectives", "_graphs", "_machine")
    # and no __getattr__, which would make every call of a method slower

    ReduceOp = torch.distributed.ReduceOp

    def __init__(self, rank, messages):
        self._rank, self._size, self._post = rank, messages.size, messages.post
        self._collectives = messages.collectives  # by group, what was called in it
        self._graphs, self._machine = messages.graphs, messages.machine
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

    def get_process_group_ranks(self, group=None):
        if group is None:
            return list(range(self._size))
        if type(group) is not Group:
            raise ValueError(f"group={group!r} is not a group: give one that new_group returned, or leave it out for all ranks")
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

    def _entry(self, sends, tensor, peer, group=None, tag=0, group_peer=None):
        if group is None and group_peer is None and not tag:
            return sends, tensor, peer, 0  # as most are; Messages.post looks at the peer
        return super()._entry(sends, tensor, peer, group, tag, group_peer)

    def _key(self, group):
        return group.number

    def _begin(self, name, entries):
        return self._post(self._rank, entries, caller(3))

    def _wrong(self, what):
        return faults.misuse(self._rank.number, what)

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
            rank.called = self._called
        self._same_for_all(number, asked, place)
        run = partial(_as_torch_does, asked.run) if self._graphs else asked.run
        algorithm = self._through_each_card(algorithm, ranks)
        if asked.async_op or self._streams.busy(number):
            stream = self._streams.of(number)
            inside = Inside(asked, ranks, number, self._called[number])
            work = CollectiveWork(stream, inside, partial(run, algorithm, self._among(group, mine, ranks, stream)), place)
            return work if asked.async_op else work.wait() and None
        began = rank.now
        rank.inside = Inside(asked, ranks, number, self._called[number])
        try:
            run(algorithm, self._among(group, mine, ranks, rank))
        finally:
            rank.inside = None
        rank.clock.notes.called(rank.number, asked, ranks, began, began, rank.now, False)
        return None

    def _through_each_card(self, algorithm, ranks):
        """A ring over several nodes with several cards is laid once through each card, as libraries do."""
        machine = self._machine
        several = THROUGH_EACH_CARD.get(algorithm.__name__) if (machine.cards_per_node or 1) > 1 else None
        if several is None:
            return algorithm
        nodes = [machine.node(rank) for rank in ranks]
        here = nodes.count(nodes[0])
        if here in (1, len(nodes)) or nodes != [node for node in dict.fromkeys(nodes) for _ in range(here)]:
            return algorithm  # one rank a node, one node, or nodes of unequal shares: there is one ring
        return partial(getattr(algorithms, several), ranks_per_node=here)

    def _among(self, group, mine, ranks, poster):
        """Return what an algorithm talks to. poster: this rank, or the stream beside it."""
        return Among(
            ranks, mine, None if group is None else group.number, lambda name, entries: self._post(poster, entries, caller(3))
        )

    def _same_for_all(self, group, asked, place):
        """The k-th collective of a group is one for all its ranks; what the others called is known to the first."""
        count = self._called[group]
        self._called[group] = count + 1
        called = self._collectives.setdefault(group, [])
        if count == len(called):
            called.append((asked, self._rank.number, place))
        elif not asked.meets(called[count][0]):
            raise faults.other_collective(count, called[count], (asked, self._rank.number, place))


# What lays an algorithm once through each card, by name.
THROUGH_EACH_CARD = {
    "ring_all_gather": "multi_ring_all_gather",
    "ring_reduce_scatter": "multi_ring_reduce_scatter",
    "ring_all_reduce": "multi_ring_all_reduce",
    "two_trees_all_reduce": "multi_tree_all_reduce",
}


def _as_torch_does(run, *given):
    with within_torch():
        return run(*given)


def algorithm_of(name):
    """Return what the simulator runs for a collective of `ringtree.collectives`, or for one of torch's functions for it."""
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
                "every rank must call it for every group, even for those that it is not in, and in the same order"
            )
