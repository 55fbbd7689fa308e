"""More links, messages and offers for the lab "Alpha and beta"."""

from ringtree.cost import Link
from ringtree.labs.exercise import Question
from ringtree.labs.exercises import alpha_beta as lab

LINKS = Link.of(3e-6, bandwidth=90e9), Link.of(25e-6, bandwidth=4e9)
OFFERS = {"less waiting": (1e-6, 4e-11), "more lanes": (5e-6, 1.5e-11)}
STEPS = [(4096, 300), (10**7, 2)], [(10**6, 40)]


def fit():
    for link in LINKS:
        for level, tolerance in enumerate(lab.TOLERANCES):
            yield Question((lab.measured(link),), lab._off(link, tolerance), f"times of {link}", level)


def predict():
    for nbytes, lines, channels in [
        (3_000_000, [(7e-6, 3e-11), (20e-6, 1e-11)], 2),
        (50_000, [(2e-6, 1e-10), (9e-6, 5e-11)], 4),
    ]:
        true = min(alpha + nbytes / channels * beta for alpha, beta in lines)
        yield Question((nbytes, lines, channels), lab._unlike(true), f"{nbytes} bytes on {channels} channels")


def _step(messages, alpha, beta):
    return sum(count * (alpha + nbytes * beta) for nbytes, count in messages)


def buy():
    for messages in STEPS:
        now, *after = (_step(messages, *link) for link in (lab.NOW, *OFFERS.values()))
        name = list(OFFERS)[after.index(min(after))]
        yield Question((messages, lab.NOW, OFFERS), lab._other_buy(name, now / min(after), OFFERS), " or ".join(OFFERS))


EXTRA = {"fit": fit, "predict": predict, "buy": buy}
