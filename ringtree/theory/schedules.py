"""What every algorithm costs: exactly, in whole chunks, for any p and n; and as the textbooks say.

    cost_of(ring_all_reduce, 8, 1 << 20, Link(10e-6, 1 / 450e9))
    Cost(rounds=14, sent=(1835008, …), received=(1835008, …), time=…)

An algorithm's schedule is written down here a second time, as plain steps: who sends how
many bytes to whom. Nothing of it runs the rank programs, so that what the simulator counts
in a run, and what these formulas give, are two answers to one question; tests hold them
equal. `ALGORITHMS` lists all of them, and `lower_bound` what no algorithm can beat.

The rules are the simulator's: a message takes α + nβ and starts when both of its ranks have
come to it, a rank goes on when all its messages of a step have ended, and reducing takes γ a
byte. Links that the ranks of a node share are not counted in.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from itertools import accumulate

from ringtree import algorithms
from ringtree.algorithms.all_reduce import above, two_trees
from ringtree.cost import Link, Machine

__all__ = ["ALGORITHMS", "Algorithm", "Bound", "Cost", "cost_of", "find", "lower_bound", "textbook_time"]


@dataclass(frozen=True)
class Cost:
    """rounds: messages one after the other (the time at α = 1, β = γ = 0). sent, received: bytes
    by rank. time: from the first start to the last end, seconds."""

    rounds: int
    sent: tuple[int, ...]
    received: tuple[int, ...]
    time: float


@dataclass(frozen=True)
class Bound:
    """No algorithm can do with less: rounds; bytes that some rank sends or receives, and bytes
    that some rank reduces, both as a fraction of n."""

    rounds: int
    moved: float
    reduced: float = 0.0


@dataclass(frozen=True)
class Algorithm:
    """One row of the table.

    program: the function of `ringtree.algorithms`. steps: its schedule, (p, n, itemsize, options)
    to steps, each a list of messages (src, dst, bytes) and whether the receivers reduce what comes.
    textbook: the cost as books give it; form: the same as a function (p, n, link, gamma, options) to
    seconds; holds: where that is exact, (p, elements, options) to bool. source: key of the reference.
    """

    collective: str
    program: Callable
    steps: Callable
    textbook: str
    form: Callable | None
    holds: Callable
    source: str
    time: Callable | None = None

    @property
    def name(self) -> str:
        return self.program.__name__


OPTIONS = {"root": 0, "chunks": 8, "ranks_per_node": 8}  # their defaults are those of the programs


def cost_of(program, size, nbytes, machine, *, gamma=0.0, itemsize=4, **options) -> Cost:
    """The exact cost of one of our algorithms on `size` ranks.

    nbytes: the full vector, a whole number of elements of `itemsize` bytes (for an all-to-all,
    all blocks of one rank, cut as `tensor_split` cuts). machine: a Link or a Machine. options:
    root, chunks, ranks_per_node, for the programs that have them. Raises ValueError for sizes and
    options that cannot be.
    """
    row, options = find(program), _checked(find(program), size, options)
    if size < 1 or nbytes < 0 or nbytes % itemsize:
        raise ValueError(
            f"cost_of got {size} ranks and {nbytes} bytes in elements of {itemsize}: give at least one rank, and whole elements"
        )
    machine = Machine(machine) if isinstance(machine, Link) else machine
    steps = list(row.steps(size, nbytes, itemsize, options))
    sent, received = [0] * size, [0] * size
    for messages, _ in steps:
        for src, dst, length in messages:
            sent[src] += length
            received[dst] += length
    time = row.time or _time
    rounds = time(steps, size, Machine(Link(1.0, 0.0)), 0.0, options)
    return Cost(round(rounds), tuple(sent), tuple(received), time(steps, size, machine, gamma, options))


def textbook_time(program, size, nbytes, link, *, gamma=0.0, itemsize=4, **options) -> float | None:
    """The textbook's time for this p and n, or None where its form does not hold exactly."""
    row, options = find(program), _checked(find(program), size, options)
    if row.form is None or nbytes % itemsize or not row.holds(size, nbytes // itemsize, options):
        return None
    return row.form(size, nbytes, link, gamma, options)


def find(program) -> Algorithm:
    """The row of an algorithm, from its function or its name."""
    for row in ALGORITHMS:
        if program in (row.program, row.name):
            return row
    raise ValueError(f"{program!r} is none of our algorithms: give one of {', '.join(row.name for row in ALGORITHMS)}")


def lower_bound(collective, size) -> Bound:
    """What a collective needs on `size` ranks at least, whatever the algorithm (Chan et al. 2007).

    With n the full vector, some rank sends or receives moved·n bytes. The bounds hold one by one: an
    algorithm that meets one may miss the other. For shards of one length.
    """
    part = (size - 1) / size
    moved = {"broadcast": min(size - 1, 1), "reduce": min(size - 1, 1), "all-reduce": 2 * part, "barrier": 0}
    reducing = collective in ("reduce", "reduce-scatter", "all-reduce")
    return Bound(_lg(size), moved.get(collective, part), part if reducing else 0.0)


def _checked(row, size, options):
    """All options, those that are not given with their defaults."""
    known = [name for name in OPTIONS if name in signature(row.program).parameters]
    for name, value in options.items():
        if name not in known:
            has = " and ".join(f"{each}=" for each in known) or "none"
            raise ValueError(f"{row.name} has no option {name}: it has {has}; leave {name}= out")
        most = size - 1 if name == "root" else math.inf
        least = 0 if name == "root" else 1
        if type(value) is not int or not least <= value <= most:
            wanted = f"a rank, 0 to {most}" if name == "root" else "a whole number, 1 or more"
            raise ValueError(f"{row.name} got {name}={value!r}: give {wanted}")
    return {**OPTIONS, **options}


def _lg(size):
    return (size - 1).bit_length()


def _time(steps, size, machine, gamma, options):
    """When the last rank has done all its steps."""
    now = [0.0] * size
    for messages, reduces in steps:
        after = {}
        for src, dst, nbytes in messages:
            link = machine.link(src, dst)
            end = max(now[src], now[dst]) + link.alpha + nbytes * link.beta
            after[src], after[dst] = max(end, after.get(src, end)), max(end, after.get(dst, end))
        for rank, end in after.items():
            now[rank] = end
        for _, dst, nbytes in messages if reduces else ():
            now[dst] += nbytes * gamma
    return max(now)


# -- the pieces of schedules ---------------------------------------------------


def _shards(nbytes, parts, itemsize):
    """Bytes of each part, as tensor_split cuts: the first ones are an element longer."""
    whole, more = divmod(nbytes // itemsize, parts)
    return [(whole + (i < more)) * itemsize for i in range(parts)]


def _tree(first, end, root, level=0):
    """The edges of a minimum spanning tree: (level, sender, receiver, the receiver's half of the ranks)."""
    if end - first > 1:
        middle = (first + end + 1) // 2
        left = root < middle
        partner = middle if left else first
        yield level, root, partner, range(middle, end) if left else range(first, middle)
        yield from _tree(first, middle, min(root, partner), level + 1)
        yield from _tree(middle, end, max(root, partner), level + 1)


def _down(size, root, length):
    """A tree from its root to its leaves; length: a range of ranks to the bytes that go to them."""
    for at in range(_lg(size)):
        yield [(src, dst, length(half)) for level, src, dst, half in _tree(0, size, root) if level == at], False


def _up(size, root, length, reduces=False):
    for messages, _ in reversed(list(_down(size, root, length))):
        yield [(dst, src, nbytes) for src, dst, nbytes in messages], reduces


def _ring(rings, lengths, ahead=0, reduces=False):
    """Once round every ring at the same time: the rank at place i begins with chunk i + ahead.

    lengths: for each ring, the bytes of its chunks.
    """
    for step in range(len(rings[0]) - 1):
        yield [
            (rank, ring[(place + 1) % len(ring)], length[(place + ahead - step) % len(ring)])
            for ring, length in zip(rings, lengths)
            for place, rank in enumerate(ring)
        ], reduces


def _chain(size, root, lengths):
    ranks = [(root + place) % size for place in range(size)]
    for step in range(size - 2 + len(lengths) if size > 1 else 0):
        yield [
            (ranks[place], ranks[place + 1], lengths[step - place])
            for place in range(size - 1)
            if 0 <= step - place < len(lengths)
        ], False


def _workers(size):
    extra = size - (1 << size.bit_length() - 1)
    return [*range(0, 2 * extra, 2), *range(2 * extra, size)], [(rank, rank + 1) for rank in range(0, 2 * extra, 2)]


def _swaps(workers, distance, length):
    """Every worker with the one at this distance; length: the sender's place to bytes."""
    return [(rank, workers[place ^ distance], length(place)) for place, rank in enumerate(workers)]


def _distances(count):
    return [1 << i for i in range(_lg(count))]


# -- the schedules -------------------------------------------------------------


def _flat(size, root, length, inwards=False, reduces=False):
    for other in range(size):
        if other != root:
            yield [(other, root, length(other)) if inwards else (root, other, length(other))], reduces


def _scatter_lengths(size, n, itemsize):
    cuts = [0, *accumulate(_shards(n, size, itemsize))]
    return lambda half: cuts[half.stop] - cuts[half.start]


def _scatter_all_gather(p, n, itemsize, options):
    yield from _down(p, options["root"], _scatter_lengths(p, n, itemsize))
    yield from _ring([range(p)], [_shards(n, p, itemsize)])


def _chain_reduce(p, n, itemsize, options):
    root = (options["root"] + 1) % p
    for messages, _ in _chain(p, root, _shards(n, options["chunks"], itemsize)):
        yield messages, True


def _doubling_all_gather(p, n, itemsize, options):
    workers, helped = _workers(p)
    shards = _shards(n, p, itemsize)
    cuts = [0, *accumulate(shards)]
    cuts = [cuts[worker] for worker in [*workers, p]]
    yield [(odd, even, shards[odd]) for even, odd in helped], False
    for distance in _distances(len(workers)):
        yield (
            _swaps(workers, distance, lambda at: cuts[at // distance * distance + distance] - cuts[at // distance * distance]),
            False,
        )
    yield [(even, odd, n) for even, odd in helped], False


def _bruck_all_gather(p, n, itemsize, options):
    shards = _shards(n, p, itemsize) * 2
    for distance in _distances(p):
        count = min(distance, p - distance)
        yield [(rank, (rank - distance) % p, sum(shards[rank : rank + count])) for rank in range(p)], False


def _halving(p, n, itemsize, options):
    workers, helped = _workers(p)
    shards = _shards(n, p, itemsize)
    cuts = [0, *accumulate(shards)]
    cuts = [cuts[worker] for worker in [*workers, p]]
    yield [(odd, even, n) for even, odd in helped], True
    for distance in reversed(_distances(len(workers))):

        def given(place, distance=distance):
            first = (place ^ distance) // distance * distance
            return cuts[first + distance] - cuts[first]

        yield _swaps(workers, distance, given), True
    yield [(even, odd, shards[odd]) for even, odd in helped], False


def _mst_all_reduce(p, n, itemsize, options):
    yield from _up(p, 0, lambda half: n, reduces=True)
    yield from _down(p, 0, lambda half: n)


def _ring_all_reduce(p, n, itemsize, options):
    lengths = [_shards(n, p, itemsize)]
    yield from _ring([range(p)], lengths, 0, True)
    yield from _ring([range(p)], lengths, 1)


def _doubling_all_reduce(p, n, itemsize, options):
    workers, helped = _workers(p)
    yield [(odd, even, n) for even, odd in helped], True
    for distance in _distances(len(workers)):
        yield _swaps(workers, distance, lambda at: n), True
    yield [(even, odd, n) for even, odd in helped], False


def _rabenseifner(p, n, itemsize, options):
    workers, helped = _workers(p)
    mine, halving = [n] * len(workers), []
    for distance in reversed(_distances(len(workers))):
        halves = [_shards(length, 2, itemsize) for length in mine]
        sides = [place & distance > 0 for place in range(len(workers))]
        mine = [half[side] for half, side in zip(halves, sides)]
        halving.append((distance, [half[not side] for half, side in zip(halves, sides)], mine))
    yield [(odd, even, n) for even, odd in helped], True
    for distance, given, _ in halving:
        yield _swaps(workers, distance, given.__getitem__), True
    for distance, _, kept in reversed(halving):
        yield _swaps(workers, distance, kept.__getitem__), False
    yield [(even, odd, n) for even, odd in helped], False


def _two_trees(p, n, itemsize, options):
    lengths = [_shards(half, options["chunks"], itemsize) for half in _shards(n, 2, itemsize)]
    steps = {}
    for (tree, parent, child), first in two_trees(p).items():
        for i, nbytes in enumerate(lengths[tree]):
            steps.setdefault(first + 2 * i, []).append((parent, child, nbytes))
    for step in sorted(steps, reverse=True):
        yield [(child, parent, nbytes) for parent, child, nbytes in steps[step]], True
    for step in sorted(steps):
        yield steps[step], False


def _chain_tree(p, n, itemsize, options):
    """One step for each edge and direction, from the leaves up and then down, with all its chunks."""
    edges = _chain_tree_edges(p, options["ranks_per_node"])
    lengths = _shards(n, options["chunks"], itemsize)
    for child, parent in reversed(edges):
        yield [(child, parent, nbytes) for nbytes in lengths], True
    for child, parent in edges:
        yield [(parent, child, nbytes) for nbytes in lengths], False


def _chain_tree_edges(p, ranks_per_node):
    """(child, parent), parents first, and a parent's children in the order in which it serves them."""
    nodes = -(-p // ranks_per_node)

    def served(rank):
        node, place = divmod(rank, ranks_per_node)
        inside = [rank + 1] if place + 1 < ranks_per_node and rank + 1 < p else []
        others = [at * ranks_per_node for at in range(1, nodes) if above(at, nodes) == node] if place == 0 else []
        return [(child, rank) for child in inside + others]

    edges = served(0)
    for child, _ in edges:
        edges += served(child)
    return edges


def _chain_tree_time(steps, size, machine, gamma, options):
    """Chunk after chunk: a rank hears from its children in turn and passes on without waiting."""
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
    busy = now[:]
    for nbytes in lengths:
        for child, parent in edges:
            busy[parent] = now[child] = max(now[parent], busy[parent]) + took(parent, child, nbytes)
    return max(now + busy)


def _hierarchical_ring(p, n, itemsize, options):
    r = options["ranks_per_node"]
    chunks = _shards(n, r, itemsize)
    nodes = [range(first, first + r) for first in range(0, p, r)]
    across = [range(place, p, r) for place in range(r)]
    parts = [_shards(chunks[(place + 1) % r], p // r, itemsize) for place in range(r)]
    yield from _ring(nodes, [chunks] * len(nodes), 0, True)
    yield from _ring(across, parts, 0, True)
    yield from _ring(across, parts, 1)
    yield from _ring(nodes, [chunks] * len(nodes), 1)


def _pairwise(p, n, itemsize, options):
    blocks = _shards(n, p, itemsize)
    for step in range(1, p):
        yield [(rank, (rank + step) % p, blocks[(rank + step) % p]) for rank in range(p)], False


def _bruck_all_to_all(p, n, itemsize, options):
    blocks = _shards(n, p, itemsize)
    for distance in _distances(p):
        moving = [away - away % distance for away in range(p) if away & distance]
        yield [(rank, (rank + distance) % p, sum(blocks[(rank + far) % p] for far in moving)) for rank in range(p)], False


def _dissemination(p, n, itemsize, options):
    for distance in _distances(p):
        yield [(rank, (rank + distance) % p, n) for rank in range(p)], False


# -- the table -----------------------------------------------------------------


def _always(p, count, options):
    return True


def _whole(p, count, options):
    return count % p == 0


def _power(p, count, options):
    return p & (p - 1) == 0


def _power_whole(p, count, options):
    return _power(p, count, options) and count % p == 0


def _kept_larger(p, count, options):
    return count % p == 0 and (options["root"] == 0 or _power(p, count, options))


def _whole_chunks(p, count, options):
    return p > 1 and count % options["chunks"] == 0


def _form(rounds, moved, reduced=lambda p, o: 0):
    """rounds·α + moved·nβ + reduced·nγ, all three functions of (p, options)."""

    def form(p, n, link, gamma, options):
        return rounds(p, options) * link.alpha + n * (moved(p, options) * link.beta + reduced(p, options) * gamma)

    return form


def _part(p, o):
    return (p - 1) / p


def _twice_part(p, o):
    return 2 * (p - 1) / p


def _others(p, o):
    return p - 1


def _doublings(p, o):
    return _lg(p)


def _steps_of_chain(p, o):
    return p - 2 + o["chunks"]


def _chunks_of_chain(p, o):
    return (p - 2 + o["chunks"]) / o["chunks"]


def _floor(p):
    return p.bit_length() - 1


def _folds(p):
    return p & (p - 1) > 0


def _power_part(p):
    return 1 - 1 / (1 << _floor(p))


def _hierarchical_form(p, n, machine, gamma, options):
    r = options["ranks_per_node"]
    inside, between = (machine, machine) if isinstance(machine, Link) else (machine.inside, machine.between or machine.inside)
    return 2 * (r - 1) * inside.time(n / r) + 2 * (p // r - 1) * between.time(n / p) + (p - 1) / p * n * gamma


A = algorithms
ALGORITHMS = [
    Algorithm(
        "broadcast", A.flat_broadcast, lambda p, n, i, o: _flat(p, o["root"], lambda other: n),
        "(p−1)(α + nβ)", _form(_others, _others), _always, "chan2007",
    ),
    Algorithm(
        "broadcast", A.mst_broadcast, lambda p, n, i, o: _down(p, o["root"], lambda half: n),
        "⌈lg p⌉(α + nβ)", _form(_doublings, _doublings), _always, "chan2007",
    ),
    Algorithm(
        "broadcast", A.chain_broadcast, lambda p, n, i, o: _chain(p, o["root"], _shards(n, o["chunks"], i)),
        "(p−2+k)(α + n/k·β)", _form(_steps_of_chain, _chunks_of_chain), _whole_chunks, "chan2007",
    ),
    Algorithm(
        "broadcast", A.scatter_all_gather_broadcast, _scatter_all_gather, "(lg p + p−1)α + 2(p−1)/p·nβ",
        _form(lambda p, o: _lg(p) + p - 1, _twice_part), _power_whole, "chan2007",
    ),
    Algorithm(
        "reduce", A.flat_reduce, lambda p, n, i, o: _flat(p, o["root"], lambda other: n, True, True),
        "(p−1)(α + nβ + nγ)", _form(_others, _others, _others), _always, "chan2007",
    ),
    Algorithm(
        "reduce", A.mst_reduce, lambda p, n, i, o: _up(p, o["root"], lambda half: n, True),
        "⌈lg p⌉(α + nβ + nγ)", _form(_doublings, _doublings, _doublings), _always, "chan2007",
    ),
    Algorithm(
        "reduce", A.chain_reduce, _chain_reduce, "(p−2+k)(α + n/k·(β + γ))",
        _form(_steps_of_chain, _chunks_of_chain, _chunks_of_chain), _whole_chunks, "chan2007",
    ),
    Algorithm(
        "scatter", A.flat_scatter, lambda p, n, i, o: _flat(p, o["root"], _shards(n, p, i).__getitem__),
        "(p−1)α + (p−1)/p·nβ", _form(_others, _part), _whole, "chan2007",
    ),
    Algorithm(
        "scatter", A.mst_scatter, lambda p, n, i, o: _down(p, o["root"], _scatter_lengths(p, n, i)),
        "⌈lg p⌉α + (p−1)/p·nβ", _form(_doublings, _part), _kept_larger, "chan2007",
    ),
    Algorithm(
        "gather", A.flat_gather, lambda p, n, i, o: _flat(p, o["root"], _shards(n, p, i).__getitem__, True),
        "(p−1)α + (p−1)/p·nβ", _form(_others, _part), _whole, "chan2007",
    ),
    Algorithm(
        "gather", A.mst_gather, lambda p, n, i, o: _up(p, o["root"], _scatter_lengths(p, n, i)),
        "⌈lg p⌉α + (p−1)/p·nβ", _form(_doublings, _part), _kept_larger, "chan2007",
    ),
    Algorithm(
        "all-gather", A.ring_all_gather, lambda p, n, i, o: _ring([range(p)], [_shards(n, p, i)]),
        "(p−1)α + (p−1)/p·nβ", _form(_others, _part), _whole, "thakur2005",
    ),
    Algorithm(
        "all-gather", A.recursive_doubling_all_gather, _doubling_all_gather, "lg p·α + (p−1)/p·nβ",
        _form(_doublings, _part), _power_whole, "thakur2005",
    ),
    Algorithm(
        "all-gather", A.bruck_all_gather, _bruck_all_gather, "⌈lg p⌉α + (p−1)/p·nβ",
        _form(_doublings, _part), _whole, "bruck1997",
    ),
    Algorithm(
        "reduce-scatter", A.ring_reduce_scatter,
        lambda p, n, i, o: _ring([range(p)], [_shards(n, p, i)], -1, True),
        "(p−1)α + (p−1)/p·n(β + γ)", _form(_others, _part, _part), _whole, "patarasuk2009",
    ),
    Algorithm(
        "reduce-scatter", A.recursive_halving_reduce_scatter, _halving, "lg p·α + (p−1)/p·n(β + γ)",
        _form(_doublings, _part, _part), _power_whole, "thakur2005",
    ),
    Algorithm(
        "all-reduce", A.mst_all_reduce, _mst_all_reduce, "⌈lg p⌉(2α + 2nβ + nγ)",
        _form(lambda p, o: 2 * _lg(p), lambda p, o: 2 * _lg(p), _doublings), _always, "chan2007",
    ),
    Algorithm(
        "all-reduce", A.ring_all_reduce, _ring_all_reduce, "2(p−1)α + 2(p−1)/p·nβ + (p−1)/p·nγ",
        _form(lambda p, o: 2 * (p - 1), _twice_part, _part), _whole, "patarasuk2009",
    ),
    Algorithm(
        "all-reduce", A.recursive_doubling_all_reduce, _doubling_all_reduce,
        "lg p(α + nβ + nγ); else ⌊lg p⌋ + 2 messages, ⌊lg p⌋ + 1 reduced",
        _form(
            lambda p, o: _floor(p) + 2 * _folds(p), lambda p, o: _floor(p) + 2 * _folds(p),
            lambda p, o: _floor(p) + _folds(p),
        ), _always, "thakur2005",
    ),
    Algorithm(
        "all-reduce", A.rabenseifner_all_reduce, _rabenseifner,
        "2 lg p·α + 2(p−1)/p·nβ + (p−1)/p·nγ; else (2⌊lg p⌋+2)α + (2(p′−1)/p′+2)nβ + (1+(p′−1)/p′)nγ, p′ = 2^⌊lg p⌋",
        _form(
            lambda p, o: 2 * _floor(p) + 2 * _folds(p), lambda p, o: 2 * _power_part(p) + 2 * _folds(p),
            lambda p, o: _power_part(p) + _folds(p),
        ), lambda p, count, o: count % (1 << _floor(p)) == 0, "thakur2005",
    ),
    Algorithm(
        "all-reduce", A.two_trees_all_reduce, _two_trees, "≈ 2nβ + nγ + O(lg p·α)", None, _always, "sanders2009",
    ),
    Algorithm(
        "all-reduce", A.chain_tree_all_reduce, _chain_tree, "≈ 2nβ in a node, 4nβ between nodes", None, _always,
        "hu2025demystifying", _chain_tree_time,
    ),
    Algorithm(
        "all-reduce", A.hierarchical_ring_all_reduce, _hierarchical_ring,
        "2(r−1)(α + n/r·β) inside + 2(N−1)(α + n/p·β) between + (p−1)/p·nγ", _hierarchical_form, _whole, "patarasuk2009",
    ),
    Algorithm(
        "all-to-all", A.pairwise_all_to_all, _pairwise, "(p−1)(α + n/p·β)", _form(_others, _part), _whole, "thakur2005",
    ),
    Algorithm(
        "all-to-all", A.bruck_all_to_all, _bruck_all_to_all, "⌈lg p⌉(α + n/2·β)",
        _form(_doublings, lambda p, o: _lg(p) / 2), _power_whole, "bruck1997",
    ),
    Algorithm(
        "barrier", A.dissemination_barrier, _dissemination, "⌈lg p⌉(α + nβ)",
        _form(_doublings, _doublings), _always, "hensgen1988",
    ),
]  # fmt: skip
