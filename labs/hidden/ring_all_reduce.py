"""More ranks and lengths for the lab "Ring all-reduce"."""

from ringtree.labs.exercises import ring_all_reduce as lab
from ringtree.labs.inputs import drawn


def ring_all_reduce():
    return [lab._case(drawn(*each)) for each in ((9, 14), (10, 40), (7, 4))]


def two_rings():
    return [lab._case(drawn(*each), machine=lab.NODES) for each in ((10, 23), (5, 9))]


EXTRA = {"ring_all_reduce": ring_all_reduce, "two_rings": two_rings}
