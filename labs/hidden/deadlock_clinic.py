"""More numbers of ranks for the lab "Deadlock clinic"."""

import math

from ringtree.labs.exercise import Case
from ringtree.labs.exercises import deadlock_clinic as lab
from ringtree.labs.inputs import drawn


def shift():
    return [Case(tuple((row,) for row in drawn(*each)), lab._from_the_right) for each in ((6, 3), (7, 1))]


def hand_out():
    return [Case(tuple((row,) for row in drawn(*each)), lab._of_the_last) for each in ((6, 3), (7, 1))]


def average():
    rows = drawn(6, 3)
    rows[4][1], rows[0][2] = math.inf, math.nan
    yield Case(tuple((row,) for row in rows), lab._mean_of_the_good, says="two that are not good")


def relay():
    yield Case(tuple((row.view(4, 2),) for row in drawn(5, 8)), lab._from_the_left)


EXTRA = {"shift": shift, "hand_out": hand_out, "average": average, "relay": relay}
