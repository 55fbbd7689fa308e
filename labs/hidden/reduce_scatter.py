"""More ranks and lengths for the lab "Reduce-scatter"."""

from ringtree.labs.exercises import reduce_scatter as lab
from ringtree.labs.inputs import drawn


def sums():
    return [lab._case(drawn(*each)) for each in ((9, 14), (10, 40), (11, 22))]


def of_lengths():
    for lengths in [2, 0, 1, 3, 3, 1, 2, 1, 1], [4] * 10, [7, 0, 0, 2, 1, 5, 3, 0, 1, 1, 2]:
        yield lab._lengths_case(drawn(len(lengths), sum(lengths)), lengths)


EXTRA = {"ring_reduce_scatter": sums, "bruck_reduce_scatter": of_lengths}
