"""Broadcast over nodes: what the root has, every rank has afterwards, by way of few or of all cards.

Each function is a whole rank program, and every node has `ranks_per_node` ranks. `dist` is
`torch.distributed`, or anything that speaks like it. Costs are for n bytes on N nodes of r ranks over
links of α + nβ with gaps of g.
"""

import torch


def node_leaders_broadcast(tensor, dist, root=0, ranks_per_node=8):
    """The root sends to all ranks of its node, and each of these to every r-th other node. The rank
    there sends to all of its own node.

    Before: `root` has `tensor`. After: every rank has it. Cost: no closed form; where N = r + 1,
    2(α + (r−2)g + (r−1)nβ) inside a node and α + nβ between nodes.
    """
    node, rail = _levels(dist, ranks_per_node)
    rank, r, nodes = dist.get_rank(), ranks_per_node, len(rail)
    here, home = rank // r, root // r
    lead = (rank - root) % r  # this rank's turn among those of its node
    if here == home:
        goals = _after(node, root) if rank == root else []
        goals += [rail[(home + away) % nodes] for away in range(lead + 1, nodes, r)]
        source = root
    else:
        place = (root + (here - home - 1) % nodes) % r  # of the rank that leads from there to here
        goals = _after(node, rank) if rank == node[place] else []
        source = home * r + place if rank == node[place] else node[place]
    if rank != root:
        dist.recv(tensor, source)
    _wait([dist.isend(tensor, goal) for goal in goals])


def two_level_chain_broadcast(tensor, dist, root=0, ranks_per_node=8, chunks=8):
    """A part for each rank of a node goes from node to node by the cards at its place, in chunks, and
    inside each node every rank sends all others the chunks that come to it.

    Before: `root` has `tensor`. After: every rank has it. Cost: no closed form. With a card for each
    rank, n/r·β between nodes and (r−1)/r·nβ inside, for long vectors at the same time.
    """
    node, rail = _levels(dist, ranks_per_node)
    rank, r, nodes = dist.get_rank(), ranks_per_node, len(rail)
    parts = [part.tensor_split(chunks) for part in tensor.tensor_split(r)]  # by place
    mine, far = parts[rank % r], (rank // r - root // r) % nodes
    source = root if far == 0 else rail[rank // r - 1]
    coming = [dist.irecv(chunk, source) if rank != root else None for chunk in mine]
    works = []
    if rank == root:
        for i in range(chunks):
            works += [dist.isend(parts[other % r][i], other) for other in _after(node, root)]
    for i, work in enumerate(coming):
        if work is not None:
            work.wait()
        if far + 1 < nodes:
            works.append(dist.isend(mine[i], rail[(rank // r + 1) % nodes]))
        works += _to_all(dist, node, [part[i] for part in parts], knows=root)
    _wait(works)


def two_level_scatter_all_gather_broadcast(tensor, dist, root=0, ranks_per_node=8):
    """A scatter on two levels, inside the root's node and then between nodes; then an all-gather in
    which a rank passes on inside its node each shard that comes from another.

    Before: `root` has `tensor`. After: every rank has it. Cost: no closed form; with a card for each
    rank, two α inside a node and two between nodes, about 2(N−1)/N·(n/r)β between nodes and
    2(r−1)/r·nβ inside, of which a part is hidden.
    """
    node, rail = _levels(dist, ranks_per_node)
    rank, size, r = dist.get_rank(), dist.get_world_size(), ranks_per_node
    shards = tensor.tensor_split(size)
    if rank // r != root // r:
        dist.recv(shards[rank], rail[root // r])
    else:
        columns = [torch.cat(shards[place::r]) for place in range(r)]
        if rank == root:
            _wait([dist.isend(columns[other % r], other) for other in _after(node, root)])
        else:
            dist.recv(columns[rank % r], root)
        column = columns[rank % r].split([len(shards[other]) for other in rail])
        shards[rank].copy_(column[rank // r])
        _wait([dist.isend(column[other // r], other) for other in _after(rail, rank)])
    between = []
    for away in range(r, size, r):
        to, source = (rank + away) % size, (rank - away) % size
        works = dist.batch_isend_irecv([
            dist.P2POp(dist.isend, shards[rank], to),
            dist.P2POp(dist.irecv, shards[source], source),
        ])
        between.append((works, [shards[(other - away) % size] for other in node]))
    inside = _to_all(dist, node, [shards[other] for other in node])
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


def _after(ranks, rank):
    """The others of `ranks`, the next one first."""
    at = ranks.index(rank)
    return [*ranks[at + 1 :], *ranks[:at]]


def _to_all(dist, ranks, parts, knows=None):
    """Each of `ranks` sends its part to all others at once, but to the one that knows all."""
    at, size, batch = ranks.index(dist.get_rank()), len(ranks), []
    for step in range(1, size):
        to, source = (at + step) % size, (at - step) % size
        if ranks[to] != knows:
            batch.append(dist.P2POp(dist.isend, parts[at], ranks[to]))
        if ranks[at] != knows:
            batch.append(dist.P2POp(dist.irecv, parts[source], ranks[source]))
    return dist.batch_isend_irecv(batch) if batch else []


def _wait(works):
    for work in works:
        work.wait()
