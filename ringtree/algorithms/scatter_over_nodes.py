"""Scatter over nodes: all network cards of the root's node send, or few messages leave it.

The root has all shards of a tensor, and afterwards each rank has its own. Shard r is
`tensor.tensor_split(p)[r]`: the first shards are one element longer where p does not divide the
length. Each function is a whole rank program, and every node has `ranks_per_node` ranks. `dist` is
`torch.distributed`, or anything that speaks like it. Costs are for n bytes, all shards together, on
N nodes of r ranks over links of α + nβ with gaps of g.
"""

from itertools import accumulate

import torch


def two_level_direct_scatter(tensor, dist, root=0, ranks_per_node=8):
    """The root sends each rank of its node the shards for that one's place in all nodes, all at once.
    Then each of them sends the shards on, so that every card of the node sends its part.

    Before: `root` has all of `tensor`. After: rank r has its shard r; its other shards may have been
    overwritten. Cost, with a card for each rank: α + (r−2)g + (r−1)/r·nβ inside a node and
    α + (N−2)g + (N−1)/N·(n/r)β between nodes.
    """
    node, rail = _levels(dist, root, ranks_per_node)
    rank, r = dist.get_rank(), ranks_per_node
    shards = tensor.tensor_split(dist.get_world_size())
    if rank not in node:
        dist.recv(shards[rank], node[rank % r])
        return
    columns = {other: torch.cat(shards[other % r :: r]) for other in node}
    if rank == root:
        _send_all(dist, {other: columns[other] for other in _from(node, root)})
    else:
        dist.recv(columns[rank], root)
    column = dict(zip(rail, columns[rank].split([len(shards[other]) for other in rail])))
    shards[rank].copy_(column[rank])
    _send_all(dist, {other: column[other] for other in _from(rail, rank)})


def node_leader_scatter(tensor, dist, root=0, ranks_per_node=8):
    """The root sends each other node the shards of its ranks in one message, to the rank at its own
    place; that rank, and the root, send each rank of their node its shard.

    Before: `root` has all of `tensor`. After: rank r has its shard r; its other shards may have been
    overwritten. Cost: α + (N−2)g + (N−1)/N·nβ between nodes, and then α + (r−2)g + (r−1)n/p·β inside
    a node.
    """
    _, rail = _levels(dist, root, ranks_per_node)
    rank, r = dist.get_rank(), ranks_per_node
    shards = tensor.tensor_split(dist.get_world_size())
    cuts = [0, *accumulate(len(shard) for shard in shards)][::r]
    blocks = [tensor[first:end] for first, end in zip(cuts, cuts[1:])]
    node = range(rank - rank % r, rank - rank % r + r)
    leader = node[root % r]
    if rank == root:
        blocks_of = {other: blocks[other // r] for other in _from(rail, root)}
        _send_all(dist, blocks_of | {other: shards[other] for other in _from(node, root)})
    elif rank == leader:
        dist.recv(blocks[rank // r], root)
        _send_all(dist, {other: shards[other] for other in _from(node, rank)})
    else:
        dist.recv(shards[rank], leader)


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


def _send_all(dist, tensors):
    for work in [dist.isend(tensor, to) for to, tensor in tensors.items()]:
        work.wait()
