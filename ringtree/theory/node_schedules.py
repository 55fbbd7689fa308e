"""What the programs for nodes of several ranks send, when: steps of messages, as in `schedules`."""

from __future__ import annotations

from itertools import pairwise, permutations

from ringtree.theory.schedules import cut, distances, ring, side_by_side, to_all


def rings_through_nodes(p, r):
    """A ring for each rank of a node: ring c leaves every node at its rank c."""
    return [[node + (leaves + 1 + place) % r for node in range(0, p, r) for place in range(r)] for leaves in range(r)]


def multi_ring_of_shards(p, n, itemsize, options, ahead=0, reduces=False):
    """Every ring carries its part of every shard, and the shard of a rank begins where that rank is, or ahead of it."""
    rings = rings_through_nodes(p, options["ranks_per_node"])
    parts = [cut(shard, len(rings), itemsize) for shard in cut(n, p, itemsize)]
    yield from ring(rings, [[parts[rank][c] for rank in each] for c, each in enumerate(rings)], ahead, reduces)


def nodes_and_rails(p, r):
    """The ranks of every node, and of every rail: those at one place in all nodes."""
    return [range(first, first + r) for first in range(0, p, r)], [range(place, p, r) for place in range(r)]


def bruck_of_parts(lengths, backwards):
    """Bruck's all-gather of parts of these bytes, or backwards his reduce-scatter, by places."""
    size, twice = len(lengths), lengths * 2
    for distance in reversed(distances(size)) if backwards else distances(size):
        count, at = min(distance, size - distance), distance if backwards else 0
        yield (
            [
                (place, (place + (distance if backwards else -distance)) % size, sum(twice[place + at : place + at + count]))
                for place in range(size)
            ],
            backwards,
        )


def direct_of_parts(lengths, backwards):
    """Each with all others at once: an all-gather of parts of these bytes, or backwards a reduce-scatter."""
    yield from to_all(range(len(lengths)), lambda src, dst: lengths[dst if backwards else src], backwards)


def two_levels_of_shards(p, n, itemsize, options, of_parts, reduces=False):
    """An all-gather of shards on the rails and then of what the places have inside the nodes; backwards a reduce-scatter."""
    r, shards = options["ranks_per_node"], cut(n, p, itemsize)
    nodes, rails = nodes_and_rails(p, r)
    columns = [sum(shards[place::r]) for place in range(r)]
    between = side_by_side(rails, [of_parts(shards[place::r], reduces) for place in range(r)])
    inside = side_by_side(nodes, [of_parts(columns, reduces) for _ in nodes])
    for level in (inside, between) if reduces else (between, inside):
        yield from level


def sliced_two_levels_of_shards(p, n, itemsize, options, reduces=False):
    """What every slice sends between nodes, and inside them; in which order, a schedule does not say."""
    r, shards = options["ranks_per_node"], cut(n, p, itemsize)
    nodes, rails = nodes_and_rails(p, r)
    for i in range(options["slices"]):
        pieces = [cut(shard, options["slices"], itemsize)[i] for shard in shards]
        rounds = [direct_of_parts(pieces[place::r], reduces) for place in range(r)]
        yield from side_by_side(rails, rounds)
        for ours, theirs in permutations(nodes, 2):  # inside ours, what has come from theirs or goes there
            yield from side_by_side([ours], [direct_of_parts([pieces[rank] for rank in theirs], reduces)])
    yield from side_by_side(nodes, [direct_of_parts([shards[rank] for rank in ranks], reduces) for ranks in nodes])


def node_leaders_of_shards(p, n, itemsize, options, reduces=False):
    """Blocks between nodes, each by the rank that leads there, and inside nodes: in which order, a schedule does not say."""
    r, shards = options["ranks_per_node"], cut(n, p, itemsize)
    nodes, _ = nodes_and_rails(p, r)
    blocks = [sum(shards[rank] for rank in ranks) for ranks in nodes]
    yield from side_by_side(nodes, [direct_of_parts([shards[rank] for rank in ranks], reduces) for ranks in nodes])
    for away in range(1, len(nodes)):
        place = (away - 1) % r
        for node, ranks in enumerate(nodes):
            goal, source = ((node + far) % len(nodes) for far in (away, -away))
            leader, others = ranks[place], [rank for rank in ranks if rank != ranks[place]]
            yield [(leader, nodes[goal][place], blocks[goal if reduces else node])], reduces
            if reduces:
                yield [(other, leader, blocks[goal]) for other in others], True
            else:
                yield [(leader, other, blocks[source]) for other in others], False


def after(ranks, rank):
    """The others of `ranks`, the next one first."""
    at = ranks.index(rank)
    return [*ranks[at + 1 :], *ranks[:at]]


def turned(steps, inwards):
    """The steps of a scatter, or backwards those of a gather."""
    for messages in reversed(steps) if inwards else steps:
        yield [(dst, src, nbytes) if inwards else (src, dst, nbytes) for src, dst, nbytes in messages], False


def two_level_scatter(p, n, itemsize, options, inwards=False):
    r, root, shards = options["ranks_per_node"], options["root"], cut(n, p, itemsize)
    nodes, rails = nodes_and_rails(p, r)
    home = nodes[root // r]
    inside = [(root, other, sum(shards[other % r :: r])) for other in after(home, root)]
    between = [(rank, other, shards[other]) for rank in home for other in after(rails[rank % r], rank)]
    yield from turned([inside, between], inwards)


def node_leader_scatter(p, n, itemsize, options, inwards=False):
    r, root, shards = options["ranks_per_node"], options["root"], cut(n, p, itemsize)
    nodes, rails = nodes_and_rails(p, r)
    leaders = after(rails[root % r], root)
    from_root = [(root, leader, sum(shards[rank] for rank in nodes[leader // r])) for leader in leaders]
    from_root += [(root, other, shards[other]) for other in after(nodes[root // r], root)]
    inside = [(leader, other, shards[other]) for leader in leaders for other in after(nodes[leader // r], leader)]
    yield from turned([from_root, inside], inwards)


def backwards(steps):
    """The steps of a broadcast run backwards: a reduce."""
    for messages, _ in reversed(list(steps)):
        yield [(dst, src, nbytes) for src, dst, nbytes in messages], True


def node_leaders_broadcast(p, n, itemsize, options):
    r, root = options["ranks_per_node"], options["root"]
    nodes, rails = nodes_and_rails(p, r)
    home = nodes[root // r]
    leaders = {rank: after(rails[rank % r], rank)[(rank - root) % r :: r] for rank in home}
    sent = {rank: [(rank, leader, n) for leader in led] for rank, led in leaders.items()}
    yield [*((root, other, n) for other in after(home, root)), *sent.pop(root)], False
    yield [message for messages in sent.values() for message in messages], False
    passed_on = [after(nodes[leader // r], leader) for led in leaders.values() for leader in led]
    firsts = [leader for led in leaders.values() for leader in led]
    yield [(leader, other, n) for leader, others in zip(firsts, passed_on) for other in others], False


def two_level_chain_broadcast(p, n, itemsize, options):
    """What every rank sends: in which order their messages move, a schedule does not say."""
    r, root, chunks = options["ranks_per_node"], options["root"], options["chunks"]
    nodes, rails = nodes_and_rails(p, r)
    parts = [cut(part, chunks, itemsize) for part in cut(n, r, itemsize)]
    for i in range(chunks):
        yield [(root, other, parts[other % r][i]) for other in after(nodes[root // r], root)], False
        for place, rail in enumerate(rails):
            chain = [rail[root // r], *after(rail, rail[root // r])]
            yield [(src, dst, parts[place][i]) for src, dst in pairwise(chain)], False
        yield [(src, dst, parts[src % r][i]) for node in nodes for src, dst in permutations(node, 2) if dst != root], False


def two_level_scatter_all_gather_broadcast(p, n, itemsize, options):
    yield from two_level_scatter(p, n, itemsize, options)
    yield from sliced_two_levels_of_shards(p, n, itemsize, {**options, "slices": 1})


def two_level_reduce_scatter_gather_reduce(p, n, itemsize, options):
    yield from sliced_two_levels_of_shards(p, n, itemsize, {**options, "slices": 1}, True)
    yield from two_level_scatter(p, n, itemsize, options, True)


def two_level_direct_all_to_all(p, n, itemsize, options):
    r, blocks = options["ranks_per_node"], cut(n, p, itemsize)
    nodes, rails = nodes_and_rails(p, r)
    columns = [sum(blocks[place::r]) for place in range(r)]
    yield from side_by_side(nodes, [to_all(range(r), lambda src, dst: columns[dst]) for _ in nodes])
    yield from side_by_side(rails, [to_all(range(p // r), rail_lengths(blocks[place::r], r)) for place in range(r)])


def rail_lengths(blocks, ranks):
    """What goes to a rank of a rail: one block from each of so many ranks of the sender's node."""
    return lambda src, dst: ranks * blocks[dst]


def node_leaders_all_to_all(p, n, itemsize, options):
    r, blocks = options["ranks_per_node"], cut(n, p, itemsize)
    nodes, _ = nodes_and_rails(p, r)
    of_node = [sum(blocks[rank] for rank in ranks) for ranks in nodes]
    far = [range(place + 1, len(nodes), r) for place in range(r)]  # how far away the nodes of each leader are

    def to_leader(node):
        led = [sum(of_node[(node + away) % len(nodes)] for away in aways) for aways in far]
        return to_all(range(r), lambda src, dst: blocks[node * r + dst] + led[dst])

    def from_leader(node):
        ((messages, reduces),) = to_all(range(r), lambda src, dst: r * len(far[src]) * blocks[node * r + dst])
        yield [message for message in messages if far[message[0]]], reduces

    yield from side_by_side(nodes, [to_leader(node) for node in range(len(nodes))])
    yield (
        [
            (ranks[place], nodes[goal][place], r * of_node[goal])
            for node, ranks in enumerate(nodes)
            for place, aways in enumerate(far)
            for goal in ((node + away) % len(nodes) for away in aways)
        ],
        False,
    )
    yield from side_by_side(nodes, [from_leader(node) for node in range(len(nodes))])
