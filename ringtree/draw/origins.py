"""Who gave what to whom: told by the collective's meaning, or by the messages of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ringtree.collectives import find
from ringtree.errors import UsageError
from ringtree.trace import Trace


class Moved(NamedTuple):
    """made_of: by rank and box, the (rank, box) that the box was made of before, or None where nobody says.

    gave: (giver, receiver) in order; a rank that keeps what it had gives to itself.
    """

    made_of: list[list[frozenset | None]]
    gave: list[tuple[int, int]]


def origins(by: str | Trace | None, before: list, after: list, root: int = 0, groups: Sequence | None = None) -> Moved:
    """Return what turned `before` into `after`, each by rank a list of boxes or None.

    by: a collective's name, whose meaning in `ringtree.collectives` is applied; the trace of a run; None, where nobody says.
    root: of the collective. groups: lists of ranks, each of which calls it apart; left out, all ranks together.

    Raises UsageError where the ranks hold another number of boxes than the collective makes, or other numbers than it copies.
    """
    if by is None:
        return Moved([[None] * len(held or []) for held in after], [])
    if isinstance(by, Trace):
        return _of_messages(by, before, after)
    made_of = [[None] * len(held or []) for held in after]
    for group in groups or [range(len(before))]:
        for rank, boxes in _of_collective(find(by), before, after, list(group), root).items():
            made_of[rank] = boxes
    _check(by, made_of, before, after)
    givers = [sorted({rank for box in boxes for rank, _ in box or ()}) for boxes in made_of]
    return Moved(made_of, [(src, dst) for dst, each in enumerate(givers) for src in each])


def _of_collective(row, before, after, group, root) -> dict[int, list]:
    """The collective's meaning, applied to labels in place of numbers."""
    labels = [_blocks(row.before, row, before[rank], after[rank], place, len(group), rank) for place, rank in enumerate(group)]
    found = {}
    for place, rank in enumerate(group):
        made = row.meaning(labels, place, group.index(root) if root in group else 0, _together)
        if made is None or after[rank] is None:
            continue
        boxes, held = [box for block in made for box in block], len(after[rank])
        if row.after == "shard" and held == len(boxes) * len(group) > len(boxes):  # in place, among what is not promised
            boxes = [None] * place * len(boxes) + boxes + [None] * (len(group) - 1 - place) * len(boxes)
        if len(boxes) != held:
            raise UsageError(
                f"rank {rank} was given with {held} boxes after the {row.name}, which makes {len(boxes)} of what was given "
                "before: give what the ranks hold before and after the same call"
            )
        found[rank] = boxes
    return found


def _blocks(kind, row, before, after, place, size, rank) -> list[tuple]:
    """Return what a rank has before, as blocks of labels: as many as the collective counts in."""
    labels = [frozenset({(rank, box)}) for box in range(len(before or []))]
    if kind == "shard":
        in_place = before and after and len(before) == len(after) and len(before) % size == 0 and size > 1
        part = len(labels) // size
        return [tuple(labels[place * part : (place + 1) * part] if in_place else labels)]
    if not row.sharded:
        return [(label,) for label in labels]
    part = len(labels) // size
    return [tuple(labels[block * part : (block + 1) * part]) for block in range(size)]


def _together(blocks) -> tuple:
    return tuple(frozenset().union(*boxes) for boxes in zip(*blocks))


def _check(by, made_of, before, after) -> None:
    """A box that was copied holds what its origin holds."""
    for rank, boxes in enumerate(made_of):
        for place, origin in enumerate(boxes):
            if origin and len(origin) == 1:
                ((giver, box),) = origin
                if before[giver][box] != after[rank][place]:
                    raise UsageError(
                        f"rank {rank} holds {after[rank][place]} where {by} puts {before[giver][box]} of rank {giver}: "
                        "give the call that was made, and what the ranks held before and after it"
                    )


def _of_messages(trace: Trace, before, after) -> Moved:
    """A box that a message may have brought or left as it was; one that was computed has no single origin."""
    if trace.size != len(before):
        raise UsageError(f"the picture of {len(before)} ranks was given a trace of {trace.size}: give one of the same ranks")
    gave = list(dict.fromkeys((message.src, message.dst) for message in trace if message.nbytes))
    made_of = []
    for rank, held in enumerate(after):
        senders = [src for src, dst in gave if dst == rank]
        made_of.append([_traced(rank, place, value, senders, before) for place, value in enumerate(held or [])])
    return Moved(made_of, gave)


def _traced(rank, place, value, senders, before) -> frozenset | None:
    own = before[rank] or []
    if place < len(own) and own[place] == value:
        return frozenset({(rank, place)})
    found = [(src, box) for src in senders for box, given in enumerate(before[src] or []) if given == value]
    return frozenset(found) if len(found) == 1 else None
