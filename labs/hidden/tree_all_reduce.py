"""More ranks and lengths for the lab "Tree all-reduce"."""

from ringtree.labs.exercise import Case
from ringtree.labs.exercises import tree_all_reduce as lab
from ringtree.labs.inputs import drawn, sum_of_all


def halving_doubling():
    return [Case(tuple((row,) for row in drawn(*each)), sum_of_all) for each in ((9, 18), (10, 20), (12, 48))]


def two_trees():
    for size in sorted(lab.PARENTS)[-2:]:
        yield Case(tuple((row, lab._trees(size)) for row in drawn(size, 37)), sum_of_all)


EXTRA = {"halving_doubling": halving_doubling, "two_trees": two_trees}
