"""Scatter: the root has all shards of a tensor, and afterwards each rank has its own.

Shard r of a tensor is `tensor.tensor_split(p)[r]`: the first shards are one element longer where p
does not divide the length. Each function is a whole rank program. `dist` is `torch.distributed`, or
anything that speaks like it. Costs are for n bytes, all shards together, on p ranks over links of
α + nβ.
"""

from itertools import accumulate


def flat_scatter(tensor, dist, root=0):
    """The root sends one shard after the other.

    Before: `root` has all of `tensor`. After: rank r has its shard r; its other shards are as they
    were. Cost: (p−1)α + (p−1)/p·nβ.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    shards = tensor.tensor_split(size)
    if rank != root:
        dist.recv(shards[rank], root)
        return
    for other in range(size):
        if other != root:
            dist.send(shards[other], other)


def mst_scatter(tensor, dist, root=0):
    """Minimum spanning tree: the root sends one rank of the other half the shards of all that half,
    and each half goes on alone, with a root of its own.

    Before: `root` has all of `tensor`. After: rank r has its shard r; its other shards may have
    been overwritten. Cost: ⌈lg p⌉α + (p−1)/p·nβ where the root always keeps the larger half, as
    root 0 does. Source: Chan et al. 2007.
    """
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


def direct_scatter(tensor, dist, root=0):
    """The root posts all its sends at once, and each rank receives its shard.

    Before: `root` has all of `tensor`. After: rank r has its shard r; its other shards are as they
    were. Cost, with a gap of g: α + (p−2)g + (p−1)/p·nβ. At g = α that is what sending one after the
    other takes. Source: what Gloo, MPICH and NCCL do for short shards.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    shards = tensor.tensor_split(size)
    if rank != root:
        dist.recv(shards[rank], root)
        return
    others = [(root + away) % size for away in range(1, size)]
    for work in [dist.isend(shards[other], other) for other in others]:
        work.wait()
