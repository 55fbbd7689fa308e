"""More links and nodes for the lab "Ring or tree?"."""

from ringtree.cost import Link, Machine
from ringtree.labs.exercise import Question
from ringtree.labs.exercises import ring_or_tree as lab

MACHINES = {
    "links of 10 µs and 10 GB/s": (Link.of(10e-6, bandwidth=10e9), (7, 16, 32)),
    "links of 3 µs and 100 GB/s": (Link.of(3e-6, bandwidth=100e9), (12, 48)),
    "nodes of eight": (
        Machine(Link.of(2e-6, bandwidth=400e9), Link.of(10e-6, bandwidth=50e9), ranks_per_node=8, cards_per_node=8),
        (16, 24),
    ),
}


def crossover():
    for size, link in [
        (12, Link.of(3e-6, bandwidth=90e9)),
        (48, Link.of(15e-6, bandwidth=12e9)),
        (500, Link.of(2e-6, bandwidth=25e9)),
    ]:
        yield Question((size, link), lambda answer, size=size, link=link: lab._off(answer, size, link), f"{size} ranks, {link}")


def choose():
    return lab.chooser_questions(MACHINES)


EXTRA = {"crossover": crossover, "choose": choose}
