"""More machines and samples for the lab "Measuring"."""

from ringtree.collectives import bus_factor
from ringtree.labs.exercise import Question
from ringtree.labs.exercises import measuring as lab


def seconds_a_call():
    for seed, (call, slowest) in enumerate([(700e-6, 1.4), (90e-6, 1.15)], 11):
        world = lab.World(call, slowest, seed)
        yield Question((world,), lambda answer, world=world: lab._off(answer, world), f"a call of {call * 1e6:g} µs")


def is_it_faster():
    old = [20.0, 20.3, 19.8, 20.1, 19.9, 20.2, 20.0, 20.1]
    less, more = [each * 0.9 for each in old], [each * 1.2 for each in old]
    for new, wanted in [(less, "faster"), (more, "slower"), (old[::-1], "cannot tell"), (old[:5], "cannot tell")]:
        yield Question(
            (old, new), lambda answer, wanted=wanted: lab._not(answer, wanted), f"old {lab._few(old)}, new {lab._few(new)}"
        )


def busbw():
    for collective, passed, p, seconds in [
        ("reduce_scatter", 2**28, 4, 2e-3),
        ("all_gather", 2**25, 16, 5e-3),
        ("all_reduce", 2**20, 3, 1e-4),
    ]:
        wanted = passed * (p if collective == "all_gather" else 1) / seconds * bus_factor(collective, p)
        yield Question(
            (collective, passed, p, seconds),
            lambda answer, wanted=wanted: lab._rate(answer, wanted),
            f"{collective} on {p} ranks",
        )


EXTRA = {"seconds_a_call": seconds_a_call, "is_it_faster": is_it_faster, "busbw": busbw}
