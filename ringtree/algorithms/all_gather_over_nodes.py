"""All-gather over nodes: what goes on inside a node and between nodes, each by its own algorithm.

Each rank has its shard of a tensor, and afterwards every rank has all shards. Shard r is
`tensor.tensor_split(p)[r]`: the first shards are one element longer where p does not divide the
length. Each function is a whole rank program, and every node has `ranks_per_node` ranks. `dist` is
`torch.distributed`, or anything that speaks like it. Costs are for n bytes, all shards together, on
N nodes of r ranks over links of α + nβ with gaps of g.
"""

from itertools import accumulate

import torch


def two_level_direct_all_gather(tensor, dist, ranks_per_node=8):
    """Each rank sends its shard to the ranks at its place in the other nodes, all at once. Then it
    sends the shards that it has to the others of its node, in one message each.

    Before: rank r has shard r of `tensor`. After: every rank has all of it. Cost:
    α + (N−2)g + (N−1)/N·(n/r)β between nodes and α + (r−2)g + (r−1)/r·nβ inside a node. Source: the
    second half of `two_level_two_shot_all_reduce`.
    """
    node, rail = _levels(dist, ranks_per_node)
    shards = tensor.tensor_split(dist.get_world_size())
    _wait(_to_all(dist, rail, [shards[rank] for rank in rail]))
    columns = [torch.cat(shards[place::ranks_per_node]) for place in range(ranks_per_node)]
    _wait(_to_all(dist, node, columns))
    _put_back(columns, shards)


def sliced_two_level_direct_all_gather(tensor, dist, ranks_per_node=8, slices=2):
    """The same, but a rank passes each slice of a shard on inside its node as soon as it has come: so
    one level hides behind the other.

    Before: rank r has shard r of `tensor`. After: every rank has all of it. Cost: no closed form. Of
    the two levels' bytes, (N−1)/N·(n/r)β between nodes and (r−1)/r·nβ inside, the longer part counts
    in full where vectors are long, and most of the shorter is hidden behind it.
    """
    node, rail = _levels(dist, ranks_per_node)
    rank, size = dist.get_rank(), dist.get_world_size()
    shards = tensor.tensor_split(size)
    cut = [shard.tensor_split(slices) for shard in shards]
    between = []
    for away in range(ranks_per_node, size, ranks_per_node):
        to, source = (rank + away) % size, (rank - away) % size
        for i in range(slices):
            works = _swap(dist, cut[rank][i], to, cut[source][i], source)
            between.append((works, [cut[(other - away) % size][i] for other in node]))
    inside = _to_all(dist, node, [shards[other] for other in node])
    for works, came in between:
        _wait(works)
        inside += _to_all(dist, node, came)
    _wait(inside)


def two_level_bruck_all_gather(tensor, dist, ranks_per_node=8):
    """Bruck's all-gather among the ranks at one place in all nodes, and then inside each node.

    Before: rank r has shard r of `tensor`. After: every rank has all of it. Cost:
    ⌈lg N⌉α + (N−1)/N·(n/r)β between nodes and ⌈lg r⌉α + (r−1)/r·nβ inside a node. Source: Bruck, Ho,
    Kipnis, Upfal, Weathersby 1997, once on each level.
    """
    node, rail = _levels(dist, ranks_per_node)
    shards = tensor.tensor_split(dist.get_world_size())
    _bruck(dist, rail, [shards[rank] for rank in rail])
    columns = [torch.cat(shards[place::ranks_per_node]) for place in range(ranks_per_node)]
    _bruck(dist, node, columns)
    _put_back(columns, shards)


def node_leaders_all_gather(tensor, dist, ranks_per_node=8):
    """Inside each node all send their shards to all. Then two nodes swap their blocks in one message
    each way, and the ranks of a node share out the other nodes. Each rank passes on inside its node
    what has come to it.

    Before: rank r has shard r of `tensor`. After: every rank has all of it. Cost: no closed form;
    where N ≤ r + 1 and every rank has a card, about 2(α + (r−2)g) + (r−1)(n/p + n/N)β inside a node
    and α + n/N·β between nodes. Source: the leaders are those of `node_leader_all_reduce`, here all
    ranks of a node.
    """
    node, rail = _levels(dist, ranks_per_node)
    shards = tensor.tensor_split(dist.get_world_size())
    cuts = [0, *accumulate(len(shard) for shard in shards)][::ranks_per_node]
    blocks = [tensor[first:end] for first, end in zip(cuts, cuts[1:])]
    mine, nodes = rail.index(dist.get_rank()), len(rail)
    _wait(_to_all(dist, node, [shards[rank] for rank in node]))
    between = []
    for turn in range(
        1, nodes, ranks_per_node
    ):  # the rank at place i: the node that is turn + i away
        away = turn + node.index(dist.get_rank())
        to, source = (mine + away) % nodes, (mine - away) % nodes
        works = (
            _swap(dist, blocks[mine], rail[to], blocks[source], rail[source])
            if away < nodes
            else []
        )
        all_away = range(turn, turn + ranks_per_node)
        came = [blocks[(mine - far) % nodes] if far < nodes else None for far in all_away]
        between.append((works, came))
    inside = []
    for works, came in between:
        _wait(works)
        inside += _to_all(dist, node, came)
    _wait(inside)


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


def _to_all(dist, ranks, parts):
    """Each of `ranks` sends its part to all others at once; a rank whose part is None sends nothing."""
    at, size, batch = ranks.index(dist.get_rank()), len(ranks), []
    for step in range(1, size):
        to, source = (at + step) % size, (at - step) % size
        if parts[at] is not None:
            batch.append(dist.P2POp(dist.isend, parts[at], ranks[to]))
        if parts[source] is not None:
            batch.append(dist.P2POp(dist.irecv, parts[source], ranks[source]))
    return dist.batch_isend_irecv(batch) if batch else []


def _bruck(dist, ranks, parts):
    """Each of `ranks` sends all it has 1, 2, 4, … of them to the left, and gets as much from the right."""
    at, size, distance = ranks.index(dist.get_rank()), len(ranks), 1
    parts = parts[at:] + parts[:at]  # mine first, as the others come
    while distance < size:
        coming = parts[distance : 2 * distance]
        outgoing = torch.cat(parts[: len(coming)])
        incoming = outgoing.new_empty(sum(len(part) for part in coming))
        to, source = ranks[(at - distance) % size], ranks[(at + distance) % size]
        _wait(_swap(dist, outgoing, to, incoming, source))
        for part, piece in zip(coming, incoming.split([len(part) for part in coming])):
            part.copy_(piece)
        distance *= 2


def _put_back(columns, shards):
    """Copy the shards of each place, one from each node, to where they belong."""
    for place, column in enumerate(columns):
        of_place = shards[place :: len(columns)]
        for shard, piece in zip(of_place, column.split([len(shard) for shard in of_place])):
            shard.copy_(piece)


def _wait(works):
    for work in works:
        work.wait()
