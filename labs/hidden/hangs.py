"""More records, clocks and rows for the lab "Hangs"."""

from functools import partial

import torch

from ringtree.labs.exercise import Question
from ringtree.labs.exercises import hangs as lab
from ringtree.labs.inputs import drawn


def partings():
    step = ["broadcast 7", "all_reduce 5", "all_gather 5", "barrier 0"]
    cases = [
        ("a rank that stopped in the second step", {0: lab._entries(step + step), 1: lab._entries(step + step[:2])}, {"0": 7}),
        (
            "two groups that both part",
            {
                0: lab._entries(step[1:], 11, "a") + lab._entries(step[:3], group="b"),
                1: lab._entries([step[2]], 12, "a") + lab._entries(["broadcast 7", "all_reduce 9", step[2]], group="b"),
                2: lab._entries(step[1:3], 11, "a"),
            },
            {"a": 13, "b": 2},
        ),
        ("one rank alone in its group", {0: lab._entries(step), 1: lab._entries(step, group="b")}, {}),
    ]
    for says, records, wanted in cases:
        yield Question((records,), lambda answer, wanted=wanted: lab._wrong_partings(answer, wanted), says)


def came_last():
    came = [[2.0, 1.0, 1.5, 3.0], [9.0, 9.5, 8.0, 8.5], [11.0, 12.5, 12.0, 11.5], [20.0, 19.0, 18.0, 17.0]]
    calls, wanted = lab._watched(came, [5.0, -300.0, 0.5, 60.0], (0.5, 0.125)), [1, 2, 0, 1]
    yield Question((calls,), lambda answer: lab._wrong_late(answer, wanted), "four clocks, nobody always late")


def mean_over_rows():
    for counts, length, dtype in [((0, 0, 5), 3, torch.float32), ((260, 0, 1, 3, 0, 600), 6, torch.float64)]:
        yield lab._mean_case(counts, drawn(len(counts), length, dtype))


def diagnose():
    """The records of another night, with the ranks' names changed round."""
    truth = {1: (3, 18, "skipped"), 3: (1, 1, "size"), 4: (0, 4, "away"), 5: (0, 8, "order")}
    for number, order in (1, (2, 0, 3, 1)), (3, (1, 0, 3, 2)), (4, (3, 1, 0, 2)), (5, (2, 3, 1, 0)):
        rank, place, cause = truth[number]
        records = {order[old]: entries for old, entries in lab._record(f"{number} again").items()}
        told = {(cause,), (cause, order[rank]), (cause, order[rank], place)}
        is_right = partial(_is_in, told)
        yield lab._record_question(number, dict(sorted(records.items())), is_right, f"record {number}, on other ranks", 1)


def _is_in(told, *said):
    return said in told


EXTRA = {"diagnose": diagnose, "partings": partings, "came_last": came_last, "mean_over_rows": mean_over_rows}
