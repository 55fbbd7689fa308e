"""More ranks and lengths for the lab "All-gather"."""

import torch

from ringtree.labs.exercise import Case
from ringtree.labs.inputs import drawn, sample


def _all(given):
    return [torch.cat([shard for (shard,) in given])] * len(given)


def ring_all_gather():
    for size, length in (10, 3), (11, 2), (12, 4):
        yield Case(tuple((row,) for row in drawn(size, length)), _all, {"order": sample(range(size), size)})


def bruck_all_gather():
    return [Case(tuple((row,) for row in drawn(*each)), _all) for each in ((10, 3), (11, 2), (12, 4))]


def gather_all_lengths():
    for lengths in [(2, 0, 5, 1, 3), (4, 1, 1, 6, 0, 2, 3)]:
        rows = [row[:length].clone() for row, length in zip(drawn(len(lengths), max(lengths)), lengths)]
        yield Case(tuple((row,) for row in rows), lambda given: [[row for (row,) in given]] * len(given))


EXTRA = {"ring_all_gather": ring_all_gather, "bruck_all_gather": bruck_all_gather, "gather_all_lengths": gather_all_lengths}
