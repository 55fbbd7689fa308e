"""More blocks, lengths, documents and ranks for the lab "Context parallel"."""

from ringtree.labs.exercises import context_parallel as lab


def merge():
    return lab.merge_questions([
        (4, 3, 5, 1500, 1498, "higher scores in the first block, all about 1500"),
        (5, 4, 0, -700, 0, "five queries, nothing seen in the second block"),
    ])


def positions():
    return lab.positions_questions([(7, 42), (9, 54)], [(3, 25), (7, 90), (10, 33)])


def mask():
    return lab.mask_questions([
        ([3, 4, 2], [6, 7, 8], [2, 3]),
        ([7, 5], [9, 10], [0, 1, 5, 6]),
        ([2, 9, 3], [2, 3, 8, 9], [4, 5, 10, 11]),
    ])


def attend():
    return lab.attend_cases([(7, 2, 2), (9, 1, 3)])


EXTRA = {"merge": merge, "positions": positions, "mask": mask, "attend": attend}
