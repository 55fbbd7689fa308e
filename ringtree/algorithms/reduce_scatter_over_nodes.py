"""Reduce-scatter over nodes: what goes on inside a node and between nodes, each by its own algorithm.

Every rank has a whole tensor, and afterwards each has its shard of the sum. Shard r is
`tensor.tensor_split(p)[r]`: the first shards are one element longer where p does not divide the
length. Each function is a whole rank program, and every node has `ranks_per_node` ranks. `dist` is
`torch.distributed`, or anything that speaks like it. `op` is called as op(a, b, out=a): torch.add,
torch.maximum, torch.mul, … Costs are for n bytes, all shards together, on N nodes of r ranks over
links of α + nβ with gaps of g, with γ to reduce a byte.
"""

from itertools import accumulate

import torch


def two_level_direct_reduce_scatter(tensor, dist, op=torch.add, ranks_per_node=8):
    """Each rank sends to every other one of its node the shards for that one's place, in one message,
    and reduces what comes. Then it sends each shard to the rank of its place whose it is.

    Before: every rank has its own `tensor`. After: rank r has the result in shard r; its other
    shards are partial results. Cost: α + (r−2)g + (r−1)/r·n(β + γ) inside a node and
    α + (N−2)g + (N−1)/N·(n/r)(β + γ) between nodes. Source: the first half of
    `two_level_two_shot_all_reduce`.
    """
    node, rail = _levels(dist, ranks_per_node)
    shards = tensor.tensor_split(dist.get_world_size())
    columns = [torch.cat(shards[place::ranks_per_node]) for place in range(ranks_per_node)]
    _to_each(dist, node, columns, op)()
    sums = _of_rail(columns[node.index(dist.get_rank())], shards, rail)
    _to_each(dist, rail, sums, op)()
    shards[dist.get_rank()].copy_(sums[rail.index(dist.get_rank())])


def sliced_two_level_direct_reduce_scatter(tensor, dist, op=torch.add, ranks_per_node=8, slices=2):
    """The same, but a rank sends each slice of a shard on to the other node as soon as its own node
    has reduced it: so one level hides behind the other.

    Before: every rank has its own `tensor`. After: rank r has the result in shard r; its other
    shards are partial results. Cost: no closed form. Of the two levels' bytes, (r−1)/r·nβ inside a
    node and (N−1)/N·(n/r)β between nodes, the longer part counts in full where vectors are long, and
    most of the shorter is hidden behind it.
    """
    node, _ = _levels(dist, ranks_per_node)
    rank, size = dist.get_rank(), dist.get_world_size()
    shards = tensor.tensor_split(size)
    cut = [shard.tensor_split(slices) for shard in shards]
    inside, between = [], []
    for away in range(ranks_per_node, size, ranks_per_node):
        for i in range(slices):
            parts = [cut[(other + away) % size][i] for other in node]
            inside.append((away, i, _to_each(dist, node, parts, op)))
    reduce_ours = _to_each(dist, node, [shards[other] for other in node], op)
    for away, i, reduce in inside:
        reduce()
        to, source = (rank + away) % size, (rank - away) % size
        received = torch.empty_like(cut[rank][i])
        between.append((_swap(dist, cut[to][i], to, received, source), cut[rank][i], received))
    reduce_ours()
    for works, mine, received in between:
        _wait(works)
        op(mine, received, out=mine)


def two_level_bruck_reduce_scatter(tensor, dist, op=torch.add, ranks_per_node=8):
    """Bruck's all-gather run backwards inside each node, and then among the ranks at one place in all
    nodes.

    Before: every rank has its own `tensor`. After: rank r has the result in shard r; its other
    shards are partial results. Cost: ⌈lg r⌉α + (r−1)/r·n(β + γ) inside a node and
    ⌈lg N⌉α + (N−1)/N·(n/r)(β + γ) between nodes. Source: Bruck, Ho, Kipnis, Upfal, Weathersby 1997,
    reversed, once on each level.
    """
    node, rail = _levels(dist, ranks_per_node)
    shards = tensor.tensor_split(dist.get_world_size())
    columns = [torch.cat(shards[place::ranks_per_node]) for place in range(ranks_per_node)]
    _bruck(dist, node, columns, op)
    sums = _of_rail(columns[node.index(dist.get_rank())], shards, rail)
    _bruck(dist, rail, sums, op)
    shards[dist.get_rank()].copy_(sums[rail.index(dist.get_rank())])


def node_leaders_reduce_scatter(tensor, dist, op=torch.add, ranks_per_node=8):
    """The ranks of a node share out the other nodes, and each reduces its node's blocks for those that
    are its own. Then two nodes swap these sums in one message each way. Inside each node all send
    every rank its shard of what has come.

    Before: every rank has its own `tensor`. After: rank r has the result in shard r; its other
    shards are partial results. Cost: no closed form; where N ≤ r + 1 and every rank has a card,
    about 2(α + (r−2)g) + (r−1)(n/N + n/p)(β + γ) inside a node and α + n/N·(β + γ) between nodes.
    Source: the leaders are those of `node_leader_all_reduce`, here all ranks of a node.
    """
    node, rail = _levels(dist, ranks_per_node)
    shards = tensor.tensor_split(dist.get_world_size())
    cuts = [0, *accumulate(len(shard) for shard in shards)][::ranks_per_node]
    blocks = [tensor[first:end] for first, end in zip(cuts, cuts[1:])]
    mine, nodes = rail.index(dist.get_rank()), len(rail)
    inside, between = [], []
    for turn in range(
        1, nodes, ranks_per_node
    ):  # the rank at place i: the node that is turn + i away
        all_away = range(turn, turn + ranks_per_node)
        parts = [blocks[(mine + far) % nodes] if far < nodes else None for far in all_away]
        away = turn + node.index(dist.get_rank())
        inside.append((away, _to_each(dist, node, parts, op)))
    for away, reduce in inside:
        reduce()
        if away < nodes:
            to, source = (mine + away) % nodes, (mine - away) % nodes
            received = torch.empty_like(blocks[mine])
            works = _swap(dist, blocks[to], rail[to], received, rail[source])
            between.append((works, received))
    for works, received in between:
        _wait(works)
        op(blocks[mine], received, out=blocks[mine])
    _to_each(dist, node, [shards[rank] for rank in node], op)()


# -- what they are made of -------------------------------------------------------


def _levels(dist, ranks_per_node):
    """The ranks of this rank's node, and its rail: the ranks at its place in every node."""
    rank, size = dist.get_rank(), dist.get_world_size()
    if ranks_per_node < 1 or size % ranks_per_node:
        raise ValueError(
            f"{size} ranks do not make whole nodes of {ranks_per_node}: "
            "give a ranks_per_node that divides them"
        )
    place = rank % ranks_per_node
    node = range(rank - place, rank - place + ranks_per_node)
    return node, range(place, size, ranks_per_node)


def _swap(dist, outgoing, to, incoming, source):
    return dist.batch_isend_irecv([
        dist.P2POp(dist.isend, outgoing, to),
        dist.P2POp(dist.irecv, incoming, source),
    ])


def _to_each(dist, ranks, parts, op):
    """Each of `ranks` sends every other one that one's part, all at once; a rank whose part is None
    gets nothing. Return a function that waits for what comes and reduces it into one's own part."""
    at, size, batch, received = ranks.index(dist.get_rank()), len(ranks), [], []
    for step in range(1, size):
        to, source = (at + step) % size, (at - step) % size
        if parts[to] is not None:
            batch.append(dist.P2POp(dist.isend, parts[to], ranks[to]))
        if parts[at] is not None:
            received.append(torch.empty_like(parts[at]))
            batch.append(dist.P2POp(dist.irecv, received[-1], ranks[source]))
    works = dist.batch_isend_irecv(batch) if batch else []

    def reduce():
        _wait(works)
        for part in received:
            op(parts[at], part, out=parts[at])

    return reduce


def _bruck(dist, ranks, parts, op):
    """Each of `ranks` sends what lies 4, 2, 1 of them further on and beyond, reduced so far, and
    reduces what comes from as many before."""
    at, size = ranks.index(dist.get_rank()), len(ranks)
    parts = parts[at:] + parts[:at]  # mine first
    distance = 1 << (size - 1).bit_length()
    while distance > 1:
        distance //= 2
        leaving = parts[distance : 2 * distance]
        kept = parts[: len(leaving)]
        incoming = kept[0].new_empty(sum(len(part) for part in kept))
        to, source = ranks[(at + distance) % size], ranks[(at - distance) % size]
        _wait(_swap(dist, torch.cat(leaving), to, incoming, source))
        for part, piece in zip(kept, incoming.split([len(part) for part in kept])):
            op(part, piece, out=part)


def _of_rail(column, shards, rail):
    """The shards of a column, one for each rank of a rail."""
    return list(column.split([len(shards[rank]) for rank in rail]))


def _wait(works):
    for work in works:
        work.wait()
