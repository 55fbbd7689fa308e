"""More ranks and roots for the lab "Reduce"."""

from ringtree.labs.exercises import reduce as lab
from ringtree.labs.inputs import drawn


def add_up():
    return [lab._up(drawn(*each)) for each in ((11, 4), (15, 1))]


def ordered_reduce():
    for size, root in [(6, 2), (9, 8), (10, 3)]:
        yield lab._ordered(lab._maps(size, 2), root, lab.then)


def long_reduce():
    return [lab._case(drawn(*each), root) for *each, root in ((32, 70, 17), (16, 5, 3), (32, 40, 1))]


EXTRA = {"add_up": add_up, "ordered_reduce": ordered_reduce, "long_reduce": long_reduce}
