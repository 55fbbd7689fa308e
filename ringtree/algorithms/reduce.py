"""Reduce: the root gets the sum (or another operation) of what all ranks have.

Each function is a whole rank program. `dist` is `torch.distributed`, or anything that
speaks like it. `op` is called as op(a, b, out=a): torch.add, torch.maximum, torch.mul, …
Costs are for n bytes on p ranks over links of α + nβ, with γ to reduce a byte.
"""

import torch


def flat_reduce(tensor, dist, root=0, op=torch.add):
    """The root receives from one rank after the other.

    Before: every rank has its own `tensor`. After: `root` has the result in it; the
    others keep what they had. Cost: (p−1)(α + nβ + nγ), all of it at the root.
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

    Before: every rank has its own `tensor`. After: `root` has
    the result in it, the others are left with partial results.
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
    """Each rank adds its own to what comes and hands it on, in chunks: one comes in
    while the one before goes out. The chain begins behind the root and ends at it.

    Before: every rank has its own `tensor`. After: `root` has
    the result in it, the others are left with partial
    results. Cost, for k chunks: (p − 2 + k)(α + n/k·(β + γ)).
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
