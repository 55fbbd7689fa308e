"""All-to-all: every rank has a block for each rank, and afterwards a block from each.

`inputs[j]` is what this rank has for rank j; into `outputs[i]` comes what rank i has for this one.
Each function is a whole rank program. `dist` is `torch.distributed`, or anything that speaks like
it. Costs are for n bytes, all blocks of a rank together, on p ranks over links of α + nβ.
"""

import torch


def pairwise_all_to_all(outputs, inputs, dist):
    """In step s a rank sends to the rank s further on and receives from the one s before.

    Before: every rank has its `inputs`; blocks may be of any lengths. After: it has its `outputs`.
    Cost: (p−1)(α + n/p·β), for blocks of the same length.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    outputs[rank].copy_(inputs[rank])
    for step in range(1, size):
        to, source = (rank + step) % size, (rank - step) % size
        for work in dist.batch_isend_irecv([
            dist.P2POp(dist.isend, inputs[to], to),
            dist.P2POp(dist.irecv, outputs[source], source),
        ]):
            work.wait()


def bruck_all_to_all(outputs, inputs, dist):
    """A block that has d ranks to go travels by the powers of two that make up d.

    So there are few messages, but many blocks travel more than once.

    Before: every rank has its `inputs`; all ranks' blocks for one rank have the same length. After: it
    has its `outputs`. Cost: ⌈lg p⌉(α + n/2·β), where p is a power of two. Source: Bruck, Ho,
    Kipnis, Upfal, Weathersby 1997.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    blocks = [inputs[(rank + away) % size] for away in range(size)]
    distance = 1
    while distance < size:
        moving = [away for away in range(size) if away & distance]
        goals = [(rank - distance + away - away % distance) % size for away in moving]
        outgoing = torch.cat([blocks[away] for away in moving])
        lengths = [len(inputs[goal]) for goal in goals]
        incoming = outgoing.new_empty(sum(lengths))
        for work in dist.batch_isend_irecv([
            dist.P2POp(dist.isend, outgoing, (rank + distance) % size),
            dist.P2POp(dist.irecv, incoming, (rank - distance) % size),
        ]):
            work.wait()
        for away, block in zip(moving, incoming.split(lengths)):
            blocks[away] = block
        distance *= 2
    for away, block in enumerate(blocks):
        outputs[(rank - away) % size].copy_(block)


def direct_all_to_all(outputs, inputs, dist):
    """All messages are posted at once: to the next rank first, then to the one after it, and so on.

    Before: every rank has its `inputs`; blocks may be of any lengths. After: it has its `outputs`.
    Cost, for blocks of the same length and a gap of g: α + (p−2)g + (p−1)/p·nβ. Source: MPICH's way for
    blocks of middle length, and grouped sends and receives of NCCL.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    outputs[rank].copy_(inputs[rank])
    batch = []
    for step in range(1, size):
        to, source = (rank + step) % size, (rank - step) % size
        batch.append(dist.P2POp(dist.isend, inputs[to], to))
        batch.append(dist.P2POp(dist.irecv, outputs[source], source))
    for work in dist.batch_isend_irecv(batch) if batch else ():
        work.wait()
