"""All-reduce: every rank gets the sum (or another operation) of what all ranks have.

Each function is a whole rank program; before it every rank has its own `tensor`, and after it every
rank has the result in it. `dist` is `torch.distributed`, or anything that speaks like it. `op` is
called as op(a, b, out=a): torch.add, torch.maximum, torch.mul, … Costs are for n bytes on p ranks
over links of α + nβ, with γ to reduce a byte.
"""

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
        ]):
            work.wait()
        if reducing:
            op(chunk, received, out=chunk)


def recursive_doubling_all_reduce(tensor, dist, op=torch.add):
    """Partners at distance 1, 2, 4, … swap all they have, and both reduce it.

    Where p is not a power of two, some ranks first hand theirs to a neighbor, who works for both and
    hands back the result at the end.

    Cost: lg p(α + nβ + nγ); where p is not a power of two ⌊lg p⌋ of them, then one message to reduce
    and one more. Source: Thakur, Rabenseifner, Gropp 2005.
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
        ]):
            work.wait()
        op(tensor, received, out=tensor)
        distance *= 2
    if rank < 2 * extra:
        dist.send(tensor, rank + 1)


def rabenseifner_all_reduce(tensor, dist, op=torch.add):
    """Recursive halving (partners swap halves and reduce), then recursive doubling back.

    Where p is not a power of two, some ranks first hand theirs to a neighbor, who works for both and
    hands back the result at the end.

    Cost: 2 lg p·α + 2(p−1)/p·nβ + (p−1)/p·nγ; where p is not a power of two, with p′ = 2^⌊lg p⌋:
    (2⌊lg p⌋ + 2)α + (2(p′−1)/p′ + 2)nβ + ((p′−1)/p′ + 1)nγ. Source: Rabenseifner 2004; Thakur,
    Rabenseifner, Gropp 2005.
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
        _exchange(dist, theirs, partner, received[: len(mine)], partner)
        op(mine, received[: len(mine)], out=mine)
    for partner, mine, theirs in reversed(path):
        _exchange(dist, mine, partner, theirs, partner)
    if rank < 2 * extra:
        dist.send(tensor, rank + 1)


def bruck_all_reduce(tensor, dist, op=torch.add):
    """Bruck's reduce-scatter, then Bruck's all-gather: few rounds and few bytes, for any p.

    Cost: 2⌈lg p⌉α + 2(p−1)/p·nβ + (p−1)/p·nγ. Source: Bruck, Ho, Kipnis, Upfal, Weathersby 1997.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    shards = tensor.tensor_split(size)
    shards = shards[rank:] + shards[:rank]  # mine first
    distances = [1 << i for i in range((size - 1).bit_length())]
    for distance in reversed(distances):
        leaving = shards[distance : 2 * distance]
        kept = shards[: len(leaving)]
        incoming = tensor.new_empty(sum(len(shard) for shard in kept))
        _exchange(
            dist, torch.cat(leaving), (rank + distance) % size, incoming, (rank - distance) % size
        )
        for shard, part in zip(kept, incoming.split([len(shard) for shard in kept])):
            op(shard, part, out=shard)
    for distance in distances:
        leaving = shards[: min(distance, size - distance)]
        coming = shards[distance : distance + len(leaving)]
        incoming = tensor.new_empty(sum(len(shard) for shard in coming))
        _exchange(
            dist, torch.cat(leaving), (rank - distance) % size, incoming, (rank + distance) % size
        )
        for shard, part in zip(coming, incoming.split([len(shard) for shard in coming])):
            shard.copy_(part)


def one_shot_all_reduce(tensor, dist, op=torch.add):
    """Every rank sends its whole tensor to all others at once, and each reduces all that come.

    Cost, with a gap of g: α + (p−2)g + (p−1)n(β + γ). Source: the kernels for short vectors inside
    an NVLink domain (TensorRT-LLM, vLLM, NCCL's AGxLL).
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    received, batch = [torch.empty_like(tensor) for _ in range(1, size)], []
    for step in range(1, size):
        batch.append(dist.P2POp(dist.isend, tensor, (rank + step) % size))
        batch.append(dist.P2POp(dist.irecv, received[step - 1], (rank - step) % size))
    for work in dist.batch_isend_irecv(batch) if batch else ():
        work.wait()
    for other in received:
        op(tensor, other, out=tensor)


def two_shot_all_reduce(tensor, dist, op=torch.add):
    """A reduce-scatter, then an all-gather, each by messages to all others at once.

    Cost, with a gap of g: 2α + 2(p−2)g + 2(p−1)/p·nβ + (p−1)/p·nγ. Source: as for
    `one_shot_all_reduce` (NCCL's RSxLD_AGxST).
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    shards = tensor.tensor_split(size)
    received, batch = [torch.empty_like(shards[rank]) for _ in range(1, size)], []
    for step in range(1, size):
        to, source = (rank + step) % size, (rank - step) % size
        batch.append(dist.P2POp(dist.isend, shards[to], to))
        batch.append(dist.P2POp(dist.irecv, received[step - 1], source))
    for work in dist.batch_isend_irecv(batch) if batch else ():
        work.wait()
    for other in received:
        op(shards[rank], other, out=shards[rank])
    batch = []
    for step in range(1, size):
        to, source = (rank + step) % size, (rank - step) % size
        batch.append(dist.P2POp(dist.isend, shards[rank], to))
        batch.append(dist.P2POp(dist.irecv, shards[source], source))
    for work in dist.batch_isend_irecv(batch) if batch else ():
        work.wait()


def _exchange(dist, outgoing, to, incoming, source):
    for work in dist.batch_isend_irecv([
        dist.P2POp(dist.isend, outgoing, to),
        dist.P2POp(dist.irecv, incoming, source),
    ]):
        work.wait()
