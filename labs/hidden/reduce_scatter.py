"""More ranks and lengths for the lab "Reduce-scatter"."""

from ringtree.labs.exercises import reduce_scatter as lab
from ringtree.labs.inputs import drawn


def sums():
    return [lab._case(drawn(*each)) for each in ((9, 14), (10, 40), (11, 22))]


EXTRA = {"ring_reduce_scatter": sums, "bruck_reduce_scatter": sums}
