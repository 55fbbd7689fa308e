"""Lab of chapter 8, "All-gather": the ring, Bruck's algorithm for any number of ranks, and shards of several lengths."""

import torch

from ringtree.labs import limits
from ringtree.labs.exercise import Case, Level, Program
from ringtree.labs.inputs import drawn, easy
from ringtree.theory import lower_bound

TITLE = "All-gather"
CHAPTER = 8


def _all(given):
    return [torch.cat([shard for (shard,) in given])] * len(given)


def cases():
    yield Case(tuple((row,) for row in easy(2, 2)), _all)
    yield Case(tuple((row,) for row in easy(3, 1)), _all)
    for size, length in [(1, 3), (2, 5), (3, 4), (4, 1), (4, 6), (5, 3), (6, 2), (7, 5), (8, 4), (9, 1), (4, 0)]:
        yield Case(tuple((row,) for row in drawn(size, length)), _all)
    yield Case(tuple((row,) for row in drawn(4, 3, torch.int64)), _all)
    yield Case(tuple((row,) for row in drawn(4, 3, torch.float64)), _all)
    yield Case(tuple((row,) for row in drawn(4, 6)), _all)


def _others_shards(case):
    """(p−1)/p·n: all shards but one's own."""
    return (case.size - 1) * case.nbytes


# ---------------------------------------------------------------- the ring


def only_to_the_right(run):
    """Complains where a message goes to a rank that is not the right neighbor."""
    for each in run.trace:
        right = (each.src + 1) % run.case.size
        if each.dst != right:
            sent = f"rank {each.src} sent to rank {each.dst}"
            return f"the numbers are right, but {sent}, and in a ring it sends to rank {right} alone"
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
    "In the first step a rank has only its own shard to send. What has it new in the second step, that its right neighbor "
    "has not?",
    "In step s = 0, 1, …, p − 2 rank r sends shard r − s to its right and receives shard r − s − 1 from its left, all modulo p.",
    "Make room for all, `whole = shard.new_empty(size * len(shard))`, and `shards = whole.view(size, -1)`; put your own into "
    "shards[rank]. Send shards[(rank - step) % size] and receive shards[(rank - step - 1) % size] in one batch.",
)


# ---------------------------------------------------------------- Bruck's


def _rounds(case):
    return lower_bound("all_gather", case.size).rounds


def _rounds_by_doubling(case):
    """Two more where p is not a power of two: some ranks hand in first, and get all of it at the end."""
    return _rounds(case) + 2 * (case.size & (case.size - 1) > 0)


BRUCK_LEVELS = (
    Level("within the target", (limits.rounds(_rounds_by_doubling),)),
    Level(
        "at the bound",
        (
            limits.rounds(_rounds),
            limits.port_bytes(_others_shards),
        ),
        "⌈lg p⌉ rounds and (p−1)/p·n bytes, for any p: nobody needs less of either (Bruck et al. 1997).",
    ),
)
BRUCK_HINTS = (
    "In each round send all you have. Then what everybody has doubles: 1, 2, 4, … shards. To whom must it go, so that nobody "
    "gets a shard twice?",
    "Have your own first, then those of rank + 1, rank + 2, … In the round in which you have d shards, send them to rank − d and "
    "receive the next d from rank + d. In the last round only p − d are missing.",
    "count, have = 1, shard; while count < size: more = min(count, size − count); send have[: more * len(shard)] to "
    "(rank − count) % size, receive as much from (rank + count) % size, and put it behind. At the end "
    "`torch.roll(have, rank * len(shard))`.",
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
    "All-gather the lengths first, a tensor with one whole number from each rank. Then everybody knows the longest, and can make "
    "its own shard as long.",
    "`torch.nn.functional.pad(x, (0, longest - len(x)))`, a second all_gather, and then each of the results is cut to its own "
    "length, `each[:length]`. A rank with nothing takes part like all others.",
)


EXERCISES = {
    "ring_all_gather": Program(cases, RING_HINTS, RING_LEVELS, also=only_to_the_right, adds=False, live=2),
    "bruck_all_gather": Program(cases, BRUCK_HINTS, BRUCK_LEVELS, adds=False, live=2),
    "gather_all_lengths": Program(lengths_cases, LENGTHS_HINTS, LENGTHS_LEVELS, builtin=True, adds=False),
}
