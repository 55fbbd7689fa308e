"""Every algorithm's schedule, written down a second time as plain steps: who sends how many bytes to whom.

A schedule is a function of (p, n, itemsize, options) that yields steps: the messages of a step, (src, dst, bytes) each, and
whether the receivers reduce what comes. Nothing here runs or imports the rank programs. So what the simulator counts in a run
and what these steps give are two answers to one question, and tests hold them equal.
"""

from __future__ import annotations

from collections.abc import Iterator
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
