"""The schedules of the all-reduces: over links that are alike, over nodes, and over trees."""

from __future__ import annotations

from functools import cache
from heapq import heappop, heappush

from ringtree.theory.node_schedules import rings_through_nodes
from ringtree.theory.schedules import (
    bruck_all_gather,
    bruck_reduce_scatter,
    cut,
    distances,
    down,
    fold,
    halvings,
    ring,
    side_by_side,
    swaps,
    to_all,
    up,
)

# -- two trees (Sanders, Speck, Träff 2009) ---------------------------------------


def in_order(size):
    """(parent, child) of a binary tree whose places are numbered in order, below place 0; level by level.

    A subtree of m places has a full tree on its left: its root is at the largest power of two up to m.
    """
    subtrees = [(0, 0, size - 1)]
    for parent, before, places in subtrees:
        if places:
            left = (1 << places.bit_length() - 1) - 1
            root = before + left + 1
            yield parent, root
            subtrees += [(root, before, left), (root, root, places - left - 1)]


@cache
def two_trees(size, ranks_per_node):
    """(tree, parent, child) to the step in which a first chunk goes down, as the paper sends: one chunk in two steps.

    The second tree is the first one mirrored where the number of places is even, and otherwise shifted by one.
    """
    nodes = -(-size // ranks_per_node)
    places = range(1, nodes)
    other = [0, *(reversed(places) if nodes % 2 else [place % (nodes - 1) + 1 for place in places])]
    edges = [
        *((0, parent, child) for parent, child in in_order(nodes)),
        *((1, other[parent], other[child]) for parent, child in in_order(nodes)),
    ]
    odd = odd_edges(edges)
    came = {(tree, node): tree - 1 for tree in (0, 1) for node in range(nodes)}
    for tree, parent, child in edges:
        earliest = came[tree, parent] + 1
        came[tree, child] = earliest + (earliest % 2 != odd[tree, parent, child])
    down = {(tree, parent * ranks_per_node, child * ranks_per_node): came[tree, child] for tree, parent, child in edges}
    for rank in range(size):
        first, place = rank - rank % ranks_per_node, rank % ranks_per_node
        if place:  # a chain below its node's first rank
            down |= {(tree, rank - 1, rank): came[tree, first // ranks_per_node] + place for tree in (0, 1)}
    return down


def odd_edges(edges):
    """Return whether an edge is used in odd steps: of two that meet at a sender, or at a receiver, one is and one is not.

    At each end an edge meets one other at most, so that they lie in rows, along which even and odd take turns.
    """
    met = {(end, edge[end]): [] for edge in edges for end in (1, 2)}
    for edge in edges:
        for end in (1, 2):
            met[end, edge[end]].append(edge)

    def partner(edge, end):
        return next((each for each in met[end, edge[end]] if each != edge), None)

    odd = {}
    for start in edges:
        for edge, end, turn in ((start, 1, False), (partner(start, 2), 1, True)):
            while edge and edge not in odd:
                odd[edge] = turn
                edge, end, turn = partner(edge, end), 3 - end, not turn
    return odd


def mst_all_reduce(p, n, itemsize, options):
    yield from up(p, 0, lambda half: n, reduces=True)
    yield from down(p, 0, lambda half: n)


def ring_all_reduce(p, n, itemsize, options):
    lengths = [cut(n, p, itemsize)]
    yield from ring([range(p)], lengths, 0, True)
    yield from ring([range(p)], lengths, 1)


def doubling_all_reduce(p, n, itemsize, options):
    workers, helped = fold(p)
    yield [(odd, even, n) for even, odd in helped], True
    for distance in distances(len(workers)):
        yield swaps(workers, distance, lambda at: n), True
    yield [(even, odd, n) for even, odd in helped], False


def rabenseifner_all_reduce(p, n, itemsize, options):
    workers, helped = fold(p)
    halving = list(halvings(len(workers), n, itemsize))
    yield [(odd, even, n) for even, odd in helped], True
    for distance, given, _ in halving:
        yield swaps(workers, distance, given.__getitem__), True
    for distance, _, kept in reversed(halving):
        yield swaps(workers, distance, kept.__getitem__), False
    yield [(even, odd, n) for even, odd in helped], False


def bruck_all_reduce(p, n, itemsize, options):
    yield from bruck_reduce_scatter(p, n, itemsize, options)
    yield from bruck_all_gather(p, n, itemsize, options)


def one_shot_all_reduce(p, n, itemsize, options):
    yield from to_all(range(p), lambda src, dst: n, True)


def two_shot_all_reduce(p, n, itemsize, options):
    shards = cut(n, p, itemsize)
    yield from to_all(range(p), lambda src, dst: shards[dst], True)
    yield from to_all(range(p), lambda src, dst: shards[src])


def in_slices(of_one):
    """Yield what every slice sends, slice after slice: in which order their messages move, a schedule does not say."""

    def steps(p, n, itemsize, options):
        for part in cut(n, options["slices"], itemsize):
            yield from of_one(p, part, itemsize, options)

    return steps


def two_level_direct_all_reduce(p, n, itemsize, options, shots):
    """shots: 2 for a reduce-scatter and an all-gather between nodes, 1 for whole chunks to all."""
    r = options["ranks_per_node"]
    chunks, nodes = cut(n, r, itemsize), [range(node, node + r) for node in range(0, p, r)]
    rails = [range(place, p, r) for place in range(r)]
    yield from side_by_side(nodes, [to_all(range(r), lambda src, dst: chunks[dst], True) for _ in nodes])
    across = two_shot_all_reduce if shots == 2 else one_shot_all_reduce
    yield from side_by_side(rails, [across(p // r, chunk, itemsize, options) for chunk in chunks])
    yield from side_by_side(nodes, [to_all(range(r), lambda src, dst: chunks[src]) for _ in nodes])


def two_trees_all_reduce(p, n, itemsize, options):
    lengths = [cut(half, options["chunks"], itemsize) for half in cut(n, 2, itemsize)]
    steps = {}
    for (tree, parent, child), first in sorted(two_trees(p, options["ranks_per_node"]).items()):
        for i, nbytes in enumerate(lengths[tree]):
            steps.setdefault(first + 2 * i, []).append((parent, child, nbytes))
    for step in sorted(steps, reverse=True):
        yield [(child, parent, nbytes) for parent, child, nbytes in steps[step]], True
    for step in sorted(steps):
        yield steps[step], False


def multi_tree_all_reduce(p, n, itemsize, options):
    r = options["ranks_per_node"]
    turned = [[node + (place + c) % r for node in range(0, p, r) for place in range(r)] for c in range(r)]
    pairs = [two_trees_all_reduce(p, part, itemsize, options) for part in cut(n, r, itemsize)]
    yield from side_by_side(turned, pairs)


def chain_tree_all_reduce(p, n, itemsize, options):
    """One step for each edge and direction, from the leaves up and then down, with all its chunks."""
    edges = chain_tree_edges(p, options["ranks_per_node"])
    lengths = cut(n, options["chunks"], itemsize)
    for child, parent in reversed(edges):
        yield [(child, parent, nbytes) for nbytes in lengths], True
    for child, parent in edges:
        yield [(parent, child, nbytes) for nbytes in lengths], False


def chain_tree_edges(p, ranks_per_node):
    """(child, parent), parents first, and a parent's children in the order in which it serves them."""
    nodes = -(-p // ranks_per_node)

    def served(rank):
        node, place = divmod(rank, ranks_per_node)
        inside = [rank + 1] if place + 1 < ranks_per_node and rank + 1 < p else []
        others = [child * ranks_per_node for parent, child in in_order(nodes) if parent == node and place == 0]
        return [(child, rank) for child in inside + others]

    edges = served(0)
    for child, _ in edges:
        edges += served(child)
    return edges


def chain_tree_time(steps, size, machine, gamma, options):
    """Chunk after chunk: a rank hears from its children in turn and passes on without waiting.

    Upwards a parent takes one message after the other, and no port is asked for two. Downwards the port out of a parent serves
    its children as their chunks become ready, of those ready at once the earlier chunk first.
    """
    if not steps:
        return 0.0
    edges = [(messages[0][1], messages[0][0]) for messages, _ in steps[len(steps) // 2 :]]
    lengths = [nbytes for _, _, nbytes in steps[0][0]]
    children = {rank: [child for child, parent in edges if parent == rank] for rank in range(size)}
    now, busy = [0.0] * size, [0.0] * size
    bottom_up = [child for child, _ in reversed(edges)] + [0]

    def took(src, dst, nbytes):
        link = machine.link(src, dst)
        return link.alpha + nbytes * link.beta

    for nbytes in lengths:
        for rank in bottom_up:
            for child in children[rank]:
                busy[child] = max(now[rank], now[child]) + took(child, rank, nbytes)
                now[rank] = busy[child] + nbytes * gamma
    now = [max(pair) for pair in zip(now, busy)]  # every rank waits until its last chunk is up
    came = {0: [now[0]] * len(lengths)} | {child: [] for child, _ in edges}
    for rank in came:  # parents first
        below = [child for child, parent in edges if parent == rank]
        ready = [(max(came[rank][0], now[child]), 0, place) for place, child in enumerate(below)]
        free = 0.0
        while ready:
            when, chunk, place = heappop(ready)
            child = below[place]
            link, start = machine.link(rank, child), max(when, free)
            free = start + (link.gap + lengths[chunk] * link.beta)
            end = start + (link.alpha + lengths[chunk] * link.beta)
            came[child].append(end)
            now[rank] = max(now[rank], end)
            if chunk + 1 < len(lengths):
                heappush(ready, (max(came[rank][chunk + 1], end), chunk + 1, place))
    return max(now + [ends[-1] for ends in came.values()])


def hierarchical_ring_all_reduce(p, n, itemsize, options):
    r = options["ranks_per_node"]
    chunks = cut(n, r, itemsize)
    nodes = [range(first, first + r) for first in range(0, p, r)]
    across = [range(place, p, r) for place in range(r)]
    parts = [cut(chunks[(place + 1) % r], p // r, itemsize) for place in range(r)]
    yield from ring(nodes, [chunks] * len(nodes), 0, True)
    yield from ring(across, parts, 0, True)
    yield from ring(across, parts, 1)
    yield from ring(nodes, [chunks] * len(nodes), 1)


def two_level_all_reduce(p, n, itemsize, options, across):
    """Halving inside every node, the schedule `across` for each chunk, doubling inside every node."""
    r = options["ranks_per_node"]
    nodes = [range(first, first + r) for first in range(0, p, r)]
    inside = list(side_by_side(nodes, [rabenseifner_all_reduce(r, n, itemsize, options) for _ in nodes]))
    workers, _ = fold(r)
    chunks = [[n], *(mine for _, _, mine in halvings(len(workers), n, itemsize))][-1]
    yield from inside[: len(inside) // 2]
    yield from side_by_side(
        [range(worker, p, r) for worker in workers], [across(p // r, chunk, itemsize, options) for chunk in chunks]
    )
    yield from inside[len(inside) // 2 :]


def node_leader_all_reduce(p, n, itemsize, options):
    r = options["ranks_per_node"]
    trees = [
        [
            (node + place + distance, node + place, n)
            for node in range(0, p, r)
            for place in range(0, r - distance, 2 * distance)
        ]
        for distance in distances(r)
    ]
    for messages in trees:
        yield messages, True
    yield from side_by_side([range(0, p, r)], [doubling_all_reduce(p // r, n, itemsize, options)])
    for messages in reversed(trees):
        yield [(leader, child, nbytes) for child, leader, nbytes in messages], False


def multi_ring_all_reduce(p, n, itemsize, options):
    r = options["ranks_per_node"]
    rings = rings_through_nodes(p, r)
    lengths = [cut(part, p, itemsize) for part in cut(n, r, itemsize)]
    yield from ring(rings, lengths, 0, True)
    yield from ring(rings, lengths, 1)
