"""Lab of chapter 18, "Predicting": a link from two world sizes, and an interval for a third that holds."""

import math
import random

from ringtree.cost import Link
from ringtree.labs.comparing import is_number
from ringtree.labs.exercise import Answer, Level, Question
from ringtree.units import bytes_text, seconds_text

TITLE = "Predicting"
CHAPTER = 18
SIZES = [2**k for k in range(8, 29, 2)]
ASKED = [2**k for k in range(8, 29)]


def ring_seconds(ranks, size, link):
    """A ring all-reduce of `size` bytes by the model: 2(p−1) messages of n/p."""
    return 2 * (ranks - 1) * link.time(size / ranks)


def timed(link, worlds, spread, dice, sizes=SIZES):
    """[(ranks, bytes, seconds)] as somebody may have timed them: a bell curve of `spread` around the model, in logarithms."""
    return [(p, n, ring_seconds(p, n, link) * math.exp(dice.gauss(0, spread))) for p in worlds for n in sizes]


LINKS = {
    "2 and 4 ranks": (Link.of(10e-6, bandwidth=25e9), (2, 4)),
    "4 and 16 ranks": (Link.of(2e-6, bandwidth=200e9), (4, 16)),
    "3 and 8 ranks": (Link.of(50e-6, bandwidth=1e9), (3, 8)),
}


# ---------------------------------------------------------------- the link


def link_questions():
    for seed, (says, (link, worlds)) in enumerate(LINKS.items()):
        for spread, level in ((0.0, 0), (0.03, 0)):
            samples = timed(link, worlds, spread, random.Random(seed))
            within = 1.001 if not spread else 1.12
            noise = "exact times" if not spread else "times that scatter by 3 %"
            yield Question(
                (samples,), lambda answer, link=link, within=within: _link(answer, link, within), f"{says}, {noise}", level
            )


def _link(answer, link, within):
    if not (isinstance(answer, list | tuple) and len(answer) == 2 and all(is_number(each) and each > 0 for each in answer)):
        return f"returned {answer!r}: return (alpha, beta), in seconds and in seconds a byte."
    texts = seconds_text, lambda beta: f"1 / {bytes_text(1 / beta)}/s"
    for name, found, true, text in zip(("α", "β"), answer, (link.alpha, link.beta), texts):
        if not 1 / within <= found / true <= within:
            return f"says {name} = {text(found)} where it is {text(true)}, {found / true:.4g} times that."
    return None


LINK_HINTS = (
    "A ring all-reduce of n bytes on p ranks is 2(p−1) messages, one after the other. How many bytes does each have?",
    "Divide each time by 2(p−1), and each size by p. Now all world sizes lie on one line, α + mβ.",
    "Fit the line so that each miss counts in per cent, or the largest messages decide alone: `theory.fit_line(sizes, seconds)` "
    "does.",
)


# ---------------------------------------------------------------- an interval


def interval_questions():
    for level, (held, widest) in enumerate([(0.8, {0.03: 3.0, 0.12: 3.0}), (0.85, {0.03: 1.4, 0.12: 2.0})]):
        for seed, (says, (link, worlds)) in enumerate(LINKS.items()):
            for spread, width in widest.items():
                dice = random.Random(f"{seed}-{spread}")
                samples = timed(link, worlds, spread, dice)
                hidden = timed(link, (6, 32), spread, dice, ASKED)
                says_all = f"{says} that scatter by {spread:.0%}, asked for 6 and 32"
                yield _interval_question(samples, hidden, held, width, says_all, level)


def _interval_question(samples, hidden, held, width, says, level):
    """hidden: what was measured where an interval is asked for. held: the least share in it; width: high over low, at most."""
    wanted = [(p, n) for p, n, _ in hidden]
    return Question((samples, wanted), lambda answer: _interval(answer, hidden, held, width), says, level)


def _interval(answer, hidden, held, width):
    if not isinstance(answer, list | tuple) or len(answer) != len(hidden):
        asked = f"return a list of {len(hidden)} pairs (low, high), one for each that was asked for"
        return f"returned {type(answer).__name__}: {asked}."
    for each in answer:
        if not (isinstance(each, list | tuple) and len(each) == 2 and all(map(is_number, each)) and 0 < each[0] <= each[1]):
            return f"has {each!r} in its list: give (low, high) in seconds, low not above high."
    share = sum(low <= seconds <= high for (low, high), (_, _, seconds) in zip(answer, hidden)) / len(hidden)
    wide = sorted(high / low for low, high in answer)[len(answer) // 2]
    if share < held:
        return f"holds {share:.0%} of what was measured there, and an interval of 90 % should hold {held:.0%} or more."
    if wide > width:
        return f"is wide: high is {wide:.3g} times low in the middle, where {width:g} times is enough."
    return None


INTERVAL_HINTS = (
    "First the line: what does it say for the sizes that you have? The misses there tell how much times scatter on this machine.",
    "The misses, as measured over predicted, have a 5 % and a 95 % quantile. Multiply a prediction by both.",
    "With twenty-two times the outermost few decide: make it a little wider, say by a tenth, or use 1.645 standard deviations "
    "of the logarithms of the misses, and a little more.",
)


EXERCISES = {
    "link_of_rings": Answer(link_questions, LINK_HINTS),
    "intervals": Answer(interval_questions, INTERVAL_HINTS, (Level("within the target"),)),
}
