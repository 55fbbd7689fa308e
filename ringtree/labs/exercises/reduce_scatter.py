"""Lab of chapter 9, "Reduce-scatter": a ring to the left, and shards of given lengths in ⌈lg p⌉ rounds."""

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


def only_to_the_left(run):
    """Complains where a message goes to a rank that is not the left neighbor."""
    for each in run.trace:
        left = (each.src - 1) % run.case.size
        if each.dst != left:
            return f"the numbers are right, but rank {each.src} sent to rank {each.dst}, and its left neighbor is rank {left}"
    return None


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
    "To the left, shard j starts on rank j − 1, and rank j + 1 is the last to add to it. So which shard does rank r send first? "
    "And in each further step?",
    "Which shard leaves in step s = 0, 1, …: r + 1 + s; which comes: r + 2 + s, all modulo p. Receive into "
    "`got = torch.empty_like(shards[(rank + 2 + step) % size])`, send and receive in one batch_isend_irecv, wait, and add `got`.",
)


# ---------------------------------------------------------------- Bruck's all-gather, backwards


def _lengths_case(rows, lengths):
    def wanted(given):
        return list(torch.stack([row for (row,) in given]).sum(0).split(lengths))

    return Case(tuple((row,) for row in rows), wanted, {"lengths": lengths})


def bruck_cases():
    yield _lengths_case(easy(2, 2), [1, 1])
    yield _lengths_case(easy(3, 3), [1, 2, 0])
    for lengths in [
        [3],
        [2, 3],
        [4, 1, 2],
        [2, 2, 2, 2],
        [1, 0, 2, 0],
        [1, 0, 1, 1, 0],
        [2, 3, 2, 3, 2],
        [0, 5, 1, 2, 3, 1],
        [3, 3, 3, 2, 4, 1, 4],
        [8, 8, 8, 8, 8, 8, 8, 8],
        [0, 0, 0, 0],
    ]:
        yield _lengths_case(drawn(len(lengths), sum(lengths)), lengths)
    yield _lengths_case(drawn(4, 6, torch.int64), [1, 2, 2, 1])
    yield _lengths_case(drawn(4, 6, torch.float64), [3, 0, 2, 1])


def _all_but_one(case):
    """p−1 shards, of the longest."""
    return (case.size - 1) * max(case.options["lengths"]) * case.given[0][0].element_size()


BRUCK_LEVELS = (
    Level("within the target", (_rounds(lambda case: 2 * fewest_rounds(case)),)),
    Level(
        "at the bound",
        (limits.port_bytes(_all_but_one), _rounds(fewest_rounds)),
        "⌈lg p⌉ rounds and p−1 shards at once, for every p: both bounds of Chan et al. 2007.",
    ),
)
BRUCK_HINTS = (
    "Number the shards from yourself: place d is the shard of the rank d further on, so place 0 is your own. In Bruck's "
    "all-gather, step by step, places 1, then 2 and 3, then 4 to 7 are filled by what comes from 1, 2, 4 ranks further on. "
    "Backwards: which places leave first, and where to?",
    "Let `distance` be 4, 2, 1 (the powers of two below p, the largest first). Send places distance to 2·distance − 1, as "
    "many as there are, to the rank `distance` further on. For that rank they are places 0, 1, 2, …: it adds them there.",
    "`shards = shards[rank:] + shards[:rank]`, then for each distance: `leaving = shards[distance : 2 * distance]` in one "
    "message, `torch.cat(leaving)`. What comes is as long as `shards[: len(leaving)]` together; split it into these lengths and add.",
)


EXERCISES = {
    "ring_reduce_scatter": Program(cases, RING_HINTS, RING_LEVELS, also=only_to_the_left, live=2),
    "bruck_reduce_scatter": Program(bruck_cases, BRUCK_HINTS, BRUCK_LEVELS),
}
