"""More links for the lab "Predicting"."""

import random

from ringtree.cost import Link
from ringtree.labs.exercise import Question
from ringtree.labs.exercises import predicting as lab


def link_of_rings():
    for seed, (link, worlds) in enumerate([(Link.of(6e-6, bandwidth=80e9), (2, 8)), (Link.of(30e-6, bandwidth=3e9), (4, 6))], 21):
        samples = lab.timed(link, worlds, 0.0, random.Random(seed))
        yield Question(
            (samples,),
            lambda answer, link=link: lab._link(answer, link, 1.001),
            f"{worlds[0]} and {worlds[1]} ranks, exact times",
        )


EXTRA = {"link_of_rings": link_of_rings}
