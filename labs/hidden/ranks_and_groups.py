"""More groups and rows for the lab "Ranks and groups"."""

from ringtree.labs.exercise import Case
from ringtree.labs.exercises import ranks_and_groups as lab
from ringtree.labs.inputs import drawn


def group_mean():
    for size, length, groups in [(6, 3, [[0, 5], [1, 2, 3]]), (7, 2, [[6, 0], [2, 4], [1, 3, 5]])]:
        groups = [sorted(each) for each in groups]
        yield Case(tuple((row,) for row in drawn(size, length)), lab._means(groups), {"groups": groups})


def edges():
    for each in (6, 4), (7, 1):
        yield Case(tuple((strip,) for strip in drawn(*each)), lab._with_edges)


EXTRA = {"group_mean": group_mean, "edges": edges}
