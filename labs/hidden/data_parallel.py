"""More ranks, shapes and row counts for the lab "Data parallel"."""

from ringtree.labs.exercises import data_parallel as lab


def average():
    yield from lab.bucket_cases([(6, [(3,), (2, 2), (5,), (1,)], 6), (9, [(7,), (3,), (7,), (3,), (7,)], 10)])


def overlapped():
    yield lab.overlap_case(6, 3, 4, 3)
    yield lab.overlap_case(5, 4, 3, 2, pairs=True)


def fair_loss():
    yield from map(lab.uneven_case, ([0, 0, 5], [7, 2, 0, 1, 3, 3]))


EXTRA = {"average": average, "overlapped": overlapped, "fair_loss": fair_loss}
