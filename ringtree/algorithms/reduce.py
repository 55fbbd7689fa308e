"""Reduce: the root gets the sum (or another operation) of what all ranks have.

Each function is a whole rank program. `dist` is `torch.distributed`, or anything that speaks like
it. `op` is called as op(a, b, out=a): torch.add, torch.maximum, torch.mul, … Costs are for n bytes
on p ranks over links of α + nβ, with γ to reduce a byte.
"""

from heapq import heappop, heappush
from itertools import accumulate

import torch


def flat_reduce(tensor, dist, root=0, op=torch.add):
    """The root receives from one rank after the other.

    Before: every rank has its own `tensor`. After: `root` has the result in it; the others keep
    what they had. Cost: (p−1)(α + nβ + nγ), all of it at the root.
    """
    if dist.get_rank() != root:
        dist.send(tensor, root)
        return
    received = torch.empty_like(tensor)
    for other in range(dist.get_world_size()):
        if other != root:
            dist.recv(received, other)
            op(tensor, received, out=tensor)


def mst_reduce(tensor, dist, root=0, op=torch.add):
    """Minimum spanning tree: that of the broadcast, walked from its leaves to the root.

    Before: every rank has its own `tensor`. After: `root` has the result in it, the others are left
    with partial results.
    Cost: ⌈lg p⌉(α + nβ + nγ). Source: Chan et al. 2007.
    """
    rank = dist.get_rank()
    first, end, edges = 0, dist.get_world_size(), []
    while end - first > 1:
        middle = (first + end + 1) // 2
        partner = middle if root < middle else first
        edges.append((root, partner))
        if rank < middle:
            end, root = middle, min(root, partner)
        else:
            first, root = middle, max(root, partner)
    received = torch.empty_like(tensor)
    for root, partner in reversed(edges):
        if rank == partner:
            dist.send(tensor, root)
        if rank == root:
            dist.recv(received, partner)
            op(tensor, received, out=tensor)


def chain_reduce(tensor, dist, root=0, op=torch.add, chunks=8):
    """Each rank adds its own to each chunk that it receives and hands the sum on: one chunk comes
    in while the one before goes out. The chain begins behind the root and ends at it.

    Before: every rank has its own `tensor`. After: `root` has the result in it, the others are left
    with partial results. Cost, for k chunks: (p − 2 + k)(α + n/k·(β + γ)).
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % size, (rank + 1) % size
    parts = tensor.tensor_split(chunks)
    for step in range(chunks + 1):
        batch, received = [], None
        if step > 0 and rank != root:
            batch.append(dist.P2POp(dist.isend, parts[step - 1], right))
        if step < chunks and left != root:
            received = torch.empty_like(parts[step])
            batch.append(dist.P2POp(dist.irecv, received, left))
        for work in dist.batch_isend_irecv(batch) if batch else ():
            work.wait()
        if received is not None:
            op(parts[step], received, out=parts[step])


def rabenseifner_reduce(tensor, dist, root=0, op=torch.add):
    """Reduce-scatter by halving, then gather the parts at the root over a tree.

    Where p is not a power of two, some ranks first hand all they have to a neighbor, who works for
    both; if the root is one of them, it gets the result in the end.

    Before: every rank has its own `tensor`. After: `root` has the result in it, the others are left
    with partial results. Cost: 2 lg p·α + 2(p−1)/p·nβ + (p−1)/p·nγ; where p is not a power of two, a
    message of the whole (and its reducing) more, and for some roots another. Source:
    Rabenseifner's, in Thakur, Rabenseifner, Gropp 2005.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    extra = size - (1 << size.bit_length() - 1)  # so many more than a power of two
    workers = [*range(0, 2 * extra, 2), *range(2 * extra, size)]
    if rank not in workers:
        dist.send(tensor, rank - 1)
        if rank == root:
            dist.recv(tensor, rank - 1)
        return
    received = torch.empty_like(tensor)
    if rank < 2 * extra:
        dist.recv(received, rank + 1)
        op(tensor, received, out=tensor)
    cuts = [0, *accumulate(len(part) for part in tensor.tensor_split(len(workers)))]
    place, goal = workers.index(rank), workers.index(root if root in workers else root - 1)
    distance = len(workers)
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
    while distance < len(workers):
        mine, theirs = (side // distance * distance for side in (place, place ^ distance))
        partner = workers[place ^ distance]
        if (place ^ goal) & distance:
            dist.send(tensor[cuts[mine] : cuts[mine + distance]], partner)
            return
        dist.recv(tensor[cuts[theirs] : cuts[theirs + distance]], partner)
        distance *= 2
    if root not in workers:
        dist.send(tensor, root)


def chain_reduce_ahead(tensor, dist, root=0, op=torch.add, chunks=8):
    """A chain whose ranks post all their receives ahead and hand each chunk on, reduced, as it comes.

    With a gap of g < α a port has several chunks under way.

    Before: every rank has its own `tensor`. After: `root` has the result in it, the others are left
    with partial results. Cost, for k chunks: (p−1)(α + n/k·(β + γ)), and for each further chunk the
    longer of g + n/k·β and n/k·γ.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % size, (rank + 1) % size
    parts, sent = tensor.tensor_split(chunks), []
    hears = left != root
    received = [torch.empty_like(part) if hears else None for part in parts]
    coming = [dist.irecv(part, left) if hears else None for part in received]
    for part, other, work in zip(parts, received, coming):
        if hears:
            work.wait()
            op(part, other, out=part)
        if rank != root:
            sent.append(dist.isend(part, right))
    for work in sent:
        work.wait()


def bruck_reduce(tensor, dist, root=0, op=torch.add):
    """Reduce-scatter by Bruck's strides, for any number of ranks, then gather the parts over a tree.

    Before: every rank has its own `tensor`. After: `root` has the result in it, the others are left
    with partial results. Cost: 2⌈lg p⌉α + 2(p−1)/p·nβ + (p−1)/p·nγ where the root keeps the larger
    half, as root 0 does. Source: Bruck, Ho, Kipnis, Upfal, Weathersby 1997, reversed.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    shards = tensor.tensor_split(size)
    cuts = [0, *accumulate(len(shard) for shard in shards)]
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
    first, end, edges = 0, size, []
    while end - first > 1:
        middle = (first + end + 1) // 2
        partner = middle if root < middle else first
        begin, stop = (middle, end) if root < middle else (first, middle)
        edges.append((root, partner, tensor[cuts[begin] : cuts[stop]]))
        if rank < middle:
            end, root = middle, min(root, partner)
        else:
            first, root = middle, max(root, partner)
    for root, partner, half in reversed(edges):
        if rank == partner:
            dist.send(half, root)
        if rank == root:
            dist.recv(half, partner)


def greedy_reduce(tensor, dist, root=0, op=torch.add, latency=4):
    """The greedy broadcast, walked from its leaves to the root: a rank posts the receives of all its
    children at once, adds what they send, and then sends the sum up.

    latency: how many messages a port takes in until the first of them has arrived,
    (α + nβ)/(g + nβ) rounded.

    Before: every rank has its own `tensor`. After: `root` has the result in it, the others are left
    with partial results. Cost: that of the greedy broadcast and the adding, which waits for nothing
    but the messages. Source: Karp, Sahay, Santos, Schauser 1993.
    """
    size = dist.get_world_size()
    place = (dist.get_rank() - root) % size
    ready, parent, children = [(0, 0)], None, []
    for other in range(1, size):
        start, sender = heappop(ready)
        heappush(ready, (start + 1, sender))
        heappush(ready, (start + latency, other))
        if sender == place:
            children.append(other)
        if other == place:
            parent = sender
    received = [torch.empty_like(tensor) for _ in children]
    coming = [dist.irecv(part, (child + root) % size) for part, child in zip(received, children)]
    for part, work in reversed([*zip(received, coming)]):  # the last to hear is the first to send
        work.wait()
        op(tensor, part, out=tensor)
    if parent is not None:
        dist.send(tensor, (parent + root) % size)
