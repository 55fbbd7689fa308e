"""Lab of the first evening: a log line that hung, and the ring all-reduce, of which three lines are missing."""

import torch

from ringtree.labs.exercise import Case, Program
from ringtree.labs.exercises import ring_all_reduce as ring
from ringtree.labs.inputs import drawn, easy

TITLE = "A first evening"
CHAPTER = 0


# ---------------------------------------------------------------- a mean for the log


def loss_cases():
    for size in (2, 3, 4, 1, 8):
        yield _loss_case([row + rank + 1 for rank, row in enumerate(easy(size, 1))])
    yield _loss_case(drawn(4, 1))
    yield _loss_case(drawn(4, 1, torch.float64))


def _loss_case(rows):
    return Case(tuple((row,) for row in rows), _mean)


def _mean(given):
    rows = torch.stack([row for (row,) in given])
    return [rows.sum(0) / len(given)] * len(given)


LOSS_HINTS = (
    "Every rank has to call the collective, whatever it does with the result. Call it in a line that all ranks reach.",
    "`total` is a copy, so that the rank's own loss stays as it was. `dist.all_reduce(total)` leaves the sum in it.",
    "Put `dist.all_reduce(total)` in the blank, indented as the line above. The line below already divides.",
)


# ---------------------------------------------------------------- the ring

RING_HINTS = (
    "Look at the player: in step 1 rank 1 sends chunk b and receives chunk a. In step 2 it sends chunk a, to which it has just "
    "added its own, and receives chunk d. In the code these are `chunks[1]`, `chunks[0]` and `chunks[3]`.",
    "A rank receives one chunk further back than it sends. In the first time round it sends chunk rank − step, so it receives "
    "chunk rank − step − 1, and adds it to its own. Take the numbers modulo size.",
    "After the first time round, chunk rank + 1 is complete on this rank. So in the second it sends chunk rank + 1 − step and "
    "receives chunk rank − step. The blanks are `chunks[(rank - step - 1) % size]`, `mine += got`, and "
    "`chunks[(rank + 1 - step) % size], chunks[(rank - step) % size]`.",
)

EXERCISES = {
    "mean_loss": Program(loss_cases, LOSS_HINTS, builtin=True),
    "ring_all_reduce": Program(ring.cases, RING_HINTS, ring.LEVELS, live=2),
}
