"""More reports, calls and codes for the lab "Order"."""

from ringtree.labs.exercise import Question
from ringtree.labs.exercises import order as lab
from ringtree.labs.inputs import whole_numbers


def sum_named():
    for size, lengths in ((5, (2, 2, 2)), (7, (1, 4, 1, 1)), (8, (3, 3, 3, 3, 2))):
        yield lab._named_case(size, lengths)


def diagnose():
    """By job: on how many ranks, what each rank's numbers are, and then the ranks that it begins with."""
    for number, size, filled, ranks in ((1, 3, 4.0, {1, 2}), (2, 12, 1.0, {5, 6}), (1, 4, 4.0, {1, 2, 3}), (2, 4, 1.0, {1, 2})):
        cause, call = {1: ("stayed away", "all_reduce"), 2: ("circle", "send")}[number]
        truth = {cause, *ranks, *((rank, call) for rank in ranks)}
        yield lab._report_question(number, size, truth.__contains__, filled, level=1)


def first_difference():
    every, three, two = (0, 1, 2, 3), (0, 1, 3), (1, 3)
    calls = {
        1: [(every, "barrier", 0), (three, "all_reduce", 6), (two, "broadcast", 2), (every, "all_gather", 4)],
        3: [(every, "barrier", 0), (two, "broadcast", 2), (three, "all_reduce", 6), (every, "all_gather", 4)],
        0: [(every, "barrier", 0), (three, "all_reduce", 6), (every, "all_gather", 4)],
    }
    reduced, sent = (three, "all_reduce", 6), (two, "broadcast", 2)
    for a, b, wanted in ((1, 3, (1, reduced, sent)), (3, 1, (1, sent, reduced)), (0, 1, None), (0, 3, None)):
        truth = a, b, wanted
        yield Question(
            (calls, a, b),
            lambda answer, truth=truth: lab._wrong_difference(answer, *truth),
            f"ranks {a} and {b} of three groups",
        )


def agree():
    usual, other = whole_numbers(1, 1, 10**6)[0], whole_numbers(1, 2 * 10**6, 3 * 10**6)[0]
    for size, strange in [(9, ()), (10, (9,)), (11, (4, 6))]:
        yield lab._agree_case([other if rank in strange else usual for rank in range(size)], f"{len(strange)} other codes")


EXTRA = {"sum_named": sum_named, "diagnose": diagnose, "first_difference": first_difference, "agree": agree}
