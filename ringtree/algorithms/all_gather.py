"""All-gather: each rank has its shard of a tensor, and afterwards every rank has all shards.

Shard r of a tensor is `tensor.tensor_split(p)[r]`: the first shards are one element longer where p
does not divide the length. Each function is a whole rank program. `dist` is `torch.distributed`, or
anything that speaks like it. Costs are for n bytes, all shards together, on p ranks over links of
α + nβ.
"""

from itertools import accumulate

import torch


def ring_all_gather(tensor, dist):
    """Every rank hands on to the right what it got from the left, p − 1 times.

    Before: rank r has shard r of `tensor`. After: every rank has all of it.
    Cost: (p−1)α + (p−1)/p·nβ.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    shards = tensor.tensor_split(size)
    for step in range(size - 1):
        for work in dist.batch_isend_irecv([
            dist.P2POp(dist.isend, shards[(rank - step) % size], right),
            dist.P2POp(dist.irecv, shards[(rank - step - 1) % size], left),
        ]):
            work.wait()


def recursive_doubling_all_gather(tensor, dist):
    """Partners at distance 1, 2, 4, … swap all that they have.

    Where p is not a power of two, some ranks first hand their shard to a neighbor, who works for both
    and hands back the whole at the end.

    Before: rank r has shard r of `tensor`. After: every rank has all of it.
    Cost: lg p·α + (p−1)/p·nβ; where p is not a power of two, one message of a shard and one of the
    whole more. Source: Thakur, Rabenseifner, Gropp 2005.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    extra = size - (1 << size.bit_length() - 1)  # so many more than a power of two
    workers = [*range(0, 2 * extra, 2), *range(2 * extra, size)]
    shards = tensor.tensor_split(size)
    if rank not in workers:
        dist.send(shards[rank], rank - 1)
        dist.recv(tensor, rank - 1)
        return
    if rank < 2 * extra:
        dist.recv(shards[rank + 1], rank + 1)
    cuts = [0, *accumulate(len(shard) for shard in shards)]
    cuts = [cuts[worker] for worker in [*workers, size]]
    place, distance = workers.index(rank), 1
    while distance < len(workers):
        mine, theirs = (side // distance * distance for side in (place, place ^ distance))
        partner = workers[place ^ distance]
        for work in dist.batch_isend_irecv([
            dist.P2POp(dist.isend, tensor[cuts[mine] : cuts[mine + distance]], partner),
            dist.P2POp(dist.irecv, tensor[cuts[theirs] : cuts[theirs + distance]], partner),
        ]):
            work.wait()
        distance *= 2
    if rank < 2 * extra:
        dist.send(tensor, rank + 1)


def bruck_all_gather(tensor, dist):
    """Send all you have 1, 2, 4, … ranks to the left, and get as much from the right.

    Before: rank r has shard r of `tensor`. After: every rank has all of it.
    Cost: ⌈lg p⌉α + (p−1)/p·nβ, for any p. Source: Bruck, Ho, Kipnis, Upfal, Weathersby 1997.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    shards = tensor.tensor_split(size)
    shards = shards[rank:] + shards[:rank]  # mine first, as the others come
    distance = 1
    while distance < size:
        coming = shards[distance : 2 * distance]
        outgoing = torch.cat(shards[: len(coming)])
        incoming = tensor.new_empty(sum(len(shard) for shard in coming))
        for work in dist.batch_isend_irecv([
            dist.P2POp(dist.isend, outgoing, (rank - distance) % size),
            dist.P2POp(dist.irecv, incoming, (rank + distance) % size),
        ]):
            work.wait()
        for shard, part in zip(coming, incoming.split([len(shard) for shard in coming])):
            shard.copy_(part)
        distance *= 2


def direct_all_gather(tensor, dist):
    """Every rank sends its shard to all others at once.

    Before: rank r has shard r of `tensor`. After: every rank has all of it.
    Cost, with a gap of g: α + (p−2)g + (p−1)/p·nβ. Source: the second half of a two-shot all-reduce.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    shards, batch = tensor.tensor_split(size), []
    for step in range(1, size):
        to, source = (rank + step) % size, (rank - step) % size
        batch.append(dist.P2POp(dist.isend, shards[rank], to))
        batch.append(dist.P2POp(dist.irecv, shards[source], source))
    for work in dist.batch_isend_irecv(batch) if batch else ():
        work.wait()


def multi_ring_all_gather(tensor, dist, ranks_per_node=8):
    """A ring for each rank of a node, all at once, each with its part of every shard: ring c leaves
    every node at its rank c, so that every network card carries one ring out and one in. Every node
    has `ranks_per_node` ranks.

    Before: rank r has shard r of `tensor`. After: every rank has all of it. Cost, with r ranks and r
    cards a node, for long vectors: (p−1)/p·n/r·β between nodes, and (r−1) times as much inside a
    node, at the same time. Source: NCCL's channels, in Hu et al. 2025.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    if ranks_per_node < 1 or size % ranks_per_node:
        raise ValueError(
            f"{size} ranks do not make whole nodes of {ranks_per_node}: "
            "give a ranks_per_node that divides them"
        )
    parts = [shard.tensor_split(ranks_per_node) for shard in tensor.tensor_split(size)]
    rings = [
        [
            node + (leaves + 1 + place) % ranks_per_node
            for node in range(0, size, ranks_per_node)
            for place in range(ranks_per_node)
        ]
        for leaves in range(ranks_per_node)
    ]
    for step in range(size - 1):
        batch = []
        for c, ring in enumerate(rings):
            at = ring.index(rank)
            leaving, coming = ring[(at - step) % size], ring[(at - step - 1) % size]
            batch.append(dist.P2POp(dist.isend, parts[leaving][c], ring[(at + 1) % size]))
            batch.append(dist.P2POp(dist.irecv, parts[coming][c], ring[at - 1]))
        for work in dist.batch_isend_irecv(batch):
            work.wait()
