"""More numbers of ranks for the lab "Deadlock clinic"."""

import math

import torch

from ringtree.labs.exercise import Case
from ringtree.labs.exercises import deadlock_clinic as lab
from ringtree.labs.inputs import drawn, whole_numbers


def shift():
    return [Case(tuple((row,) for row in drawn(*each)), lab._from_the_left) for each in ((6, 3), (7, 1))]


def hand_out():
    return [Case(tuple((row,) for row in drawn(*each)), lambda given: [given[0][0]] * len(given)) for each in ((6, 3), (7, 1))]


def average():
    rows = drawn(6, 3)
    rows[4][1], rows[0][2] = math.inf, math.nan
    yield Case(tuple((row,) for row in rows), lab._mean_of_the_good, says="two that are not good")


def relay():
    yield Case(tuple((row.view(4, 2),) for row in drawn(5, 8)), lab._from_the_left)


def pipeline():
    batches = [torch.tensor(whole_numbers(10, -9, 9), dtype=torch.float32).view(5, 2) for _ in range(5)]
    weights = [torch.tensor([2.0, -3.0]) + rank % 2 for rank in range(5)]
    yield Case(tuple(zip(batches, weights)), lab._gradients)


EXTRA = {"shift": shift, "hand_out": hand_out, "average": average, "relay": relay, "pipeline": pipeline}
