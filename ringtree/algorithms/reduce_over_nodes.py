"""Reduce over nodes: the root gets the sum of all ranks' tensors, by way of few or of all cards.

Each function is a whole rank program, and every node has `ranks_per_node` ranks. What ranks other
than the root have afterwards is a partial result. `dist` is `torch.distributed`, or anything that
speaks like it. `op` is called as op(a, b, out=a): torch.add, torch.maximum, torch.mul, … Costs are
for n bytes on N nodes of r ranks over links of α + nβ with gaps of g, with γ to reduce a byte.
"""

import torch


def node_leaders_reduce(tensor, dist, root=0, op=torch.add, ranks_per_node=8):
    """All ranks of a node send to one, and this one sends the sum to the root's node, whose ranks
    share out the other nodes. Then these send to the root.

    Before: every rank has its own `tensor`. After: `root` has the result. Cost: no closed form; where
    N = r + 1, 2(α + (r−2)g + (r−1)n(β + γ)) inside a node and α + n(β + γ) between nodes.
    """
    node, rail = _levels(dist, ranks_per_node)
    rank, r, nodes = dist.get_rank(), ranks_per_node, len(rail)
    here, home = rank // r, root // r
    lead = (rank - root) % r  # this rank's turn among those of its node
    if here == home:
        led = [rail[(home + away) % nodes] for away in range(lead + 1, nodes, r)]
        goal, first, then = root, led, _after(node, root) if rank == root else []
    else:
        place = (root + (here - home - 1) % nodes) % r  # of the rank that leads from there to here
        first, then = _after(node, rank) if rank == node[place] else [], []
        goal = home * r + place if rank == node[place] else node[place]
    received = [(torch.empty_like(tensor), source) for source in [*first, *then]]
    _wait([dist.irecv(other, source) for other, source in received])
    for other, _ in received:
        op(tensor, other, out=tensor)
    if rank != root:
        dist.send(tensor, goal)


def two_level_chain_reduce(tensor, dist, root=0, op=torch.add, ranks_per_node=8, chunks=8):
    """A part for each rank of a node: inside each node its chunks are reduced by that rank, which adds
    what comes from the node behind and sends the sum to the node before.

    Before: every rank has its own `tensor`. After: `root` has the result. Cost: no closed form. With
    a card for each rank, n/r·β between nodes and (r−1)/r·nβ inside, for long vectors at the same
    time, with γ for what a rank reduces.
    """
    node, rail = _levels(dist, ranks_per_node)
    rank, r, nodes = dist.get_rank(), ranks_per_node, len(rail)
    parts = [part.tensor_split(chunks) for part in tensor.tensor_split(r)]  # by place
    mine, far = parts[rank % r], (rank // r - root // r) % nodes
    inside = [_to_each(dist, node, [each[i] for each in parts], op, root) for i in range(chunks)]
    behind = [torch.empty_like(chunk) for chunk in mine] if far + 1 < nodes else []
    coming = [dist.irecv(chunk, rail[(rank // r + 1) % nodes]) for chunk in behind]
    goal, works, sums = root if far == 0 else rail[rank // r - 1], [], []
    for i in range(chunks):
        if rank == root:
            for other in _after(node, root):
                chunk = parts[other % r][i]
                sums.append((chunk, torch.empty_like(chunk)))
                works.append(dist.irecv(sums[-1][1], other))
        inside[i]()
        if behind:
            coming[i].wait()
            op(mine[i], behind[i], out=mine[i])
        if rank != root:
            works.append(dist.isend(mine[i], goal))
    _wait(works)
    for chunk, received in sums:
        op(chunk, received, out=chunk)


def two_level_reduce_scatter_gather_reduce(tensor, dist, root=0, op=torch.add, ranks_per_node=8):
    """A reduce-scatter in which a rank sends a shard on to another node as soon as its own node has
    reduced it; then a gather on two levels, to the root's node and inside it.

    Before: every rank has its own `tensor`. After: `root` has the result. Cost: no closed form; with
    a card for each rank, two α inside a node and two between nodes, about 2(N−1)/N·(n/r)β between
    nodes and 2(r−1)/r·nβ inside, of which a part is hidden, and (p−1)/p·nγ.
    """
    node, rail = _levels(dist, ranks_per_node)
    rank, size, r = dist.get_rank(), dist.get_world_size(), ranks_per_node
    shards = tensor.tensor_split(size)
    inside, between = [], []
    for away in range(r, size, r):
        parts = [shards[(other + away) % size] for other in node]
        inside.append((away, _to_each(dist, node, parts, op)))
    reduce_ours = _to_each(dist, node, [shards[other] for other in node], op)
    for away, reduce in inside:
        reduce()
        to, source = (rank + away) % size, (rank - away) % size
        received = torch.empty_like(shards[rank])
        works = dist.batch_isend_irecv([
            dist.P2POp(dist.isend, shards[to], to),
            dist.P2POp(dist.irecv, received, source),
        ])
        between.append((works, received))
    reduce_ours()
    for works, received in between:
        _wait(works)
        op(shards[rank], received, out=shards[rank])
    if rank // r != root // r:
        dist.send(shards[rank], rail[root // r])
        return
    _wait([dist.irecv(shards[other], other) for other in _after(rail, rank)])
    if rank != root:
        dist.send(torch.cat(shards[rank % r :: r]), root)
        return
    columns = {other: torch.cat(shards[other % r :: r]) for other in _after(node, root)}
    _wait([dist.irecv(column, other) for other, column in columns.items()])
    for other, column in columns.items():
        of_place = shards[other % r :: r]
        for shard, piece in zip(of_place, column.split([len(shard) for shard in of_place])):
            shard.copy_(piece)


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


def _to_each(dist, ranks, parts, op, keeps=None):
    """Each of `ranks`, but for the one that keeps its parts, sends every other one that one's part,
    all at once. Return a function that waits for what comes and reduces it into one's own part."""
    at, size, batch, received = ranks.index(dist.get_rank()), len(ranks), [], []
    for step in range(1, size):
        to, source = (at + step) % size, (at - step) % size
        if ranks[at] != keeps:
            batch.append(dist.P2POp(dist.isend, parts[to], ranks[to]))
        if ranks[source] != keeps:
            received.append(torch.empty_like(parts[at]))
            batch.append(dist.P2POp(dist.irecv, received[-1], ranks[source]))
    works = dist.batch_isend_irecv(batch) if batch else []

    def reduce():
        _wait(works)
        for part in received:
            op(parts[at], part, out=parts[at])

    return reduce


def _wait(works):
    for work in works:
        work.wait()
