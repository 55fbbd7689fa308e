"""What speaks like `torch.distributed`: its sends and receives, for whatever carries the messages.

A class that carries messages has `get_rank`, `get_world_size` and `get_process_group_ranks`, and
`_begin(name, entries)`, which starts messages and returns their works, in order. `name` is that of the function that was
called. An entry is (whether it sends, tensor, peer, lane): `P2POp` makes them. Two messages with different lanes never meet.
A lane is the tag, or (the group's key, tag) in a group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ringtree.errors import a_kind

__all__ = ["Among", "Speaks", "no_other_rank", "of_a_collective", "tag_of"]


class Speaks:
    """`torch.distributed`'s functions for messages and for ranks of groups, over `_begin`."""

    __slots__ = ()

    get_rank: Callable[..., int]
    get_world_size: Callable[..., int]
    get_process_group_ranks: Callable[..., Sequence[int]]
    _begin: Callable[..., list]

    def isend(self, tensor, dst=None, group=None, tag=0, group_dst=None):
        """Start sending; leave `tensor` alone until the returned work is complete."""
        return self._begin("isend", [self._entry(True, tensor, dst, group, tag, group_dst)])[0]

    def irecv(self, tensor, src=None, group=None, tag=0, group_src=None):
        """Start receiving; read `tensor` only after the returned work is complete."""
        return self._begin("irecv", [self._entry(False, tensor, src, group, tag, group_src)])[0]

    def send(self, tensor, dst=None, group=None, tag=0, group_dst=None) -> None:
        """Send, and wait until the work is complete."""
        self._begin("send", [self._entry(True, tensor, dst, group, tag, group_dst)])[0].wait()

    def recv(self, tensor, src=None, group=None, tag=0, group_src=None) -> int:
        """Receive, and wait until the message has arrived; returns the sender's rank."""
        entry = self._entry(False, tensor, src, group, tag, group_src)
        self._begin("recv", [entry])[0].wait()
        return self.get_global_rank(group, group_src) if src is None else src

    def P2POp(self, op, tensor, peer=None, group=None, tag=0, group_peer=None):
        """Make an entry for `batch_isend_irecv`; `op` is this object's `isend` or `irecv`."""
        try:
            sends = SENDS[op.__func__] if op.__self__ is self else None
        except (AttributeError, KeyError):
            sends = None
        if sends is None:
            name = getattr(op, "__name__", repr(op))
            what = f"another object's {name}" if name in ("isend", "irecv") else name
            raise self._wrong(
                f"gives P2POp {what}: give it isend or irecv of the object that it belongs to, as in "
                "dist.P2POp(dist.isend, tensor, peer)"
            )
        return self._entry(sends, tensor, peer, group, tag, group_peer)

    def batch_isend_irecv(self, operations) -> list:
        """Start all sends and receives together; returns their works."""
        if not operations or type(operations) is not list:
            given = "an empty list" if operations == [] else f"{a_kind(operations)}"
            raise self._wrong(f"gives batch_isend_irecv {given}: give it a list of one or more dist.P2POp")
        try:
            lane = operations[0][3]
            for _, _, _, other in operations:
                if other != lane and _group(other) != _group(lane):
                    raise self._wrong("gives batch_isend_irecv messages of several groups: give one batch for each group")
        except TypeError:
            entry = next(each for each in operations if type(each) is not tuple)
            raise self._wrong(f"gives batch_isend_irecv a list with {a_kind(entry)}: give it a list of dist.P2POp") from None
        return self._begin("batch_isend_irecv", operations)

    def get_global_rank(self, group, group_rank) -> int:
        ranks = self.get_process_group_ranks(group)
        if type(group_rank) is not int or not 0 <= group_rank < len(ranks):
            raise ValueError(f"group rank {group_rank!r} was given: give 0 to {len(ranks) - 1}")
        return ranks[group_rank]

    def get_group_rank(self, group, global_rank) -> int:
        ranks = self.get_process_group_ranks(group)
        if global_rank not in ranks:
            raise ValueError(
                f"rank {global_rank!r} was given, which is not in the group of ranks {list(ranks)}: give one of them"
            )
        return list(ranks).index(global_rank)

    def _entry(self, sends, tensor, peer, group=None, tag=0, group_peer=None):
        """Return what `P2POp` makes, every argument checked."""
        if group_peer is not None:
            if peer is not None:
                raise ValueError(f"a message was given rank {peer} and group rank {group_peer}: give one of them")
            peer = self.get_global_rank(group, group_peer)
        elif group is not None:
            self.get_group_rank(group, peer)
        rank, size = self.get_rank(), self.get_world_size()
        if type(peer) is not int or peer == rank or not 0 <= peer < size:
            raise self._wrong(no_other_rank(peer, rank, size, sends))
        if type(tag) is not int or tag < 0:
            raise ValueError(f"a message was given tag={tag!r}: give a whole number, 0 or more")
        return sends, tensor, peer, tag if group is None else (self._key(group), tag)

    def _key(self, group):
        """Return what tells a group's messages from others."""
        return group

    def _wrong(self, what: str) -> Exception:
        return ValueError(f"rank {self.get_rank()} {what}")


SENDS = {Speaks.isend: True, Speaks.irecv: False}


def no_other_rank(peer, rank: int, size: int, sends: bool) -> str:
    """Return what to say to a rank that wants to send to, or to receive from, `peer`."""
    what = "itself" if peer == rank else f"rank {peer!r}"
    return f"wants to {'send to' if sends else 'receive from'} {what}: give another rank, from 0 to {size - 1}"


class Among(Speaks):
    """Some of the ranks, numbered from 0, as if there were no others: what a collective's algorithm talks to.

    ranks: which they are; mine: this rank's place among them. key: of the group that they are, None for all ranks.
    begin: the `_begin` of what carries their messages. They meet none of the program's own: their tag is −1, and torch
    takes only tags from 0 on.
    """

    def __init__(self, ranks, mine: int, key, begin):
        self._ranks, self._mine, self._begin = ranks, mine, begin
        self._lane = -1 if key is None else (key, -1)

    def get_rank(self, group=None) -> int:
        return self._mine

    def get_world_size(self, group=None) -> int:
        return len(self._ranks)

    def get_process_group_ranks(self, group=None) -> list[int]:
        return list(range(len(self._ranks)))

    def _entry(self, sends, tensor, peer, group=None, tag=0, group_peer=None):
        if group is not None or group_peer is not None or tag:
            raise self._wrong("gives a message of a collective a group or a tag: leave them out")
        if type(peer) is not int or peer == self._mine or not 0 <= peer < len(self._ranks):
            raise self._wrong(no_other_rank(peer, self._mine, len(self._ranks), sends))
        return sends, tensor, self._ranks[peer], self._lane


def _group(lane):
    return lane[0] if type(lane) is tuple else None


def tag_of(lane) -> int:
    return lane[1] if type(lane) is tuple else lane


def of_a_collective(lane) -> bool:
    """Return whether a message in this lane is one of those that a collective is made of."""
    return tag_of(lane) < 0
