"""More ranks, roots and chunks for the lab "Broadcast"."""

from ringtree.cost import Link
from ringtree.labs.exercises import broadcast as lab
from ringtree.labs.inputs import drawn


def hand_down():
    return [lab._from_0(drawn(*each)) for each in ((11, 4), (15, 1))]


def tree_broadcast():
    return [
        lab._among(drawn(size, length), members)
        for size, length, members in ((11, 4, [7, 2, 9, 10, 0, 1, 3]), (14, 2, [13, *range(13)]), (9, 1, [3, 8]))
    ]


def best_chunks():
    for nbytes, ranks, link in [(2**23, 12, Link.of(3e-6, bandwidth=20e9)), (5000, 6, Link.of(2e-6, bandwidth=1e9))]:
        best = min(range(1, 3000), key=lambda chunks: lab._chain_time(chunks, nbytes, ranks, link))
        yield lab._question(nbytes, ranks, link, best, 1.1, 0)


def chain_broadcast():
    sizes = (9, 33, 4), (12, 7, 3), (12, 100_000, 10), (6, 40_000, 2)
    return [lab._case(drawn(*each), root, machine=lab.LINK, says=str(lab.LINK)) for *each, root in sizes]


EXTRA = {
    "hand_down": hand_down,
    "tree_broadcast": tree_broadcast,
    "best_chunks": best_chunks,
    "chain_broadcast": chain_broadcast,
}
