"""More ranks and lengths for the lab "Tree all-reduce"."""

from ringtree.labs.exercise import Case
from ringtree.labs.exercises import tree_all_reduce as lab
from ringtree.labs.inputs import drawn, sum_of_all


def halving_doubling():
    return [Case(tuple((row,) for row in drawn(*each)), sum_of_all) for each in ((9, 18), (10, 20), (12, 48))]


def trees():
    return lab.questions((10, 11, 14, 15, 17, 20, 32, 33, 47, 63, 100))


def two_trees():
    for size in (9, 10, 13):
        yield Case(tuple((row, _heaps(size)) for row in drawn(size, 37)), sum_of_all)


def _heaps(size):
    """Two trees for more ranks than a learner has seen them for; lists of the rank's own."""
    up = [None, *(rank // 2 for rank in range(1, size))]
    return up, [None, *((size - up[size - rank]) % size for rank in range(1, size))]


def tree_all_reduce():
    return list(lab.given_tree_cases([[5, 0, 5, 2, 2, None], [2, 0, None, 0, 1, 2, 5, 5, 5]]))


EXTRA = {"tree_all_reduce": tree_all_reduce, "halving_doubling": halving_doubling, "trees": trees, "two_trees": two_trees}
