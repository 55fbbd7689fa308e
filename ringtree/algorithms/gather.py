"""Gather: each rank has its shard of a tensor, and afterwards the root has all shards.

Shard r of a tensor is `tensor.tensor_split(p)[r]`: the first shards are one element longer where p
does not divide the length. Each function is a whole rank program. `dist` is `torch.distributed`, or
anything that speaks like it. Costs are for n bytes, all shards together, on p ranks over links of
α + nβ.
"""

from itertools import accumulate


def flat_gather(tensor, dist, root=0):
    """The root receives one shard after the other.

    Before: rank r has shard r of `tensor`. After: `root` has all of it.
    Cost: (p−1)α + (p−1)/p·nβ.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    shards = tensor.tensor_split(size)
    if rank != root:
        dist.send(shards[rank], root)
        return
    for other in range(size):
        if other != root:
            dist.recv(shards[other], other)


def mst_gather(tensor, dist, root=0):
    """Minimum spanning tree: the tree of the scatter, walked from its leaves to the root.

    Before: rank r has shard r of `tensor`. After: `root` has all of it; the others may have got
    some shards. Cost: ⌈lg p⌉α + (p−1)/p·nβ where the root always keeps the larger half, as root 0
    does. Source: Chan et al. 2007.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    cuts = [0, *accumulate(len(shard) for shard in tensor.tensor_split(size))]
    first, end, edges = 0, size, []
    while end - first > 1:
        middle = (first + end + 1) // 2
        partner = middle if root < middle else first
        begin, stop = (middle, end) if root < middle else (first, middle)
        half = tensor[cuts[begin] : cuts[stop]]
        edges.append((root, partner, half))
        if rank < middle:
            end, root = middle, min(root, partner)
        else:
            first, root = middle, max(root, partner)
    for root, partner, half in reversed(edges):
        if rank == partner:
            dist.send(half, root)
        if rank == root:
            dist.recv(half, partner)


def direct_gather(tensor, dist, root=0):
    """The root posts all its receives at once, and each rank sends its shard.

    Before: rank r has shard r of `tensor`. After: `root` has all of it.
    Cost, with a gap of g: α + (p−2)g + (p−1)/p·nβ. Source: as for `direct_scatter`.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    shards = tensor.tensor_split(size)
    if rank != root:
        dist.send(shards[rank], root)
        return
    others = [(root + away) % size for away in range(1, size)]
    for work in [dist.irecv(shards[other], other) for other in others]:
        work.wait()
