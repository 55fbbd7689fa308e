"""Lab of chapter 9, "Reduce-scatter": no rank ever needs the whole sum, in p−1 rounds or in ⌈lg p⌉."""

import torch

from ringtree.labs import limits
from ringtree.labs.exercise import Case, Level, Program
from ringtree.labs.inputs import drawn, easy
from ringtree.theory import lower_bound

TITLE = "Reduce-scatter"
CHAPTER = 9


def _shards_of_the_sum(given):
    return list(torch.stack([row for (row,) in given]).sum(0).tensor_split(len(given)))


def _case(rows, says=""):
    return Case(tuple((row,) for row in rows), _shards_of_the_sum, says=says)


def cases():
    yield _case(easy(2, 2))
    yield _case(easy(3, 3))
    for size, length in [(1, 3), (2, 5), (3, 7), (4, 8), (4, 3), (5, 3), (5, 12), (6, 12), (7, 20), (8, 64), (4, 0)]:
        yield _case(drawn(size, length), says="fewer numbers than ranks" if 0 < length < size else "")
    yield _case(drawn(4, 6, torch.int64))
    yield _case(drawn(4, 6, torch.float64))


def shards(count):
    """The bytes of so many shards, of the longest where p does not divide the vector: where it does, count/p·n."""

    def most(case):
        numbers = case.given[0][0]
        return count(case.size) * -(-numbers.numel() // case.size) * numbers.element_size()

    return most


def fewest_rounds(case):
    return lower_bound("reduce_scatter", case.size).rounds


WHOLE, BOUND = (limits.port_bytes(shards(count)) for count in (lambda p: p, lambda p: p - 1))


def _rounds(most):
    return limits.rounds(most)


# ---------------------------------------------------------------- the ring

RING_LEVELS = (
    Level("within the target", (WHOLE,)),
    Level(
        "at the bound",
        (BOUND, _rounds(lambda case: case.size - 1)),
        "(p−1)/p·n bytes: each rank must get rid of what it has for p−1 others (Chan et al. 2007).",
    ),
)
RING_HINTS = (
    "Shard j must end on rank j, with everybody's part in it. So on which rank does it start its way round the ring? "
    "And what does every rank on the way do with it?",
    "Shard j starts on rank j + 1. So in step s = 0, 1, …, p − 2 rank r sends shard r − 1 − s to its right, and receives "
    "shard r − 2 − s from its left, all modulo p. After the last step the shard that came is its own.",
    "`shards = sums.tensor_split(size)`; receive into `got = torch.empty_like(shards[(rank - 2 - step) % size])`, send and "
    "receive in one batch_isend_irecv, wait, then `shards[(rank - 2 - step) % size] += got`. Return `shards[rank]`.",
)


# ---------------------------------------------------------------- Bruck's all-gather, backwards

BRUCK_LEVELS = (
    Level("within the target", (_rounds(lambda case: 2 * fewest_rounds(case)),)),
    Level(
        "at the bound",
        (BOUND, _rounds(fewest_rounds)),
        "⌈lg p⌉ rounds and (p−1)/p·n bytes at once, for every p: both bounds of Chan et al. 2007.",
    ),
)
BRUCK_HINTS = (
    "Number the shards from yourself: place d is the shard of the rank d further on, so place 0 is your own. In Bruck's "
    "all-gather, step by step, places 1, then 2 and 3, then 4 to 7 are filled by what comes from 1, 2, 4 ranks further on. "
    "Backwards: which places leave first, and where to?",
    "Let `distance` be 4, 2, 1 (the powers of two below p, the largest first). Send places distance to 2·distance − 1, as "
    "many as there are, to the rank `distance` further on. For that rank they are places 0, 1, 2, …: it adds them there.",
    "`shards = shards[rank:] + shards[:rank]`, then for each distance: `leaving = shards[distance : 2 * distance]` in one "
    "message, `torch.cat(leaving)`. What comes is as long as `shards[: len(leaving)]` together; split it so and add.",
)


EXERCISES = {
    "ring_reduce_scatter": Program(cases, RING_HINTS, RING_LEVELS, live=2),
    "bruck_reduce_scatter": Program(cases, BRUCK_HINTS, BRUCK_LEVELS),
}
