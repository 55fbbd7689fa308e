"""Every algorithm's schedule, written down a second time as plain steps: who sends how many bytes to whom.

A schedule is a function of (p, n, itemsize, options) that yields steps: the messages of a step, (src, dst, bytes) each, and
whether the receivers reduce what comes. Nothing here runs or imports the rank programs. So what the simulator counts in a run
and what these steps give are two answers to one question, and tests hold them equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from heapq import heappop, heappush
from itertools import accumulate


def lg(size):
    return (size - 1).bit_length()


# -- the pieces of schedules ---------------------------------------------------


def cut(nbytes, parts, itemsize):
    """Bytes of each part, as tensor_split cuts: the first ones are an element longer."""
    whole, more = divmod(nbytes // itemsize, parts)
    return [(whole + (i < more)) * itemsize for i in range(parts)]


def tree(first, end, root, level=0):
    """The edges of a minimum spanning tree: (level, sender, receiver, the receiver's half of the ranks)."""
    if end - first > 1:
        middle = (first + end + 1) // 2
        left = root < middle
        partner = middle if left else first
        yield level, root, partner, range(middle, end) if left else range(first, middle)
        yield from tree(first, middle, min(root, partner), level + 1)
        yield from tree(middle, end, max(root, partner), level + 1)


def down(size, root, length):
    """A tree from its root to its leaves; length: a range of ranks to the bytes that go to them."""
    for at in range(lg(size)):
        yield [(src, dst, length(half)) for level, src, dst, half in tree(0, size, root) if level == at], False


def up(size, root, length, reduces=False):
    for messages, _ in reversed(list(down(size, root, length))):
        yield [(dst, src, nbytes) for src, dst, nbytes in messages], reduces


def ring(rings, lengths, ahead=0, reduces=False):
    """Once round every ring at the same time: the rank at place i begins with chunk i + ahead.

    lengths: for each ring, the bytes of its chunks.
    """
    for step in range(len(rings[0]) - 1):
        yield (
            [
                (rank, ring[(place + 1) % len(ring)], length[(place + ahead - step) % len(ring)])
                for ring, length in zip(rings, lengths)
                for place, rank in enumerate(ring)
            ],
            reduces,
        )


def chain_broadcast(size, root, lengths):
    ranks = [(root + place) % size for place in range(size)]
    for step in range(size - 2 + len(lengths) if size > 1 else 0):
        yield (
            [
                (ranks[place], ranks[place + 1], lengths[step - place])
                for place in range(size - 1)
                if 0 <= step - place < len(lengths)
            ],
            False,
        )


def fold(size):
    extra = size - (1 << size.bit_length() - 1)
    return [*range(0, 2 * extra, 2), *range(2 * extra, size)], [(rank, rank + 1) for rank in range(0, 2 * extra, 2)]


def swaps(workers, distance, length):
    """Every worker with the one at this distance; length: the sender's place to bytes."""
    return [(rank, workers[place ^ distance], length(place)) for place, rank in enumerate(workers)]


def distances(count):
    return [1 << i for i in range(lg(count))]


def halvings(count, n, itemsize) -> Iterator[tuple[int, list[int], list[int]]]:
    """Recursive halving of one vector, a step each: (distance, the bytes that every place gives away, and that it keeps)."""
    mine = [n] * count
    for distance in reversed(distances(count)):
        halves = [cut(length, 2, itemsize) for length in mine]
        sides = [place & distance > 0 for place in range(count)]
        mine = [half[side] for half, side in zip(halves, sides)]
        yield distance, [half[not side] for half, side in zip(halves, sides)], mine


def side_by_side(groups, schedules):
    """Schedules of equally many steps, each in a group of its own, at the same time. groups: the ranks of each."""
    for steps in zip(*schedules):
        messages = [(group[src], group[dst], nbytes) for group, (some, _) in zip(groups, steps) for src, dst, nbytes in some]
        yield messages, steps[0][1]


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
    """Whether an edge is used in odd steps: of two that meet at a sender, or at a receiver, one is and one is not.

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


# -- the schedules -------------------------------------------------------------


def one_by_one(size, root, length, inwards=False, reduces=False):
    for other in range(size):
        if other != root:
            yield [(other, root, length(other)) if inwards else (root, other, length(other))], reduces


def to_all(ranks, length, reduces=False):
    """Every rank with every other at once; length: (sender's place, receiver's place) to bytes."""
    size = len(ranks)
    places = [(place, (place + away) % size) for place in range(size) for away in range(1, size)]
    yield [(ranks[src], ranks[dst], length(src, dst)) for src, dst in places], reduces


def direct(size, root, length, inwards=False):
    """The root with every other at once, from the next one on."""
    others = [(root + away) % size for away in range(1, size)]
    yield [(other, root, length(other)) if inwards else (root, other, length(other)) for other in others], False


def scatter_lengths(size, n, itemsize):
    cuts = [0, *accumulate(cut(n, size, itemsize))]
    return lambda half: cuts[half.stop] - cuts[half.start]


def scatter_all_gather_broadcast(p, n, itemsize, options):
    yield from down(p, options["root"], scatter_lengths(p, n, itemsize))
    yield from ring([range(p)], [cut(n, p, itemsize)])


def scatter_bruck_broadcast(p, n, itemsize, options):
    yield from down(p, options["root"], scatter_lengths(p, n, itemsize))
    yield from bruck_all_gather(p, n, itemsize, options)


def greedy_edges(p, latency):
    """(sender, receiver) by places below the root, in the order in which the receivers hear."""
    free = [0]  # by place, when it can send next, in messages
    for other in range(1, p):
        sender = min(range(len(free)), key=lambda place: (free[place], place))
        yield sender, other
        free.append(free[sender] + latency)
        free[sender] += 1


def greedy_broadcast(p, n, itemsize, options):
    for sender, receiver in greedy_edges(p, options["latency"]):
        yield [((sender + options["root"]) % p, (receiver + options["root"]) % p, n)], False


def greedy_time(steps, size, machine, gamma, options):
    """Each rank passes on to all its children, one message behind the other, from when it has heard."""
    heard, free = [0.0] * size, [0.0] * size
    for ((src, dst, nbytes),), _ in steps:
        link, start = machine.link(src, dst), max(heard[src], free[src])
        free[src] = start + (link.gap + nbytes * link.beta)
        heard[dst] = start + (link.alpha + nbytes * link.beta)
    return max(heard)


def chain_ahead_time(steps, size, machine, gamma, options):
    """Each rank passes a chunk on as soon as it has come, been reduced, and the port out is free."""
    chunks, reduces = options["chunks"], steps[0][1] if steps else False
    hops: dict[int, int] = {}
    lengths: dict[int, list[int]] = {}
    for messages, _ in steps:
        for src, dst, nbytes in messages:
            hops[src] = dst
            lengths.setdefault(src, []).append(nbytes)
    src = next((rank for rank in hops if rank not in hops.values()), None)
    came, last = [0.0] * chunks, 0.0
    while src in hops:
        dst, free, now, arrived = hops[src], 0.0, 0.0, []
        link = machine.link(src, dst)
        for ready, nbytes in zip(came, lengths[src]):
            start = max(ready, free)
            free = start + (link.gap + nbytes * link.beta)
            now = max(now, start + (link.alpha + nbytes * link.beta)) + (nbytes * gamma if reduces else 0.0)
            arrived.append(now)
        src, came, last = dst, arrived, max(last, now)
    return last


def chain_reduce(p, n, itemsize, options):
    root = (options["root"] + 1) % p
    for messages, _ in chain_broadcast(p, root, cut(n, options["chunks"], itemsize)):
        yield messages, True


def doubling_all_gather(p, n, itemsize, options):
    workers, helped = fold(p)
    shards = cut(n, p, itemsize)
    cuts = [0, *accumulate(shards)]
    cuts = [cuts[worker] for worker in [*workers, p]]
    yield [(odd, even, shards[odd]) for even, odd in helped], False
    for distance in distances(len(workers)):
        yield (
            swaps(workers, distance, lambda at: cuts[at // distance * distance + distance] - cuts[at // distance * distance]),
            False,
        )
    yield [(even, odd, n) for even, odd in helped], False


def bruck_all_gather(p, n, itemsize, options):
    shards = cut(n, p, itemsize) * 2
    for distance in distances(p):
        count = min(distance, p - distance)
        yield [(rank, (rank - distance) % p, sum(shards[rank : rank + count])) for rank in range(p)], False


def halving_reduce_scatter(p, n, itemsize, options):
    workers, helped = fold(p)
    shards = cut(n, p, itemsize)
    cuts = [0, *accumulate(shards)]
    cuts = [cuts[worker] for worker in [*workers, p]]
    yield [(odd, even, n) for even, odd in helped], True
    for distance in reversed(distances(len(workers))):

        def given(place, distance=distance):
            first = (place ^ distance) // distance * distance
            return cuts[first + distance] - cuts[first]

        yield swaps(workers, distance, given), True
    yield [(even, odd, shards[odd]) for even, odd in helped], False


def bruck_reduce_scatter(p, n, itemsize, options):
    shards = cut(n, p, itemsize) * 2
    for distance in reversed(distances(p)):
        count = min(distance, p - distance)
        yield [(rank, (rank + distance) % p, sum(shards[rank + distance : rank + distance + count])) for rank in range(p)], True


def rabenseifner_reduce(p, n, itemsize, options):
    workers, helped = fold(p)
    cuts = [0, *accumulate(cut(n, len(workers), itemsize))]

    def side(place, distance):
        first = place // distance * distance
        return cuts[first + distance] - cuts[first]

    goal = workers.index(options["root"] if options["root"] in workers else options["root"] - 1)
    yield [(odd, even, n) for even, odd in helped], True
    for distance in reversed(distances(len(workers))):
        yield swaps(workers, distance, lambda place, distance=distance: side(place ^ distance, distance)), True
    for distance in distances(len(workers)):
        yield (
            [
                (workers[place], workers[place ^ distance], side(place, distance))
                for place in range(len(workers))
                if (place ^ goal) % (2 * distance) == distance
            ],
            False,
        )
    yield [(even, odd, n) for even, odd in helped if odd == options["root"]], False


def bruck_reduce(p, n, itemsize, options):
    yield from bruck_reduce_scatter(p, n, itemsize, options)
    yield from up(p, options["root"], scatter_lengths(p, n, itemsize))


def greedy_reduce(p, n, itemsize, options):
    for messages, _ in reversed(list(greedy_broadcast(p, n, itemsize, options))):
        yield [(dst, src, nbytes) for src, dst, nbytes in messages], True


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
    """What every slice sends, slice after slice: in which order their messages move, a schedule does not say."""

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


def rings_through_nodes(p, r):
    """A ring for each rank of a node: ring c leaves every node at its rank c."""
    return [[node + (leaves + 1 + place) % r for node in range(0, p, r) for place in range(r)] for leaves in range(r)]


def multi_ring_of_shards(p, n, itemsize, options, ahead=0, reduces=False):
    """Every ring carries its part of every shard, and the shard of a rank begins where that rank is, or ahead of it."""
    rings = rings_through_nodes(p, options["ranks_per_node"])
    parts = [cut(shard, len(rings), itemsize) for shard in cut(n, p, itemsize)]
    yield from ring(rings, [[parts[rank][c] for rank in each] for c, each in enumerate(rings)], ahead, reduces)


def multi_ring_all_reduce(p, n, itemsize, options):
    r = options["ranks_per_node"]
    rings = rings_through_nodes(p, r)
    lengths = [cut(part, p, itemsize) for part in cut(n, r, itemsize)]
    yield from ring(rings, lengths, 0, True)
    yield from ring(rings, lengths, 1)


def pairwise_all_to_all(p, n, itemsize, options):
    blocks = cut(n, p, itemsize)
    for step in range(1, p):
        yield [(rank, (rank + step) % p, blocks[(rank + step) % p]) for rank in range(p)], False


def direct_all_to_all(p, n, itemsize, options):
    blocks = cut(n, p, itemsize)
    yield from to_all(range(p), lambda src, dst: blocks[dst])


def bruck_all_to_all(p, n, itemsize, options):
    blocks = cut(n, p, itemsize)
    for distance in distances(p):
        moving = [away - away % distance for away in range(p) if away & distance]
        yield [(rank, (rank + distance) % p, sum(blocks[(rank + far) % p] for far in moving)) for rank in range(p)], False


def dissemination_barrier(p, n, itemsize, options):
    for distance in distances(p):
        yield [(rank, (rank + distance) % p, n) for rank in range(p)], False
