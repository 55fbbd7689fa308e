"""More links for the lab "Ring or tree?"."""

from ringtree.cost import Link
from ringtree.labs.exercise import Question
from ringtree.labs.exercises import ring_or_tree as lab


def crossover():
    for size, link in [
        (12, Link.of(3e-6, bandwidth=90e9)),
        (48, Link.of(15e-6, bandwidth=12e9)),
        (500, Link.of(2e-6, bandwidth=25e9)),
    ]:
        yield Question((size, link), lambda answer, size=size, link=link: lab._off(answer, size, link), f"{size} ranks, {link}")


EXTRA = {"crossover": crossover}
