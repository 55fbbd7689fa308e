"""Lab of chapter 3, "Deadlock clinic": four programs that hang or corrupt."""

import math

import torch

from ringtree.labs.exercise import Case, Program
from ringtree.labs.inputs import drawn, easy, whole_numbers
from ringtree.units import count_text
from ringtree.waits import name_ranks

TITLE = "Deadlock clinic"
CHAPTER = 3
SIZES = (2, 1), (3, 2), (4, 1), (4, 5), (5, 3), (8, 2)  # ranks, numbers


def _rows(size, length):
    return easy(size, length) if (size, length) == SIZES[0] else drawn(size, length)


def _one_way(run, step, count, wanted):
    """Complains unless every rank sent `count` messages, all of them to the rank `step` further on."""
    for rank in range(run.case.size):
        to = (rank + step) % run.case.size
        peers = [message.dst for message in run.trace if message.src == rank]
        if peers != [to] * count:
            sent = count_text(len(peers), "message") if peers else "nothing"
            if set(peers) - {to}:
                sent += f", to {name_ranks(sorted(set(peers)))}"
            return f"the numbers are right, but rank {rank} sent {sent}: send {wanted}, to rank {to}"
    return None


def _from_the_left(given):
    return [given[rank - 1][0] for rank in range(len(given))]


def _from_the_right(given):
    return [given[(rank + 1) % len(given)][0] for rank in range(len(given))]


def _of_the_last(given):
    return [given[-1][0]] * len(given)


# ---------------------------------------------------------------- shift


def shift_cases():
    return [Case(tuple((row,) for row in _rows(*each)), _from_the_right) for each in SIZES]


SHIFT_HINTS = (
    "Read the last line of the report: the ranks wait in a circle. On Gloo, `send` returns when the "
    "receiver has taken the message. Which rank reaches its `recv`?",
    "A circle is broken where one rank receives first. Or let no rank wait: hand both messages over together, then wait for both.",
    "works = dist.batch_isend_irecv([dist.P2POp(dist.isend, x, left), dist.P2POp(dist.irecv, got, right)]), "
    "and then work.wait() for each of them.",
)


# ---------------------------------------------------------------- hand_out


def hand_out_cases():
    return [Case(tuple((row,) for row in _rows(*each)), _of_the_last) for each in SIZES]


HAND_OUT_HINTS = (
    "The report names the ranks that wait and the rank that they wait for. What had that rank done by then?",
    "Every `recv` needs a `send` of its own. How many ranks receive, and how many messages does the last rank send?",
    "Let the last rank send in a loop, `for dst in range(size - 1)`. Or use the collective made for it: "
    "`dist.broadcast`, which every rank calls, with the last rank as its `src`.",
)


# ---------------------------------------------------------------- average


def average_cases():
    nan, inf = math.nan, math.inf
    for size, length, bad in [
        (2, 4, {1: nan}),
        (3, 2, {rank: nan for rank in range(3)}),
        (4, 1, {2: nan}),
        (4, 3, {}),
        (4, 3, {1: nan, 3: inf}),
        (5, 3, {0: -inf}),
    ]:
        rows = drawn(size, length)
        for rank, value in bad.items():
            rows[rank][whole_numbers(1, 0, length - 1)[0]] = value
        says = f"nan or infinity on {name_ranks(sorted(bad))}" if bad else "all of them good"
        yield Case(tuple((row,) for row in rows), _mean_of_the_good, says=says)


def _mean_of_the_good(given):
    good = [row for (row,) in given if row.isfinite().all()]
    mean = torch.stack(good).sum(0) / len(good) if good else torch.zeros_like(given[0][0])
    return [mean] * len(given)


AVERAGE_HINTS = (
    "Who is missing in the all_reduce, and which line kept it away? That rank had a reason; the others could not know it.",
    "Every rank has to take part in every collective. A rank with nothing to give can give zeros. "
    "But then by what should the sum be divided?",
    "Let `good` be 1.0 or 0.0. Reduce two things: the gradient (zeros where it is bad; nan * 0 is nan, "
    "so use torch.where or an `if`), and `good`. Divide the first sum by the second, which is at least 1.",
)


# ---------------------------------------------------------------- relay


def relay_cases():
    for size, count, length in [(2, 2, 3), (3, 5, 2), (4, 3, 1), (4, 1, 4), (4, 3, 2)]:
        yield Case(tuple((row.view(count, length),) for row in drawn(size, count * length)), _from_the_left)


def one_message_a_block(run):
    count = len(run.case.given[0][0])
    return _one_way(run, 1, count, f"one for each of its {count} blocks")


RELAY_HINTS = (
    "Which block arrived, and how often? When was `box` written to, and until when did the message need it?",
    "A barrier says that all ranks have got this far. It says nothing about messages: only `wait()` on a "
    "message's own Work says that its tensor may be written to again.",
    "Waiting right after each `isend` brings the circle of `shift` back. So give every message a tensor of its own, which "
    "nobody writes to (here, the blocks themselves), hand all sends and receives over in one batch, and wait for all Works.",
)


EXERCISES = {
    "shift": Program(shift_cases, SHIFT_HINTS, also=lambda run: _one_way(run, -1, 1, "one message")),
    "hand_out": Program(hand_out_cases, HAND_OUT_HINTS, builtin=True, keeps=False),
    "average": Program(average_cases, AVERAGE_HINTS, builtin=True, adds=False, keeps=False),
    "relay": Program(relay_cases, RELAY_HINTS, also=one_message_a_block),
}
