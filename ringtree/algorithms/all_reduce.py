"""All-reduce: every rank gets the sum (or another operation) of what all ranks have.

Each function is a whole rank program; before it every rank has its own `tensor`, and after
it every rank has the result in it. `dist` is `torch.distributed`, or anything that speaks
like it. `op` is called as op(a, b, out=a): torch.add, torch.maximum, torch.mul, … Costs are
for n bytes on p ranks over links of α + nβ, with γ to reduce a byte.
"""

from collections import defaultdict
from functools import cache

import torch


def mst_all_reduce(tensor, dist, op=torch.add):
    """Reduce to rank 0 over a minimum spanning tree, then broadcast over the same tree.

    Cost: ⌈lg p⌉(2α + 2nβ + nγ). Source: Chan, Heimlich, Purkayastha, van de Geijn 2007.
    """
    rank, root = dist.get_rank(), 0
    first, end, edges = 0, dist.get_world_size(), []
    while end - first > 1:
        middle = (first + end + 1) // 2
        edges.append((first, middle))
        if rank < middle:
            end = middle
        else:
            first = middle
    received = torch.empty_like(tensor)
    for root, partner in reversed(edges):
        if rank == partner:
            dist.send(tensor, root)
        if rank == root:
            dist.recv(received, partner)
            op(tensor, received, out=tensor)
    for root, partner in edges:
        if rank == root:
            dist.send(tensor, partner)
        if rank == partner:
            dist.recv(tensor, root)


def ring_all_reduce(tensor, dist, op=torch.add):
    """Each chunk goes twice round the ring: once to be reduced, once to be handed out.

    Cost: 2(p−1)α + 2(p−1)/p·nβ + (p−1)/p·nγ. Source: Patarasuk, Yuan 2009.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    chunks = tensor.tensor_split(size)
    for step in range(2 * (size - 1)):
        chunk = chunks[(rank - step - 1) % size]
        reducing = step < size - 1
        received = torch.empty_like(chunk) if reducing else chunk
        for work in dist.batch_isend_irecv([
            dist.P2POp(dist.isend, chunks[(rank - step) % size], right),
            dist.P2POp(dist.irecv, received, left),
        ]):  # fmt: skip
            work.wait()
        if reducing:
            op(chunk, received, out=chunk)


def recursive_doubling_all_reduce(tensor, dist, op=torch.add):
    """Partners at distance 1, 2, 4, … swap all they have, and both reduce it.

    Where p is no power of two, some ranks first hand theirs to a
    neighbour, who works for both and hands back the result at the end.

    Cost: lg p(α + nβ + nγ); where p is no power of two ⌊lg p⌋ of them, then one
    message to reduce and one more. Source: Thakur, Rabenseifner, Gropp 2005.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    extra = size - (1 << size.bit_length() - 1)  # so many more than a power of two
    workers = [*range(0, 2 * extra, 2), *range(2 * extra, size)]
    if rank not in workers:
        dist.send(tensor, rank - 1)
        dist.recv(tensor, rank - 1)
        return
    received = torch.empty_like(tensor)
    if rank < 2 * extra:
        dist.recv(received, rank + 1)
        op(tensor, received, out=tensor)
    place, distance = workers.index(rank), 1
    while distance < len(workers):
        for work in dist.batch_isend_irecv([
            dist.P2POp(dist.isend, tensor, workers[place ^ distance]),
            dist.P2POp(dist.irecv, received, workers[place ^ distance]),
        ]):  # fmt: skip
            work.wait()
        op(tensor, received, out=tensor)
        distance *= 2
    if rank < 2 * extra:
        dist.send(tensor, rank + 1)


def rabenseifner_all_reduce(tensor, dist, op=torch.add):
    """Recursive halving (partners swap halves
    and reduce), then recursive doubling back.

    Where p is no power of two, some ranks first hand theirs to a
    neighbour, who works for both and hands back the result at the end.

    Cost: 2 lg p·α + 2(p−1)/p·nβ + (p−1)/p·nγ; where p is no power of two, with
    p′ = 2^⌊lg p⌋: (2⌊lg p⌋ + 2)α + (2(p′−1)/p′ + 2)nβ + ((p′−1)/p′ + 1)nγ.
    Source: Rabenseifner 2004; Thakur, Rabenseifner, Gropp 2005.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    extra = size - (1 << size.bit_length() - 1)  # so many more than a power of two
    workers = [*range(0, 2 * extra, 2), *range(2 * extra, size)]
    if rank not in workers:
        dist.send(tensor, rank - 1)
        dist.recv(tensor, rank - 1)
        return
    received = torch.empty_like(tensor)
    if rank < 2 * extra:
        dist.recv(received, rank + 1)
        op(tensor, received, out=tensor)
    place, distance, mine, path = workers.index(rank), len(workers), tensor, []
    while distance > 1:
        distance //= 2
        partner = workers[place ^ distance]
        first, second = mine.tensor_split(2)
        mine, theirs = (second, first) if place & distance else (first, second)
        path.append((partner, mine, theirs))
        _swap(dist, theirs, received[: len(mine)], partner)
        op(mine, received[: len(mine)], out=mine)
    for partner, mine, theirs in reversed(path):
        _swap(dist, mine, theirs, partner)
    if rank < 2 * extra:
        dist.send(tensor, rank + 1)


def _swap(dist, outgoing, incoming, partner):
    for work in dist.batch_isend_irecv([
        dist.P2POp(dist.isend, outgoing, partner),
        dist.P2POp(dist.irecv, incoming, partner),
    ]):  # fmt: skip
        work.wait()


# -- two trees -----------------------------------------------------------------


def two_trees_all_reduce(tensor, dist, op=torch.add, chunks=8, ranks_per_node=1):
    """One half of the tensor goes up and down one binary tree, the other half
    another, in chunks. Whoever has children in one tree is a leaf of the other,
    and in each step every rank sends to one rank and receives from one, at most.
    With more ranks on a node the trees join the nodes' first ranks, and a chain
    through the others hangs below each, as in NCCL.

    Cost, with k chunks of either half: at most (4⌈lg p⌉ + 4k)(α + n/2k·β), so about
    2nβ for many chunks; half of it also reduces. Source: Sanders, Speck, Träff 2009;
    the chains: NCCL (`src/graph/trees.cc`, `src/graph/connect.cc`).
    """
    rank = dist.get_rank()
    pieces = [half.tensor_split(chunks) for half in tensor.tensor_split(2)]
    steps = defaultdict(list)
    for (tree, parent, child), first in two_trees(dist.get_world_size(), ranks_per_node).items():
        if rank in (parent, child):
            for i, piece in enumerate(pieces[tree]):
                steps[first + 2 * i].append((piece, parent, child))
    for step in sorted(steps, reverse=True):  # up: the way down, backwards
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
    """The edges of two binary trees, both with rank 0 at the
    root: (tree, parent, child) to the step in which the first
    chunk goes down it. The others follow in every second step.
    Where a node has several ranks, its first one is in the trees,
    and each of the others follows the rank before it, a step later.
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

    As a sender and as a receiver, a rank has at most two edges.
    So the edges can take turns: those that meet at a sender, or
    at a receiver, go in odd steps and in even steps.
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
    """A chain inside each node and a binary tree between the nodes' first
    ranks: chunk after chunk up to rank 0, then chunk after chunk down.

    Cost: about 2nβ inside a node, and 4nβ between nodes, where a
    rank of the tree hears from two others; with so many messages
    in a row as the way is long and there are chunks, each way.
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


# -- rings of rings ------------------------------------------------------------


def hierarchical_ring_all_reduce(tensor, dist, op=torch.add, ranks_per_node=8):
    """Reduce-scatter round the ring of each node, all-reduce each
    chunk round a ring through all nodes, then all-gather round
    the ring of each node. Every node has `ranks_per_node` ranks.

    Cost, with r ranks a node and N nodes: 2(r−1)α + 2(r−1)/r·nβ inside a node and
    2(N−1)α + 2(N−1)/N·(n/r)β between nodes, with (p−1)/p·nγ.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    if ranks_per_node < 1 or size % ranks_per_node:
        raise ValueError(
            f"{size} ranks do not make whole nodes of {ranks_per_node}: "
            "give a ranks_per_node that divides them"
        )
    node, place = divmod(rank, ranks_per_node)
    inside = Among(dist, range(node * ranks_per_node, (node + 1) * ranks_per_node))
    between = Among(dist, range(place, size, ranks_per_node))
    chunks = tensor.tensor_split(ranks_per_node)
    _once_round(chunks, inside, 0, op)
    ring_all_reduce(chunks[(place + 1) % ranks_per_node], between, op)
    _once_round(chunks, inside, 1)


def _once_round(chunks, dist, ahead, op=None):
    """Rank r begins with chunk r + ahead; what comes is reduced with `op`, or kept."""
    rank, size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    for step in range(size - 1):
        chunk = chunks[(rank + ahead - step - 1) % size]
        received = torch.empty_like(chunk) if op else chunk
        for work in dist.batch_isend_irecv([
            dist.P2POp(dist.isend, chunks[(rank + ahead - step) % size], right),
            dist.P2POp(dist.irecv, received, left),
        ]):  # fmt: skip
            work.wait()
        if op:
            op(chunk, received, out=chunk)


def multi_ring_all_reduce(tensor, dist, op=torch.add, ranks_per_node=8):
    """A ring for each rank of a node, all at once, each with its part of
    the tensor: ring c leaves every node at its rank c, and enters the
    next at rank c + 1, so that every network card carries one ring out
    and one in. Every node has `ranks_per_node` ranks.

    Cost, with r ranks and r cards a node and N nodes, for long vectors: 2(p−1)/p·n/r·β between
    nodes, and (r−1) times as much inside a node, at the same time; with (p−1)/p·nγ.
    Source: NCCL's channels, in Hu et al. 2025.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    if ranks_per_node < 1 or size % ranks_per_node:
        raise ValueError(
            f"{size} ranks do not make whole nodes of {ranks_per_node}: "
            "give a ranks_per_node that divides them"
        )
    parts = tensor.tensor_split(ranks_per_node)
    rings = []
    for leaves in range(ranks_per_node):
        enters = (leaves + 1) % ranks_per_node
        ring = [
            node + (enters + place) % ranks_per_node
            for node in range(0, size, ranks_per_node)
            for place in range(ranks_per_node)
        ]
        rings.append((ring, ring.index(rank), parts[leaves].tensor_split(size)))
    for ahead in (0, 1):
        for step in range(size - 1):
            batch, reduced = [], []
            for ring, at, chunks in rings:
                coming = chunks[(at + ahead - step - 1) % size]
                received = coming if ahead else torch.empty_like(coming)
                leaving = chunks[(at + ahead - step) % size]
                batch.append(dist.P2POp(dist.isend, leaving, ring[(at + 1) % size]))
                batch.append(dist.P2POp(dist.irecv, received, ring[at - 1]))
                reduced.append((coming, received))
            for work in dist.batch_isend_irecv(batch):
                work.wait()
            for coming, received in reduced if not ahead else ():
                op(coming, received, out=coming)


class Among:
    """Some of the ranks, as if there were no others: rank i is `ranks[i]` of `dist`.

    For messages, which is all that these algorithms need of a `dist`. A rank
    that is none of them has the rank -1, as in a process group.
    """

    def __init__(self, dist, ranks):
        self.dist, self.ranks = dist, list(ranks)
        self.batch_isend_irecv = dist.batch_isend_irecv

    def get_rank(self):
        rank = self.dist.get_rank()
        return self.ranks.index(rank) if rank in self.ranks else -1

    def get_world_size(self):
        return len(self.ranks)

    def send(self, tensor, dst, tag=0):
        self.dist.send(tensor, self.ranks[dst], tag=tag)

    def recv(self, tensor, src, tag=0):
        self.dist.recv(tensor, self.ranks[src], tag=tag)
        return src

    def isend(self, tensor, dst, tag=0):
        return self.dist.isend(tensor, self.ranks[dst], tag=tag)

    def irecv(self, tensor, src, tag=0):
        return self.dist.irecv(tensor, self.ranks[src], tag=tag)

    def P2POp(self, op, tensor, peer, tag=0):
        op = self.dist.isend if op == self.isend else self.dist.irecv
        return self.dist.P2POp(op, tensor, self.ranks[peer], tag=tag)
