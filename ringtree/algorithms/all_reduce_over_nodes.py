"""All-reduce over nodes: what goes on inside a node and between nodes, each by its own algorithm.

Each function is a whole rank program; before it every rank has its own `tensor`, and after it every
rank has the result in it. `dist` is `torch.distributed`, or anything that speaks like it. `op` is
called as op(a, b, out=a): torch.add, torch.maximum, torch.mul, … Costs are for n bytes on p ranks
over links of α + nβ, with γ to reduce a byte.
"""

import torch


def two_level_halving_all_reduce(tensor, dist, op=torch.add, ranks_per_node=8):
    """Halving inside each node, so that a rank has one chunk of its node's sum; each chunk
    all-reduced among the ranks that have it, one in each node, by halving and doubling; then
    doubling inside each node. Every node has `ranks_per_node` ranks.

    Cost, with r ranks a node and N nodes, both powers of two: 2 lg r·α + 2(r−1)/r·nβ inside a node
    and 2 lg N·α + 2(N−1)/N·(n/r)β between nodes, with (p−1)/p·nγ. Source: the two levels: Horovod
    (pull request 411), NCCL inside, MPI between; halving: Rabenseifner 2004.
    """
    inside, across = _levels(dist, ranks_per_node)
    _halving_doubling(
        tensor, inside, op, between=lambda chunk: _halving_doubling(chunk, across, op)
    )


def two_level_doubling_all_reduce(tensor, dist, op=torch.add, ranks_per_node=8):
    """The same, but whole chunks are swapped between nodes: half of the rounds there.

    Cost, with r ranks a node and N nodes, both powers of two: 2 lg r·α + 2(r−1)/r·nβ inside a node
    and lg N(α + n/r·β) between nodes, with ((r−1)/r + lg N/r)nγ. Source: as above, with the
    doubling of Thakur, Rabenseifner, Gropp 2005.
    """
    inside, across = _levels(dist, ranks_per_node)
    _halving_doubling(tensor, inside, op, between=lambda chunk: _doubling(chunk, across, op))


def two_level_two_shot_all_reduce(tensor, dist, op=torch.add, ranks_per_node=8):
    """Inside each node a direct reduce-scatter, between nodes each chunk in two shots, then a direct
    all-gather inside each node. Every node has `ranks_per_node` ranks.

    Cost, with r ranks a node, N nodes and gaps of g: 2α + 2(r−2)g + 2(r−1)/r·nβ inside a node and
    2α + 2(N−2)g + 2(N−1)/N·(n/r)β between nodes, with (p−1)/p·nγ. Source: as for the two shots; the
    levels are those of `two_level_halving_all_reduce`.
    """
    inside, across = _levels(dist, ranks_per_node)
    chunks = tensor.tensor_split(ranks_per_node)
    mine = chunks[inside.get_rank()]
    parts = mine.tensor_split(across.get_world_size())
    _to_all(chunks, inside, op)
    _to_all(parts, across, op)
    _to_all(parts, across)
    _to_all(chunks, inside)


def two_level_one_shot_all_reduce(tensor, dist, op=torch.add, ranks_per_node=8):
    """The same, but between nodes whole chunks go to all others at once: one α fewer, more bytes.

    Cost, with r ranks a node, N nodes and gaps of g: 2α + 2(r−2)g + 2(r−1)/r·nβ inside a node and
    α + (N−2)g + (N−1)(n/r)β between nodes, with ((r−1)/r + (N−1)/r)nγ.
    """
    inside, across = _levels(dist, ranks_per_node)
    chunks = tensor.tensor_split(ranks_per_node)
    _to_all(chunks, inside, op)
    _to_all([chunks[inside.get_rank()]] * across.get_world_size(), across, op)
    _to_all(chunks, inside)


def node_leader_all_reduce(tensor, dist, op=torch.add, ranks_per_node=8):
    """A tree inside each node reduces to its first rank, its leader; the leaders all-reduce by
    recursive doubling; the trees hand the result down. Every node has `ranks_per_node` ranks.

    Cost, with r ranks a node and N nodes, N a power of two: ⌈lg r⌉(2α + 2nβ + nγ) inside a node and
    lg N(α + nβ + nγ) between nodes. Source: MPICH (`allreduce_intra_smp.c`).
    """
    inside, _ = _levels(dist, ranks_per_node)
    leaders = Among(dist, range(0, dist.get_world_size(), ranks_per_node))
    place, received = inside.get_rank(), torch.empty_like(tensor)
    children, distance = [], 1
    while distance < ranks_per_node and not place & distance:
        if place + distance < ranks_per_node:
            inside.recv(received, place + distance)
            op(tensor, received, out=tensor)
            children.append(place + distance)
        distance *= 2
    if place == 0:
        _doubling(tensor, leaders, op)
    else:
        inside.send(tensor, place - distance)
        inside.recv(tensor, place - distance)
    for child in reversed(children):
        inside.send(tensor, child)


def hierarchical_ring_all_reduce(tensor, dist, op=torch.add, ranks_per_node=8):
    """Reduce-scatter round the ring of each node, all-reduce each chunk round a ring through all
    nodes, then all-gather round the ring of each node. Every node has `ranks_per_node` ranks.

    Cost, with r ranks a node and N nodes: 2(r−1)α + 2(r−1)/r·nβ inside a node and
    2(N−1)α + 2(N−1)/N·(n/r)β between nodes, with (p−1)/p·nγ.
    """
    inside, across = _levels(dist, ranks_per_node)
    chunks = tensor.tensor_split(ranks_per_node)
    _once_round(chunks, inside, 0, op)
    mine = chunks[(inside.get_rank() + 1) % ranks_per_node].tensor_split(across.get_world_size())
    _once_round(mine, across, 0, op)
    _once_round(mine, across, 1)
    _once_round(chunks, inside, 1)


def multi_ring_all_reduce(tensor, dist, op=torch.add, ranks_per_node=8):
    """A ring for each rank of a node, all at once, each with its part of the tensor: ring c leaves
    every node at its rank c, and enters the next at rank c + 1, so that every network card carries
    one ring out and one in. Every node has `ranks_per_node` ranks.

    Cost, with r ranks and r cards a node and N nodes, for long vectors: 2(p−1)/p·n/r·β between
    nodes, and (r−1) times as much inside a node, at the same time; with (p−1)/p·nγ. Source: NCCL's
    channels, in Hu et al. 2025.
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


# -- what they are made of -------------------------------------------------------


def _halving_doubling(tensor, dist, op, between=None):
    """Recursive halving, then `between` on the chunk that a rank has reduced, then recursive doubling back."""

    def halve_and_double(dist):
        rank, distance, mine, path = dist.get_rank(), dist.get_world_size(), tensor, []
        received = torch.empty_like(tensor)
        while distance > 1:
            distance //= 2
            first, second = mine.tensor_split(2)
            mine, theirs = (second, first) if rank & distance else (first, second)
            path.append((rank ^ distance, mine, theirs))
            _swap(dist, theirs, received[: len(mine)], rank ^ distance)
            op(mine, received[: len(mine)], out=mine)
        if between:
            between(mine)
        for partner, mine, theirs in reversed(path):
            _swap(dist, mine, theirs, partner)

    _by_a_power_of_two(tensor, dist, op, halve_and_double)


def _doubling(tensor, dist, op):
    """Recursive doubling: partners at distance 1, 2, 4, … swap all they have, and both reduce it."""

    def double(dist):
        rank, distance, received = dist.get_rank(), 1, torch.empty_like(tensor)
        while distance < dist.get_world_size():
            _swap(dist, tensor, received, rank ^ distance)
            op(tensor, received, out=tensor)
            distance *= 2

    _by_a_power_of_two(tensor, dist, op, double)


def _by_a_power_of_two(tensor, dist, op, program):
    """Run program(dist) on a power of two of the ranks. Each other rank hands its tensor to a
    neighbor, who works for both and hands back the result at the end."""
    rank, size = dist.get_rank(), dist.get_world_size()
    extra = size - (1 << size.bit_length() - 1)  # so many more than a power of two
    workers = Among(dist, [*range(0, 2 * extra, 2), *range(2 * extra, size)])
    if rank not in workers.ranks:
        dist.send(tensor, rank - 1)
        dist.recv(tensor, rank - 1)
        return
    if rank < 2 * extra:
        received = torch.empty_like(tensor)
        dist.recv(received, rank + 1)
        op(tensor, received, out=tensor)
    program(workers)
    if rank < 2 * extra:
        dist.send(tensor, rank + 1)


def _swap(dist, outgoing, incoming, partner):
    for work in dist.batch_isend_irecv([
        dist.P2POp(dist.isend, outgoing, partner),
        dist.P2POp(dist.irecv, incoming, partner),
    ]):
        work.wait()


def _to_all(chunks, dist, op=None):
    """With `op` every rank sends each other one that rank's chunk and reduces what comes into its
    own; without it every rank sends its own chunk to all others. All messages are posted at once."""
    rank, size = dist.get_rank(), dist.get_world_size()
    batch, received = [], []
    for step in range(1, size):
        to, source = (rank + step) % size, (rank - step) % size
        received.append(torch.empty_like(chunks[rank]) if op else chunks[source])
        batch.append(dist.P2POp(dist.isend, chunks[to if op else rank], to))
        batch.append(dist.P2POp(dist.irecv, received[-1], source))
    for work in dist.batch_isend_irecv(batch) if batch else ():
        work.wait()
    for other in received if op else ():
        op(chunks[rank], other, out=chunks[rank])


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
        ]):
            work.wait()
        if op:
            op(chunk, received, out=chunk)


def _levels(dist, ranks_per_node):
    """The ranks of this rank's node, and those at its place in every node."""
    rank, size = dist.get_rank(), dist.get_world_size()
    if ranks_per_node < 1 or size % ranks_per_node:
        raise ValueError(
            f"{size} ranks do not make whole nodes of {ranks_per_node}: "
            "give a ranks_per_node that divides them"
        )
    place = rank % ranks_per_node
    inside = Among(dist, range(rank - place, rank - place + ranks_per_node))
    return inside, Among(dist, range(place, size, ranks_per_node))


class Among:
    """Some of the ranks, as if there were no others: rank i is `ranks[i]` of `dist`.

    For messages, which is all that these algorithms need of a `dist`. A rank that is none of them
    has the rank -1, as in a process group.
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
