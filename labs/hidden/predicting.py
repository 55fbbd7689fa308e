"""More links and another scatter for the lab "Predicting"."""

import math
import random
from statistics import NormalDist

from ringtree.cost import Link
from ringtree.labs.exercise import Question
from ringtree.labs.exercises import predicting as lab


def link_of_rings():
    for seed, (link, worlds) in enumerate(
        [(Link.of(6e-6, bandwidth=80e9), (2, 8)), (Link.of(30e-6, bandwidth=3e9), (4, 6))], 21
    ):
        samples = lab.timed(link, worlds, 0.0, random.Random(seed))
        yield Question(
            (samples,),
            lambda answer, link=link: lab._link(answer, link, 1.001),
            f"{worlds[0]} and {worlds[1]} ranks, exact times",
        )


def intervals():
    """The misses lie on a bell curve without the luck of a draw: an interval for nine of ten holds nine of ten."""
    for level, (held, widest) in enumerate([(0.8, {0.03: 3.0, 0.06: 3.0}), (0.85, {0.03: 1.4, 0.06: 1.7})]):
        for spread, width in widest.items():
            for link, worlds, asked in (
                (Link.of(6e-6, bandwidth=80e9), (2, 8), (3, 64)),
                (Link.of(30e-6, bandwidth=3e9), (4, 6), (12, 24)),
            ):
                dice = random.Random(f"{asked}-{spread}")
                samples = _timed(link, worlds, lab.SIZES, spread, dice)
                hidden = _timed(link, asked, lab.ASKED, spread, dice)
                says = f"{worlds[0]} and {worlds[1]} ranks that scatter by {spread:.0%}, asked for {asked[0]} and {asked[1]}"
                yield lab._interval_question(samples, hidden, held, width, says, level)


def _timed(link, worlds, sizes, spread, dice):
    exact = lab.timed(link, worlds, 0.0, dice, sizes)
    curve = NormalDist(0, spread)
    sizes = [curve.inv_cdf(1 - (place + 0.5) / len(exact)) for place in range(len(exact) // 2)]
    dice.shuffle(sizes)
    misses = [sign * miss for miss in sizes for sign in (1, -1)]  # side by side, so that they do not tilt the line
    return [(p, n, seconds * math.exp(miss)) for (p, n, seconds), miss in zip(exact, misses)]


EXTRA = {"link_of_rings": link_of_rings, "intervals": intervals}
