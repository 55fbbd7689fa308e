"""All-reduce in slices: the vector is cut, and each slice is reduced by the same algorithm, side by side.

While one slice waits for its message, another one's moves: so the α of one slice hides behind the
bytes of the others, and over nodes with a card for each rank one level hides behind the other. The
programs here are those that gain and are first somewhere. Of the others on equal links, one shot
and two shots wait once or twice and get slower by the further gaps, a tree (MST) and recursive
doubling gain too and stay behind the first, and two trees and chains have chunks instead. Each
function is a whole rank program; before it every rank has its own `tensor`, and after it every rank
has the result in it. `dist` is `torch.distributed`, or anything that speaks like it. `op` is called
as op(a, b, out=a): torch.add, torch.maximum, torch.mul, …
"""

import torch


def sliced_ring_all_reduce(tensor, dist, op=torch.add, slices=2):
    """The ring, with a message of every slice under way.

    Cost: no closed form. A port passes 2(p−1) messages of every slice, so the time is at least
    α + (2(p−1)·slices − 1)g + 2(p−1)/p·nβ, and where α is the longer part at least 2(p−1)(α + n/(p·slices)·β).
    """
    _side_by_side(_ring(part, dist, op) for part in tensor.tensor_split(slices))


def sliced_halving_all_reduce(tensor, dist, op=torch.add, slices=2):
    """Recursive halving and doubling back, with a message of every slice under way.

    Where p is no power of two, some ranks first hand theirs to a neighbor, who works for both and
    hands back the result at the end.
    """
    _side_by_side(_halving(part, dist, op) for part in tensor.tensor_split(slices))


def sliced_bruck_all_reduce(tensor, dist, op=torch.add, slices=2):
    """Bruck's reduce-scatter and all-gather, with a message of every slice under way."""
    _side_by_side(_bruck(part, dist, op) for part in tensor.tensor_split(slices))


def sliced_two_level_two_shot_all_reduce(tensor, dist, op=torch.add, ranks_per_node=8, slices=2):
    """Two shots on two levels, with messages of every slice under way: while one slice is between
    nodes, another one is inside them. Every node has `ranks_per_node` ranks.

    Cost: no closed form. Of the two levels' bytes, 2(r−1)/r·nβ inside and 2(N−1)/N·(n/r)β between
    nodes, the longer part counts in full where there are many slices, and the shorter is hidden
    behind it. Source: the levels: `two_level_two_shot_all_reduce`.
    """
    _side_by_side(
        _two_levels(part, dist, op, ranks_per_node) for part in tensor.tensor_split(slices)
    )


def _side_by_side(programs):
    """Each program yields the works that it waits for next: wait for one's, let it post its next, turn to the other."""
    under_way = [(program, next(program, None)) for program in programs]
    while under_way:
        program, works = under_way.pop(0)
        for work in works or ():
            work.wait()
        if works is not None:
            under_way.append((program, next(program, None)))


def _ring(tensor, dist, op):
    rank, size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    chunks = tensor.tensor_split(size)
    for step in range(2 * (size - 1)):
        chunk = chunks[(rank - step - 1) % size]
        reducing = step < size - 1
        received = torch.empty_like(chunk) if reducing else chunk
        yield dist.batch_isend_irecv([
            dist.P2POp(dist.isend, chunks[(rank - step) % size], right),
            dist.P2POp(dist.irecv, received, left),
        ])
        if reducing:
            op(chunk, received, out=chunk)


def _halving(tensor, dist, op):
    rank, size = dist.get_rank(), dist.get_world_size()
    extra = size - (1 << size.bit_length() - 1)  # so many more than a power of two
    workers = [*range(0, 2 * extra, 2), *range(2 * extra, size)]
    if rank not in workers:
        yield [dist.isend(tensor, rank - 1)]
        yield [dist.irecv(tensor, rank - 1)]
        return
    received = torch.empty_like(tensor)
    if rank < 2 * extra:
        yield [dist.irecv(received, rank + 1)]
        op(tensor, received, out=tensor)
    place, distance, mine, path = workers.index(rank), len(workers), tensor, []
    while distance > 1:
        distance //= 2
        partner = workers[place ^ distance]
        first, second = mine.tensor_split(2)
        mine, theirs = (second, first) if place & distance else (first, second)
        path.append((partner, mine, theirs))
        incoming = received[: len(mine)]
        yield dist.batch_isend_irecv([
            dist.P2POp(dist.isend, theirs, partner),
            dist.P2POp(dist.irecv, incoming, partner),
        ])
        op(mine, incoming, out=mine)
    for partner, mine, theirs in reversed(path):
        yield dist.batch_isend_irecv([
            dist.P2POp(dist.isend, mine, partner),
            dist.P2POp(dist.irecv, theirs, partner),
        ])
    if rank < 2 * extra:
        yield [dist.isend(tensor, rank + 1)]


def _bruck(tensor, dist, op):
    rank, size = dist.get_rank(), dist.get_world_size()
    shards = tensor.tensor_split(size)
    shards = shards[rank:] + shards[:rank]  # mine first
    distances = [1 << i for i in range((size - 1).bit_length())]
    for distance in reversed(distances):
        leaving = shards[distance : 2 * distance]
        kept = shards[: len(leaving)]
        incoming = tensor.new_empty(sum(len(shard) for shard in kept))
        yield dist.batch_isend_irecv([
            dist.P2POp(dist.isend, torch.cat(leaving), (rank + distance) % size),
            dist.P2POp(dist.irecv, incoming, (rank - distance) % size),
        ])
        for shard, part in zip(kept, incoming.split([len(shard) for shard in kept])):
            op(shard, part, out=shard)
    for distance in distances:
        leaving = shards[: min(distance, size - distance)]
        coming = shards[distance : distance + len(leaving)]
        incoming = tensor.new_empty(sum(len(shard) for shard in coming))
        yield dist.batch_isend_irecv([
            dist.P2POp(dist.isend, torch.cat(leaving), (rank - distance) % size),
            dist.P2POp(dist.irecv, incoming, (rank + distance) % size),
        ])
        for shard, part in zip(coming, incoming.split([len(shard) for shard in coming])):
            shard.copy_(part)


def _two_levels(tensor, dist, op, ranks_per_node):
    rank, size = dist.get_rank(), dist.get_world_size()
    if ranks_per_node < 1 or size % ranks_per_node:
        raise ValueError(
            f"{size} ranks do not make whole nodes of {ranks_per_node}: "
            "give a ranks_per_node that divides them"
        )
    place = rank % ranks_per_node
    node, across = (
        range(rank - place, rank - place + ranks_per_node),
        range(place, size, ranks_per_node),
    )
    chunks = tensor.tensor_split(ranks_per_node)
    parts = chunks[place].tensor_split(len(across))
    yield from _to_all(chunks, node, dist, op)
    yield from _to_all(parts, across, dist, op)
    yield from _to_all(parts, across, dist)
    yield from _to_all(chunks, node, dist)


def _to_all(chunks, ranks, dist, op=None):
    """With `op` every one of `ranks` sends each other one that rank's chunk and reduces what comes
    into its own; without it every one sends its own chunk to all others."""
    at, size, batch, received = ranks.index(dist.get_rank()), len(ranks), [], []
    for step in range(1, size):
        to, source = (at + step) % size, (at - step) % size
        received.append(torch.empty_like(chunks[at]) if op else chunks[source])
        batch.append(dist.P2POp(dist.isend, chunks[to if op else at], ranks[to]))
        batch.append(dist.P2POp(dist.irecv, received[-1], ranks[source]))
    yield dist.batch_isend_irecv(batch) if batch else ()
    for other in received if op else ():
        op(chunks[at], other, out=chunks[at])
