"""Lab of chapter 10, "Ring all-reduce": a ring to the left with not a byte too many, and a ring for each network card."""

import torch

from ringtree import theory
from ringtree.cost import Machine
from ringtree.labs import limits
from ringtree.labs.exercise import Case, Level, Program
from ringtree.labs.exercises.reduce_scatter import only_to_the_left
from ringtree.labs.inputs import drawn, easy, sum_of_all

TITLE = "Ring all-reduce"
CHAPTER = 10


def _case(rows, **more):
    return Case(tuple((row,) for row in rows), sum_of_all, **more)


# ---------------------------------------------------------------- one ring


def cases():
    yield _case(easy(2, 2))
    yield _case(easy(3, 3))
    for size, length in [(1, 3), (2, 5), (3, 7), (4, 4), (4, 8), (5, 3), (6, 12), (7, 20), (8, 64), (4, 0)]:
        yield _case(drawn(size, length), says="fewer numbers than ranks" if 0 < length < size else "")
    yield _case(drawn(4, 6, torch.int64))
    yield _case(drawn(4, 6, torch.float64))


def fewest_bytes(case):
    """2(p−1)/p of the vector; where p does not divide it, all but the two smallest chunks."""
    numbers = case.given[0][0]
    return 2 * (numbers.numel() - numbers.numel() // case.size) * numbers.element_size()


LEVELS = (
    Level("within the target", (limits.port_bytes(lambda case: 2 * case.nbytes),)),
    Level(
        "at the bound",
        (
            limits.port_bytes(fewest_bytes),
            limits.rounds(lambda case: 2 * (case.size - 1)),
        ),
        "2(p−1)/p·n bytes a rank. If only ranks add, no all-reduce can send fewer (Patarasuk and Yuan 2009).",
    ),
)
HINTS = (
    "Cut the vector into as many chunks as there are ranks: `chunks = total.tensor_split(size)`. Each chunk goes round the "
    "ring once to be added up, and once more to be handed out.",
    "To the left, rank r sends chunk r first, and its right neighbor sends it chunk r + 1. So what rank r adds to is chunk r + 1, "
    "and that is what it sends next. Which chunk is complete on rank r after p − 1 steps?",
    "In step s of the first round rank r sends chunk r + s and adds to chunk r + s + 1, all modulo p; after it chunk r − 1 is "
    "complete on rank r. In the second round it sends chunk r + s − 1 and overwrites chunk r + s. Send and receive in one "
    "batch_isend_irecv, into `torch.empty_like(chunk)` where you add.",
)


# ---------------------------------------------------------------- a ring for each card

NODES = Machine(theory.nvlink(bandwidth=60e9), theory.card(bandwidth=5e9), ranks_per_node=2, cards_per_node=2)
LARGE = 2**17


def cases_on_nodes():
    for size, length in [(2, 4), (4, 8), (3, 5), (4, 10), (8, 32), (6, 7)]:  # the one of two rings before that of one
        yield _case(drawn(size, length), machine=NODES)
    for nodes in (2, 3, 6, 4):
        yield _case(drawn(2 * nodes, LARGE), machine=NODES, says=f"{nodes} nodes of two ranks with a card each")


ON_NODES = (
    Level(
        "within the target",
        (limits.seconds("on these nodes", 0.75, "ring_all_reduce", 4 * LARGE, lambda case: {"cards": "one"}),),
    ),
    Level(
        "at the bound",
        (limits.seconds("on these nodes", 1.02, "multi_ring_all_reduce", 4 * LARGE, lambda case: {"ranks_per_node": 2}),),
        "As fast as two rings of n/2, each of which leaves every node through a different card.",
    ),
)
NODES_HINTS = (
    "One ring leaves each node through one card. Two rings, each with one half of the vector, can use both. The ring to the "
    "right, 0, 1, 2, 3, …, leaves every node at its odd rank. From which rank does your ring to the left leave a node?",
    "A ring to the left leaves every node at its even rank. So does a ring to the right in the order 1, 0, 3, 2, …. Take "
    "either as the second ring. Where p is odd or there is one node, one ring will do.",
    "Write a generator that walks one ring and yields, for each step, what to send to whom and what to receive from whom; "
    "then put the steps of both rings into one batch.",
)


EXERCISES = {
    "ring_all_reduce": Program(cases, HINTS, LEVELS, also=only_to_the_left, live=2),
    "two_rings": Program(cases_on_nodes, NODES_HINTS, ON_NODES),
}
