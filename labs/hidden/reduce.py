"""More ranks and roots for the lab "Reduce"."""

import torch

from ringtree.labs.exercise import Case
from ringtree.labs.exercises import reduce as lab
from ringtree.labs.inputs import drawn, whole_numbers


def mean_loss():
    for lengths, root in [((4, 0, 2, 6, 1), 3), ((1, 8, 0, 2, 2, 3), 0)]:
        rows = [torch.tensor(whole_numbers(length, -99, 99), dtype=torch.float64) for length in lengths]
        yield Case(tuple((row,) for row in rows), lab._mean_of_all(root), {"root": root})


def ordered_reduce():
    for size, root in [(6, 2), (9, 8), (10, 3)]:
        maps = [torch.tensor(whole_numbers(4, 2, 4), dtype=torch.float64).view(2, 2) for _ in range(size)]
        yield lab._ordered(maps, root, lab.then)


def long_reduce():
    return [lab._total(drawn(*each), root) for *each, root in ((9, 22, 7), (10, 5, 9), (12, 40, 1))]


EXTRA = {"mean_loss": mean_loss, "ordered_reduce": ordered_reduce, "long_reduce": long_reduce}
