"""Lab of chapter 8, "All-gather": a ring in a given order, Bruck's algorithm for any number of ranks, and shards of several lengths."""

import torch

from ringtree.labs import limits
from ringtree.labs.exercise import Case, Level, Program
from ringtree.labs.inputs import drawn, easy
from ringtree.theory import lower_bound

TITLE = "All-gather"
CHAPTER = 8


def _all(given):
    return [torch.cat([shard for (shard,) in given])] * len(given)


LENGTHS = [(1, 3), (2, 5), (3, 4), (4, 1), (4, 6), (5, 3), (6, 2), (7, 5), (8, 4), (9, 1), (4, 0)]  # ranks, numbers


def _rows():
    yield from (easy(2, 2), easy(3, 1))
    yield from (drawn(*each) for each in LENGTHS)
    yield from (drawn(4, 3, torch.int64), drawn(4, 3, torch.float64), drawn(4, 6))


def cases():
    for rows in _rows():
        yield Case(tuple((row,) for row in rows), _all)


def _others_shards(case):
    """(p−1)/p·n: all shards but one's own."""
    return (case.size - 1) * case.nbytes


# ---------------------------------------------------------------- the ring


def ring_cases():
    for number, rows in enumerate(_rows()):
        order = [*range(0, len(rows), 2), *range(1, len(rows), 2)]
        order = order[::-1] if number % 3 == 2 else order
        yield Case(tuple((row,) for row in rows), _all, {"order": order})


def only_to_the_next(run):
    """Complains where a message goes to a rank that is not the next one in the order."""
    order = run.case.options["order"]
    for each in run.trace:
        after = order[(order.index(each.src) + 1) % len(order)]
        if each.dst != after:
            return (
                f"the numbers are right, but rank {each.src} sent to rank {each.dst}, and the next in the order is rank {after}"
            )
    return None


RING_LEVELS = (
    Level(
        "at the bound",
        (
            limits.port_bytes(_others_shards),
            limits.rounds(lambda case: case.size - 1),
        ),
        "(p−1)/p·n bytes: what a rank does not have must come to it. No ring needs fewer than p − 1 rounds.",
    ),
)
RING_HINTS = (
    "In the first step a rank has only its own shard to send. What does it have in the second step that the next rank does not have?",
    "Count places in the order: `at = order.index(rank)`. You send to the rank at place at + 1 and receive from the one at place "
    "at − 1. Whose shard comes in step s?",
    "Make room for all, `whole = shard.new_empty(size * len(shard))`, and `shards = whole.view(size, -1)`; put your own into "
    "shards[rank]. In step s send shards[order[at − s]] and receive shards[order[at − s − 1]], in one batch.",
)


# ---------------------------------------------------------------- Bruck's


def _rounds(case):
    return lower_bound("all_gather", case.size).rounds


def _rounds_by_doubling(case):
    """Two more where p is not a power of two: some ranks hand in first, and get all of it at the end."""
    return _rounds(case) + 2 * (case.size & (case.size - 1) > 0)


def by_powers_to_the_right(run):
    """Complains where a message does not go 1, 2, 4, … ranks to the right."""
    size = run.case.size
    for each in run.trace:
        far = (each.dst - each.src) % size
        if far & (far - 1):
            return (
                f"the numbers are right, but rank {each.src} sent {far} ranks to the right: send 1, 2, 4, … ranks to the right"
            )
    return None


BRUCK_LEVELS = (
    Level("within the target", (limits.rounds(_rounds_by_doubling),)),
    Level(
        "at the bound",
        (
            limits.rounds(_rounds),
            limits.port_bytes(_others_shards),
        ),
        "⌈lg p⌉ rounds and (p−1)/p·n bytes, for any p: no algorithm needs fewer of either (Bruck et al. 1997).",
    ),
)
BRUCK_HINTS = (
    "In each round send all you have. Then the number of shards on each rank doubles: 1, 2, 4, … To which rank do you send, so that no rank "
    "gets a shard twice?",
    "Have your own first, then those of rank − 1, rank − 2, … In the round in which you have d shards, send them to rank + d and "
    "receive the next d from rank − d. In the last round only p − d are missing.",
    "count, have = 1, shard; while count < size: more = min(count, size − count); send have[: more * len(shard)] to "
    "(rank + count) % size, receive as much from (rank − count) % size, and put it after what you have. At the end the shard at place i is "
    "that of rank − i: lay each where it belongs.",
)


# ---------------------------------------------------------------- several lengths


def lengths_cases():
    for number, lengths in enumerate([
        (2, 1),
        (1, 2, 3),
        (4,),
        (0, 3),
        (3, 0, 1),
        (1, 2, 3, 4),
        (5, 0, 0, 2),
        (0, 0, 0, 0),
        (2, 300, 1, 3, 4),
        (1, 1, 2, 1, 1, 9),
        (2, 2, 2, 2),
        (3, 1, 4, 1, 5, 9, 2, 6),
        (6, 5, 3, 5),
        (6, 5, 3, 5),
        (6, 5, 3, 5),
    ]):
        rows = (easy if number == 0 else drawn)(len(lengths), max(lengths), torch.float64 if number == 5 else torch.float32)
        rows = [row[:length].clone() for row, length in zip(rows, lengths)]
        for row in rows:
            row[-1:] = 0.0  # a zero may be a number that somebody gave
        says = f"lengths {', '.join(map(str, lengths))}"
        yield Case(tuple((row,) for row in rows), lambda given: [[row for (row,) in given]] * len(given), says=says)


def _padded_bytes(case):
    """The lengths, and shards as long as the longest."""
    return (case.size - 1) * (8 + case.nbytes)


LENGTHS_LEVELS = (
    Level(
        "at the bound",
        (
            limits.rounds(lambda case: 2 * (case.size - 1)),
            limits.port_bytes(_padded_bytes),
        ),
        "Two all-gathers: one of a whole number a rank, one of shards as long as the longest.",
    ),
)
LENGTHS_HINTS = (
    "A rank does not know how much the others have, and an all_gather needs to know it. How can it find out?",
    "All-gather the lengths first, a tensor with one whole number from each rank. Then every rank knows the longest, and can "
    "pad its own shard to that length.",
    "`torch.nn.functional.pad(x, (0, longest - len(x)))`, a second all_gather, and then each of the results is cut to its own "
    "length, `each[:length]`. A rank with nothing takes part like all others.",
)


EXERCISES = {
    "ring_all_gather": Program(ring_cases, RING_HINTS, RING_LEVELS, also=only_to_the_next, adds=False, live=2),
    "bruck_all_gather": Program(cases, BRUCK_HINTS, BRUCK_LEVELS, also=by_powers_to_the_right, adds=False, live=2),
    "gather_all_lengths": Program(lengths_cases, LENGTHS_HINTS, LENGTHS_LEVELS, builtin=True, adds=False),
}
