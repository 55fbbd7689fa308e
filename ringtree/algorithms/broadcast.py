"""Broadcast: what the root has, every rank has afterwards.

Each function is a whole rank program. `dist` is `torch.distributed`, or anything that speaks like
it. Costs are for n bytes on p ranks over links of α + nβ.
"""

from heapq import heappop, heappush
from itertools import accumulate

import torch


def flat_broadcast(tensor, dist, root=0):
    """The root sends to one rank after the other.

    Before: `root` has `tensor`. After: every rank has it.
    Cost: (p−1)(α + nβ), all of it at the root.
    """
    rank = dist.get_rank()
    if rank != root:
        dist.recv(tensor, root)
        return
    for other in range(dist.get_world_size()):
        if other != root:
            dist.send(tensor, other)


def mst_broadcast(tensor, dist, root=0):
    """Minimum spanning tree: the ranks split in two halves, the root sends to one rank of the other
    half, and each half goes on alone, with a root of its own.

    Before: `root` has `tensor`. After: every rank has it.
    Cost: ⌈lg p⌉(α + nβ). Source: Chan, Heimlich, Purkayastha, van de Geijn 2007.
    """
    rank = dist.get_rank()
    first, end = 0, dist.get_world_size()
    while end - first > 1:
        middle = (first + end + 1) // 2
        partner = middle if root < middle else first
        if rank == root:
            dist.send(tensor, partner)
        if rank == partner:
            dist.recv(tensor, root)
        if rank < middle:
            end, root = middle, min(root, partner)
        else:
            first, root = middle, max(root, partner)


def chain_broadcast(tensor, dist, root=0, chunks=8):
    """Each rank hands on to the next, in chunks: one chunk comes in while the one before goes out.

    Before: `root` has `tensor`. After: every rank has it.
    Cost, for k chunks: (p − 2 + k)(α + n/k·β).
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % size, (rank + 1) % size
    parts = tensor.tensor_split(chunks)
    for step in range(chunks + 1):
        batch = []
        if step > 0 and right != root:
            batch.append(dist.P2POp(dist.isend, parts[step - 1], right))
        if step < chunks and rank != root:
            batch.append(dist.P2POp(dist.irecv, parts[step], left))
        for work in dist.batch_isend_irecv(batch) if batch else ():
            work.wait()


def scatter_all_gather_broadcast(tensor, dist, root=0):
    """The root scatters the tensor over a tree, then a ring gathers the shards on every rank.

    Before: `root` has `tensor`. After: every rank has it.
    Cost: (lg p + p − 1)α + 2(p−1)/p·nβ. Source: van de Geijn's, in Chan et al. 2007.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    shards = tensor.tensor_split(size)
    _scatter(tensor, dist, root)
    for step in range(size - 1):
        for work in dist.batch_isend_irecv([
            dist.P2POp(dist.isend, shards[(rank - step) % size], (rank + 1) % size),
            dist.P2POp(dist.irecv, shards[(rank - step - 1) % size], (rank - 1) % size),
        ]):
            work.wait()


def scatter_bruck_broadcast(tensor, dist, root=0):
    """The root scatters the tensor over a tree, then Bruck's all-gather brings it together.

    Before: `root` has `tensor`. After: every rank has it.
    Cost: 2⌈lg p⌉α + 2(p−1)/p·nβ where the root keeps the larger half, as root 0 does. Source: the
    broadcast of Thakur, Rabenseifner, Gropp 2005 for middle lengths, with Bruck et al. 1997 for any p.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    shards = tensor.tensor_split(size)
    _scatter(tensor, dist, root)
    shards, distance = shards[rank:] + shards[:rank], 1  # mine first
    while distance < size:
        leaving = shards[: min(distance, size - distance)]
        coming = shards[distance : distance + len(leaving)]
        outgoing = torch.cat(leaving)
        incoming = tensor.new_empty(sum(len(shard) for shard in coming))
        for work in dist.batch_isend_irecv([
            dist.P2POp(dist.isend, outgoing, (rank - distance) % size),
            dist.P2POp(dist.irecv, incoming, (rank + distance) % size),
        ]):
            work.wait()
        for shard, part in zip(coming, incoming.split([len(shard) for shard in coming])):
            shard.copy_(part)
        distance *= 2


def greedy_broadcast(tensor, dist, root=0, latency=4):
    """Whoever has the tensor sends it on, again and again, without waiting for its arrival: the next
    rank hears from the one that can send first.

    latency: how many messages a port starts until the first of them has arrived, (α + nβ)/(g + nβ)
    rounded. At 1 this is a binomial tree, and where it is p or more the root sends to all.

    Before: `root` has `tensor`. After: every rank has it. Cost: the least of all that send the
    tensor in one piece, in units of g + nβ. Source: Karp, Sahay, Santos, Schauser 1993; Bar-Noy,
    Kipnis 1994.
    """
    size = dist.get_world_size()
    place = (dist.get_rank() - root) % size
    ready, parent, children = [(0, 0)], None, []  # when a rank that has it can send next
    for other in range(1, size):
        start, sender = heappop(ready)
        heappush(ready, (start + 1, sender))
        heappush(ready, (start + latency, other))
        if sender == place:
            children.append(other)
        if other == place:
            parent = sender
    if parent is not None:
        dist.recv(tensor, (parent + root) % size)
    for work in [dist.isend(tensor, (child + root) % size) for child in children]:
        work.wait()


def chain_broadcast_ahead(tensor, dist, root=0, chunks=8):
    """A chain whose ranks post all their receives ahead and pass each chunk on as it comes.

    With a gap of g < α a port has several chunks under way.

    Before: `root` has `tensor`. After: every rank has it.
    Cost, for k chunks: (p−1)(α + n/k·β) + (k−1)(g + n/k·β).
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % size, (rank + 1) % size
    parts, sent = tensor.tensor_split(chunks), []
    coming = [dist.irecv(part, left) if rank != root else None for part in parts]
    for part, work in zip(parts, coming):
        if work is not None:
            work.wait()
        if right != root:
            sent.append(dist.isend(part, right))
    for work in sent:
        work.wait()


def _scatter(tensor, dist, root):
    """Over a tree: each rank gets its shard, and some get more on the way."""
    rank, size = dist.get_rank(), dist.get_world_size()
    cuts = [0, *accumulate(len(shard) for shard in tensor.tensor_split(size))]
    first, end = 0, size
    while end - first > 1:
        middle = (first + end + 1) // 2
        partner = middle if root < middle else first
        begin, stop = (middle, end) if root < middle else (first, middle)
        half = tensor[cuts[begin] : cuts[stop]]
        if rank == root:
            dist.send(half, partner)
        if rank == partner:
            dist.recv(half, root)
        if rank < middle:
            end, root = middle, min(root, partner)
        else:
            first, root = middle, max(root, partner)
