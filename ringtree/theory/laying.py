"""A ring, a chain or a pair of trees laid once through each network card of a node, each with its part of the vector.

One ring through a machine leaves every node by one card. Where a node has several, libraries lay as many rings, and ring c
leaves every node at the first rank of card c. The schedule of such a program is that of one ring, so often side by side.
"""

from __future__ import annotations

from ringtree.errors import UsageError
from ringtree.theory.node_schedules import rings_through_nodes
from ringtree.theory.schedules import cut, side_by_side


def orders(p: int, machine) -> list[list[int]]:
    """The ranks in the order of each ring: ring c leaves every node at the first rank of card c.

    Raises UsageError for ranks that make no whole nodes, and for cards that do not share out a node's ranks evenly.
    """
    r, cards = machine.ranks_per_node, machine.cards_per_node
    if p % r or r % cards:
        raise UsageError(
            f"{p} ranks on nodes of {r} ranks and {cards} cards: a ring for each card needs whole nodes, and as many ranks for "
            'every card; give others, or cards="one" for a single ring'
        )
    return rings_through_nodes(p, r)[:: r // cards]


def steps_through_each_card(row, p, nbytes, itemsize, options, machine):
    """The steps of `row` laid once through each card. A root stands where it is: each chain begins, or ends, at it."""
    rings = orders(p, machine)
    parts = cut(nbytes, len(rings), itemsize)
    schedules = []
    for ring, part in zip(rings, parts):
        inside = {**options, "root": ring.index(options["root"])}
        if "ranks_per_node" in row.taken:
            inside["ranks_per_node"] = machine.ranks_per_node
        schedules.append(row.steps(p, part, itemsize, inside))
    return list(side_by_side(rings, schedules))
