"""All-reduce over trees that work in chunks: two at once, and chains inside the nodes.

Each function is a whole rank program; before it every rank has its own `tensor`, and after it every
rank has the result in it. `dist` is `torch.distributed`, or anything that speaks like it. `op` is
called as op(a, b, out=a): torch.add, torch.maximum, torch.mul, … Costs are for n bytes on p ranks
over links of α + nβ, with γ to reduce a byte.
"""

from collections import defaultdict
from functools import cache

import torch

# -- two trees -----------------------------------------------------------------


def two_trees_all_reduce(tensor, dist, op=torch.add, chunks=8, ranks_per_node=1):
    """One half of the tensor goes up and down one binary tree, the other half another, in chunks.
    Whoever has children in one tree is a leaf of the other, and in each step every rank sends to
    one rank and receives from one, at most. With more ranks on a node the trees join the nodes'
    first ranks, and a chain through the others hangs below each, as in NCCL.

    Cost, with k chunks of either half: at most (4⌈lg p⌉ + 4k)(α + n/2k·β), so about 2nβ for many
    chunks; half of it also reduces. Source: Sanders, Speck, Träff 2009; the chains: NCCL
    (`src/graph/trees.cc`, `src/graph/connect.cc`).
    """
    rank = dist.get_rank()
    pieces = [half.tensor_split(chunks) for half in tensor.tensor_split(2)]
    steps = defaultdict(list)
    edges = two_trees(dist.get_world_size(), ranks_per_node)
    for (tree, parent, child), first in sorted(edges.items()):
        if rank in (parent, child):
            for i, piece in enumerate(pieces[tree]):
                steps[first + 2 * i].append((piece, parent, child))
    up_and_down(steps, dist, op)


def multi_tree_all_reduce(tensor, dist, op=torch.add, chunks=8, ranks_per_node=8):
    """Two trees for each rank of a node, all at once, each pair with its part of the tensor: pair c
    joins the nodes' ranks c, so that every network card carries one pair. Every node has
    `ranks_per_node` ranks.

    Cost, with r ranks and r cards a node, for long vectors in many chunks: 2n/r·β between nodes and
    at most 2(r−1)/r·nβ inside a node, at the same time; half of it also reduces. Source: NCCL's
    channels, in Hu et al. 2025; the trees as above.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    if ranks_per_node < 1 or size % ranks_per_node:
        raise ValueError(
            f"{size} ranks do not make whole nodes of {ranks_per_node}: "
            "give a ranks_per_node that divides them"
        )
    steps = defaultdict(list)
    for c, part in enumerate(tensor.tensor_split(ranks_per_node)):
        pieces = [half.tensor_split(chunks) for half in part.tensor_split(2)]
        for (tree, *ends), first in sorted(two_trees(size, ranks_per_node).items()):
            places = ((end % ranks_per_node, end) for end in ends)
            parent, child = (end - at + (at + c) % ranks_per_node for at, end in places)
            if rank in (parent, child):
                for i, piece in enumerate(pieces[tree]):
                    steps[first + 2 * i].append((piece, parent, child))
    up_and_down(steps, dist, op)


def up_and_down(steps, dist, op=torch.add):
    """Reduce pieces up their trees, the last step first, then hand them down.

    steps: step to [(piece, parent, child)], those in which this rank is parent or child.
    """
    rank = dist.get_rank()
    for step in sorted(steps, reverse=True):
        operations, received = [], []
        for piece, parent, child in steps[step]:
            if rank == child:
                operations.append(dist.P2POp(dist.isend, piece, parent))
            else:
                received.append((piece, torch.empty_like(piece)))
                operations.append(dist.P2POp(dist.irecv, received[-1][1], child))
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        for piece, other in received:
            op(piece, other, out=piece)
    for step in sorted(steps):
        operations = []
        for piece, parent, child in steps[step]:
            way, peer = (dist.isend, child) if rank == parent else (dist.irecv, parent)
            operations.append(dist.P2POp(way, piece, peer))
        for work in dist.batch_isend_irecv(operations):
            work.wait()


@cache
def two_trees(size, ranks_per_node=1):
    """The edges of two binary trees, both with rank 0 at the root: (tree, parent, child) to the
    step in which the first chunk goes down it. The others follow in every second step. Where a node
    has several ranks, its first one is in the trees, and each of the others follows the rank before
    it, a step later.
    """
    firsts = range(0, size, ranks_per_node)
    edges = {
        (tree, firsts[parent], firsts[child]): step
        for (tree, parent, child), step in _two_trees(len(firsts)).items()
    }
    come = {(tree, child): step for (tree, _, child), step in edges.items()}
    for tree in (0, 1):
        come[tree, 0] = tree - 1  # the root has all chunks: those of the two trees take turns
        for rank in range(size):
            if rank % ranks_per_node:
                come[tree, rank] = edges[tree, rank - 1, rank] = come[tree, rank - 1] + 1
    return edges


def _two_trees(size):
    """The same for one rank a node.

    As a sender and as a receiver, a rank has at most two edges. So the edges can take turns: those
    that meet at a sender, or at a receiver, go in odd steps and in even steps.
    """
    others = list(range(1, size))
    # Even places become odd ones, which are leaves.
    turned = others[::-1] if size % 2 else others[1:] + others[:1]
    edges = [
        (tree, ranks[above(place, size)], ranks[place])
        for tree, ranks in enumerate(([0, *others], [0, *turned]))
        for place in sorted(others, key=lambda place: depth(place, size))
    ]
    meeting = defaultdict(list)
    for edge in edges:
        meeting["from", edge[1]].append(edge)
        meeting["to", edge[2]].append(edge)
    turns, first = {}, {}
    for start in edges:
        waiting = [(start, 0)]
        while waiting:
            edge, turn = waiting.pop()
            if edge not in turns:
                turns[edge] = turn
                near = meeting["from", edge[1]] + meeting["to", edge[2]]
                waiting += [(other, 1 - turn) for other in near if other != edge]
    for edge in edges:
        above_it = (other for other in meeting["to", edge[1]] if other[0] == edge[0])
        come = next((first[other] for other in above_it), -1)
        first[edge] = come + 1 + (come + 1 + turns[edge]) % 2
    return first


def above(place, size):
    """A place's parent in a binary tree: 0 is the root, odd places are leaves."""
    bit = place & -place
    higher = (place - bit) | 2 * bit
    return higher if higher < size else place - bit


def depth(place, size):
    return 1 + depth(above(place, size), size) if place else 0


# -- a chain in a node, a tree between nodes -----------------------------------


def chain_tree_all_reduce(tensor, dist, op=torch.add, ranks_per_node=8, chunks=8):
    """A chain inside each node and a binary tree between the nodes' first ranks: chunk after chunk
    up to rank 0, then chunk after chunk down.

    Cost: about 2nβ inside a node, and 4nβ between nodes, where a rank of the tree hears from two
    others; with so many messages in a row as the way is long and there are chunks, each way.
    Source: the tree of NCCL (`src/graph/trees.cc`, `src/graph/connect.cc`).
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    node, place = divmod(rank, ranks_per_node)
    nodes = -(-size // ranks_per_node)
    children = [rank + 1] if place + 1 < ranks_per_node and rank + 1 < size else []
    if place == 0:
        below = [other for other in range(1, nodes) if above(other, nodes) == node]
        children += [other * ranks_per_node for other in below]
    parent = rank - 1 if place else above(node, nodes) * ranks_per_node if node else None
    sent = []
    for part in tensor.tensor_split(chunks):
        for child in children:
            received = torch.empty_like(part)
            dist.recv(received, child)
            op(part, received, out=part)
        if parent is not None:
            sent.append(dist.isend(part, parent))
    for work in sent:
        work.wait()
    sent = []
    for part in tensor.tensor_split(chunks):
        if parent is not None:
            dist.recv(part, parent)
        sent += [dist.isend(part, child) for child in children]
    for work in sent:
        work.wait()
