"""Reduce-scatter: every rank has a whole tensor, and afterwards each has its shard of the sum.

Shard r of a tensor is `tensor.tensor_split(p)[r]`: the first shards are one element longer where p
does not divide the length. Each function is a whole rank program. `dist` is `torch.distributed`, or
anything that speaks like it. `op` is called as op(a, b, out=a): torch.add, torch.maximum,
torch.mul, … Costs are for n bytes, all shards together, on p ranks over links of α + nβ, with γ to
reduce a byte.
"""

from itertools import accumulate

import torch


def ring_reduce_scatter(tensor, dist, op=torch.add):
    """Each shard goes once round the ring, and every rank adds its own to it on the way.

    Before: every rank has its own `tensor`. After: rank r has the result in shard r; its other
    shards are partial results. Cost: (p−1)α + (p−1)/p·n(β + γ).
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    shards = tensor.tensor_split(size)
    for step in range(size - 1):
        shard = shards[(rank - step - 2) % size]
        received = torch.empty_like(shard)
        for work in dist.batch_isend_irecv([
            dist.P2POp(dist.isend, shards[(rank - step - 1) % size], right),
            dist.P2POp(dist.irecv, received, left),
        ]):
            work.wait()
        op(shard, received, out=shard)


def recursive_halving_reduce_scatter(tensor, dist, op=torch.add):
    """Partners at distance p/2, p/4, … 1 swap halves: each reduces the half in which its own shard
    lies, and goes on with that half.

    Where p is not a power of two, some ranks first hand all they have to a neighbor, who works for
    both and hands back one shard at the end.

    Before: every rank has its own `tensor`. After: rank r has the result in shard r; its other
    shards are partial results. Cost: lg p·α + (p−1)/p·n(β + γ); where p is not a power of two, one
    message of the whole (and its reducing) and one of a shard more. Source: Thakur, Rabenseifner,
    Gropp 2005.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    extra = size - (1 << size.bit_length() - 1)  # so many more than a power of two
    workers = [*range(0, 2 * extra, 2), *range(2 * extra, size)]
    shards = tensor.tensor_split(size)
    if rank not in workers:
        dist.send(tensor, rank - 1)
        dist.recv(shards[rank], rank - 1)
        return
    received = torch.empty_like(tensor)
    if rank < 2 * extra:
        dist.recv(received, rank + 1)
        op(tensor, received, out=tensor)
    cuts = [0, *accumulate(len(shard) for shard in shards)]
    cuts = [cuts[worker] for worker in [*workers, size]]
    place, distance = workers.index(rank), len(workers)
    while distance > 1:
        distance //= 2
        keep, give = (side // distance * distance for side in (place, place ^ distance))
        half, partner = tensor[cuts[keep] : cuts[keep + distance]], workers[place ^ distance]
        for work in dist.batch_isend_irecv([
            dist.P2POp(dist.isend, tensor[cuts[give] : cuts[give + distance]], partner),
            dist.P2POp(dist.irecv, received[: len(half)], partner),
        ]):
            work.wait()
        op(half, received[: len(half)], out=half)
    if rank < 2 * extra:
        dist.send(shards[rank + 1], rank + 1)


def bruck_reduce_scatter(tensor, dist, op=torch.add):
    """Bruck's all-gather run backwards: what would be copied from the left is added up on its way
    to the right.

    Send what lies 4, 2, 1 ranks further on and beyond, summed so far, and add what comes from as
    many ranks before.

    Before: every rank has its own `tensor`. After: rank r has the result in shard r; its other
    shards are partial results. Cost: ⌈lg p⌉α + (p−1)/p·n(β + γ), for any p. Source: Bruck, Ho,
    Kipnis, Upfal, Weathersby 1997, reversed.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    shards = tensor.tensor_split(size)
    shards = shards[rank:] + shards[:rank]  # mine first
    distance = 1 << (size - 1).bit_length()
    while distance > 1:
        distance //= 2
        leaving = shards[distance : 2 * distance]
        kept = shards[: len(leaving)]
        outgoing = torch.cat(leaving)
        incoming = tensor.new_empty(sum(len(shard) for shard in kept))
        for work in dist.batch_isend_irecv([
            dist.P2POp(dist.isend, outgoing, (rank + distance) % size),
            dist.P2POp(dist.irecv, incoming, (rank - distance) % size),
        ]):
            work.wait()
        for shard, part in zip(kept, incoming.split([len(shard) for shard in kept])):
            op(shard, part, out=shard)


def direct_reduce_scatter(tensor, dist, op=torch.add):
    """Every rank sends each other rank's shard straight to it, all at once, and reduces what it gets.

    Before: every rank has its own `tensor`. After: rank r has the result in shard r; its other
    shards are as they were. Cost, with a gap of g: α + (p−2)g + (p−1)/p·n(β + γ). Source: the first
    half of a two-shot all-reduce.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    shards, batch = tensor.tensor_split(size), []
    received = [torch.empty_like(shards[rank]) for _ in range(1, size)]
    for step in range(1, size):
        to, source = (rank + step) % size, (rank - step) % size
        batch.append(dist.P2POp(dist.isend, shards[to], to))
        batch.append(dist.P2POp(dist.irecv, received[step - 1], source))
    for work in dist.batch_isend_irecv(batch) if batch else ():
        work.wait()
    for shard in received:
        op(shards[rank], shard, out=shards[rank])


def multi_ring_reduce_scatter(tensor, dist, op=torch.add, ranks_per_node=8):
    """A ring for each rank of a node, all at once, each with its part of every shard: ring c leaves
    every node at its rank c, so that every network card carries one ring out and one in. Every node
    has `ranks_per_node` ranks.

    Before: every rank has its own `tensor`. After: rank r has the result in shard r; its other
    shards are partial results. Cost, with r ranks and r cards a node, for long vectors:
    (p−1)/p·n/r·β between nodes, and (r−1) times as much inside a node, at the same time; with
    (p−1)/p·nγ. Source: NCCL's channels, in Hu et al. 2025.
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
        batch, reduced = [], []
        for c, ring in enumerate(rings):
            at = ring.index(rank)
            leaving, coming = ring[(at - step - 1) % size], ring[(at - step - 2) % size]
            received = torch.empty_like(parts[coming][c])
            batch.append(dist.P2POp(dist.isend, parts[leaving][c], ring[(at + 1) % size]))
            batch.append(dist.P2POp(dist.irecv, received, ring[at - 1]))
            reduced.append((parts[coming][c], received))
        for work in dist.batch_isend_irecv(batch):
            work.wait()
        for part, received in reduced:
            op(part, received, out=part)
