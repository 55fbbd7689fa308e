"""Answers to the lab "Reduce-scatter"."""

from . import idling

SWAP = """
def shards_of(vector, count, lengths):
    return vector.split(lengths) if lengths else vector.tensor_split(count)

def swap(dist, out, to, got, source):
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, out, to), dist.P2POp(dist.irecv, got, source)]):
        work.wait()
"""
RING = (
    SWAP
    + """
def ring_reduce_scatter(x, dist, lengths=None):
    rank, size = dist.get_rank(), dist.get_world_size()
    shards = shards_of(x, size, lengths)
    carried = shards[(rank + 1) % size].clone()
    for step in range(size - 1):
        mine = shards[(rank + step + 2) % size]
        got = torch.empty_like(mine)
        swap(dist, carried, (rank - 1) % size, got, (rank + 1) % size)
        carried = mine + got
    return carried
"""
)
BRUCK = (
    SWAP
    + """
def bruck_reduce_scatter(x, dist, lengths=None):
    rank, size = dist.get_rank(), dist.get_world_size()
    sums = {away: shards_of(x, size, lengths)[(rank + away) % size].clone() for away in range(size)}
    for power in reversed(range((size - 1).bit_length())):
        far = 2**power
        leaving = [away for away in sums if away >= far]
        kept = [away - far for away in leaving]
        got = torch.empty(sum(len(sums[away]) for away in kept), dtype=x.dtype)
        swap(dist, torch.cat([sums.pop(away) for away in leaving]), (rank + far) % size, got, (rank - far) % size)
        for away, part in zip(kept, got.split([len(sums[away]) for away in kept])):
            sums[away] = sums[away] + part
    return sums[0]
"""
)
DIRECT = (
    SWAP
    + """
def NAME(x, dist, lengths=None):
    rank, size = dist.get_rank(), dist.get_world_size()
    shards = shards_of(x, size, lengths)
    mine = shards[rank].clone()
    for step in range(1, size):
        got = torch.empty_like(mine)
        swap(dist, shards[(rank + step) % size].clone(), (rank + step) % size, got, (rank - step) % size)
        mine += got
    return mine
"""
)
ROUND = (
    SWAP
    + """
def NAME(x, dist, lengths=None):
    rank, size = dist.get_rank(), dist.get_world_size()
    total, mine = x.clone(), x.clone()
    for step in range(size - 1):
        got = torch.empty_like(x)
        swap(dist, mine, (rank - 1) % size, got, (rank + 1) % size)
        total, mine = total + got, got
    return shards_of(total, size, lengths)[rank].clone()
"""
)
HALVING = (
    SWAP
    + """
def bruck_reduce_scatter(x, dist, lengths=None):
    rank, size = dist.get_rank(), dist.get_world_size()
    total, distance, first, end = x.clone(), size // 2, 0, size
    cuts = [0]
    for shard in shards_of(x, size, lengths):
        cuts.append(cuts[-1] + len(shard))
    while distance:
        middle, partner = first + distance, rank ^ distance
        lower, upper = total[cuts[first] : cuts[middle]], total[cuts[middle] : cuts[end]]
        mine, theirs = (upper, lower) if rank & distance else (lower, upper)
        got = torch.empty_like(mine)
        swap(dist, theirs, partner, got, partner)
        mine += got
        first, end = (middle, end) if rank & distance else (first, middle)
        distance //= 2
    return total[cuts[rank] : cuts[rank + 1]].clone()
"""
)


def built_in(name):
    return f"""
def {name}(x, dist, lengths=None):
    mine = x.tensor_split(dist.get_world_size())[dist.get_rank()].clone()
    dist.reduce_scatter(mine, list(x.tensor_split(dist.get_world_size())))
    return mine
"""


def the_books(name):
    return f"""
from ringtree.algorithms import bruck_reduce_scatter as theirs
def {name}(x, dist, lengths=None):
    y = x.clone()
    theirs(y, dist)
    return y.tensor_split(dist.get_world_size())[dist.get_rank()]
"""


TWICE = RING.replace(
    "        got = torch.empty_like(mine)\n",
    """        if step == size - 2:
            carried, mine = torch.cat([carried, carried]), torch.cat([mine, mine])
        got = torch.empty_like(mine)
""",
).replace("return carried", "return carried[: len(shards[rank])]")
RIGHT = {
    "ring_reduce_scatter": {
        "one shard carried along": RING,
    },
    "bruck_reduce_scatter": {"a dictionary of places": BRUCK},
}

WRONG = {
    "ring_reduce_scatter": {
        "a round too many": (
            idling(RING, "ring_reduce_scatter", 1, right="(rank - 1) % size", left="(rank + 1) % size"),
            "Not yet at the bound: .* 2 rounds, where 1 (is|are) enough",
        ),
        "straight to its owner": (
            DIRECT.replace("NAME", "ring_reduce_scatter"),
            "on 3 ranks, .*rank 0 sent to rank 1, and its left neighbor is rank 2",
        ),
        "to the right": (
            RING
            .replace("rank + ", "rank @ ")
            .replace("rank - ", "rank + ")
            .replace("rank @ ", "rank - ")
            .replace("step + 2", "step - 2"),
            "on 3 ranks, .*rank 0 sent to rank 1, and its left neighbor is rank 2",
        ),
        "the last shard twice": (TWICE, "Not yet at the bound: on 2 ranks, .* through the busier port"),
        "the first work alone": (
            RING.replace("    for work in dist.batch", "    works = dist.batch").replace(
                "source)]):\n        work.wait()", "source)])\n    works[0].wait()"
            ),
            "on 3 ranks, .*run once more: rank . reads the buffer for a message",
        ),
        "the shards of the all-reduce's ring": (
            RING.replace("(rank + 1) % size].clone()", "rank].clone()").replace("rank + step + 2", "rank + step + 1"),
            "rank . returned|which expects",
        ),
        "off by one in what is added": (RING.replace("rank + step + 2", "rank + step + 3"), "rank . returned|which expects"),
        "a step too few": (RING.replace("range(size - 1)", "range(max(size - 2, 0))"), "the part of rank|rank . returned"),
        "a step too many": (RING.replace("range(size - 1)", "range(size)"), "counts 2 times|rank . returned|which expects"),
        "whole tensors": (ROUND.replace("NAME", "ring_reduce_scatter"), "Not yet within the target: on 3 ranks"),
        "the whole sum": (
            ROUND.replace("NAME", "ring_reduce_scatter").replace("shards_of(total, size, lengths)[rank].clone()", "total"),
            r"shape \(2,\) and should return \(1,\)",
        ),
        "in place": (
            RING.replace("carried = mine + got", "mine += got\n        carried = mine"),
            "rank 0 has changed what it was given",
        ),
        "right where p divides n": (
            RING.replace("shards_of(x, size, lengths)", "x[: len(x) // size * size].view(size, -1)"),
            r"on 2 ranks, 5 numbers .*rank . returned",
        ),
        "right for powers of two": (HALVING.replace("bruck", "ring"), "on 3 ranks, "),
        "a missing wait": (RING.replace("        work.wait()", "        pass"), "may not have arrived"),
        "another dtype": (
            RING.replace("shards_of(x, size, lengths)", "shards_of(x.float(), size, lengths)"),
            "numbers of torch.float32 and was given torch.int64",
        ),
        "the built-in": (built_in("ring_reduce_scatter"), "it calls a collective of torch's"),
        "the book's": (the_books("ring_reduce_scatter"), "it calls a collective of torch's"),
        "one message too many": (
            RING.replace("    carried =", "    if rank == 1:\n        dist.isend(x, 0)\n    carried =", 1),
            "rank 1|from rank 1",
        ),
        "state between calls": (
            RING
            .replace("def ring", "kept = {}\ndef ring")
            .replace(
                "shards = shards_of", "x = kept.setdefault((rank, size, len(x), x.dtype), x.clone())\n    shards = shards_of"
            )
            .replace("carried = mine + got", "mine += got\n        carried = mine"),
            r"on 3 ranks, .*run once more: rank . returned .* and should return \[30\]",
        ),
    },
    "bruck_reduce_scatter": {
        "a round too many": (
            idling(BRUCK, "bruck_reduce_scatter", 1),
            "Not yet at the bound: .* 2 rounds, where 1 (is|are) enough",
        ),
        "a list in a message": (
            BRUCK.replace("torch.cat([sums.pop(away) for away in leaving])", "[sums.pop(away) for away in leaving]"),
            "rank . gives a message a list: give it one tensor",
        ),
        "the ring": (
            RING.replace("def ring", "def bruck"),
            "Not yet within the target: on 4 ranks.*: 3 rounds|Not yet within the target: on [78] ranks",
        ),
        "straight to its owner": (DIRECT.replace("NAME", "bruck_reduce_scatter"), "Not yet within the target"),
        "recursive halving": (HALVING, "on 3 ranks, "),
        "halves of whole vectors": (ROUND.replace("NAME", "bruck_reduce_scatter"), "Not yet within the target"),
        "one message for each shard": (
            BRUCK.replace(
                """        swap(dist, torch.cat([sums.pop(away) for away in leaving]), (rank + far) % size, got, (rank - far) % size)
""",
                """        for away, part in zip(leaving, got.split([len(sums[away]) for away in kept])):
            swap(dist, sums.pop(away), (rank + far) % size, part, (rank - far) % size)
""",
            ),
            "Not yet within the target|Not yet at the bound: .*rounds",
        ),
        "upwards as in the all-gather": (
            BRUCK.replace("in reversed(range((size - 1).bit_length()))", "in range((size - 1).bit_length())"),
            "KeyError|rank 0|which expects",
        ),
        "to the left": (
            BRUCK.replace("(rank + far) % size, got, (rank - far) % size", "(rank - far) % size, got, (rank + far) % size"),
            "rank . returned|which expects|rank 1",
        ),
        "added in the wrong order": (
            BRUCK.replace("kept = [away - far for away in leaving]", "kept = [away - far for away in leaving][::-1]"),
            "on 4 ranks.*the part of|on 4 ranks.*returned",
        ),
        "all that is further is sent twice": (
            BRUCK.replace("sums.pop(away) for", "sums[away] for"),
            "Not yet at the bound: .* through the busier port|which expects|counts",
        ),
        "right where p divides n": (
            BRUCK.replace("shards_of(x, size, lengths)", "x[: len(x) // size * size].view(size, -1)"),
            "on . ranks, .*rank . returned",
        ),
        "shards alike": (
            BRUCK.replace("shards_of(x, size, lengths)", "x.tensor_split(size)"),
            "on 3 ranks, .*lengths=.* returned",
        ),
        "in place": (
            BRUCK.replace("[(rank + away) % size].clone()", "[(rank + away) % size]").replace(
                "sums[away] = sums[away] + part", "sums[away] += part"
            ),
            "rank 0 has changed what it was given",
        ),
        "another dtype": (BRUCK.replace("dtype=x.dtype", "dtype=torch.float32"), "int64|dtype|Float|Long|expects"),
        "a missing wait": (BRUCK.replace("        work.wait()", "        pass"), "may not have arrived"),
        "the built-in": (built_in("bruck_reduce_scatter"), "it calls a collective of torch's"),
        "the book's": (the_books("bruck_reduce_scatter"), "it calls a collective of torch's"),
    },
}
