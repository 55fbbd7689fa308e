"""Gather over nodes: all network cards of the root's node receive, or few messages enter it.

Each rank has its shard of a tensor, and afterwards the root has all of it. Shard r is
`tensor.tensor_split(p)[r]`: the first shards are one element longer where p does not divide the
length. Each function is a whole rank program, and every node has `ranks_per_node` ranks. `dist` is
`torch.distributed`, or anything that speaks like it. Costs are for n bytes, all shards together, on
N nodes of r ranks over links of α + nβ with gaps of g.
"""

from itertools import accumulate

import torch


def two_level_direct_gather(tensor, dist, root=0, ranks_per_node=8):
    """Each rank sends its shard to the rank at its place in the root's node, so that every card of the
    node receives its part. Then these send the root what they have, in one message each.

    Before: rank r has shard r of `tensor`. After: `root` has all of it; other ranks may have more
    than their shard. Cost, with a card for each rank: α + (N−2)g + (N−1)/N·(n/r)β between nodes and
    α + (r−2)g + (r−1)/r·nβ inside a node.
    """
    node, rail = _levels(dist, root, ranks_per_node)
    rank, r = dist.get_rank(), ranks_per_node
    shards = tensor.tensor_split(dist.get_world_size())
    if rank not in node:
        dist.send(shards[rank], node[rank % r])
        return
    _receive_all(dist, {other: shards[other] for other in _from(rail, rank)})
    if rank != root:
        dist.send(torch.cat(shards[rank % r :: r]), root)
        return
    columns = {other: torch.cat(shards[other % r :: r]) for other in _from(node, root)}
    _receive_all(dist, columns)
    for other, column in columns.items():
        of_place = shards[other % r :: r]
        for shard, piece in zip(of_place, column.split([len(shard) for shard in of_place])):
            shard.copy_(piece)


def node_leader_gather(tensor, dist, root=0, ranks_per_node=8):
    """In each other node the rank at the root's place receives the shards of all, and sends them to
    the root in one message.

    Before: rank r has shard r of `tensor`. After: `root` has all of it; other ranks may have more
    than their shard. Cost: α + (r−2)g + (r−1)n/p·β inside a node, and then
    α + (N−2)g + (N−1)/N·nβ between nodes.
    """
    _, rail = _levels(dist, root, ranks_per_node)
    rank, r = dist.get_rank(), ranks_per_node
    shards = tensor.tensor_split(dist.get_world_size())
    cuts = [0, *accumulate(len(shard) for shard in shards)][::r]
    blocks = [tensor[first:end] for first, end in zip(cuts, cuts[1:])]
    node = range(rank - rank % r, rank - rank % r + r)
    leader = node[root % r]
    if rank == root:
        coming = {other: blocks[other // r] for other in _from(rail, root)}
        _receive_all(dist, coming | {other: shards[other] for other in _from(node, root)})
    elif rank == leader:
        _receive_all(dist, {other: shards[other] for other in _from(node, rank)})
        dist.send(blocks[rank // r], root)
    else:
        dist.send(shards[rank], leader)


# -- what they are made of -------------------------------------------------------


def _levels(dist, root, ranks_per_node):
    """The ranks of the root's node, and this rank's rail: the ranks at its place in every node."""
    rank, size = dist.get_rank(), dist.get_world_size()
    if ranks_per_node < 1 or size % ranks_per_node:
        raise ValueError(
            f"{size} ranks do not make whole nodes of {ranks_per_node}: "
            "give a ranks_per_node that divides them"
        )
    first = root - root % ranks_per_node
    rail = range(rank % ranks_per_node, size, ranks_per_node)
    return range(first, first + ranks_per_node), rail


def _from(ranks, rank):
    """The others of `ranks`, the next one first."""
    at = ranks.index(rank)
    return [*ranks[at + 1 :], *ranks[:at]]


def _receive_all(dist, tensors):
    for work in [dist.irecv(tensor, source) for source, tensor in tensors.items()]:
        work.wait()
