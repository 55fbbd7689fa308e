"""Lab of chapter 2, "Alpha and beta": fit a link from raw times, predict a message, choose between two purchases."""

import numbers

import numpy as np

from ringtree.cost import Link
from ringtree.errors import a_kind
from ringtree.labs.comparing import is_number
from ringtree.labs.exercise import Answer, Level, Question
from ringtree.labs.inputs import whole_numbers
from ringtree.units import bytes_text, count_text, seconds_text

TITLE = "Alpha and beta"
CHAPTER = 2


def _kind(value):
    if value is None:
        return "nothing"
    if isinstance(value, tuple | list):
        parts = [f"{each:.4g}" if isinstance(each, numbers.Real) else type(each).__name__ for each in value[:4]]
        return f"{a_kind(value)} of {len(value)}, ({', '.join(parts + ['…'] * (len(value) > 4))}),"
    return repr(value) if isinstance(value, numbers.Real) else f"{a_kind(value)}"


def _apart(*values):
    """The numbers as texts, with as many digits as it takes to tell them apart."""
    texts = [[f"{value:.{digits}g}" for value in values] for digits in (4, 7, 10)]
    return next((each for each in texts if len(set(each)) == len(values)), texts[-1])


# ---------------------------------------------------------------- fit a link

LINKS = {
    "an InfiniBand card": Link.of(5e-6, bandwidth=50e9),
    "NVLink": Link.of(2e-6, bandwidth=450e9),
    "Ethernet": Link.of(40e-6, bandwidth=1.25e9),
    "PCIe": Link.of(10e-6, bandwidth=25e9),
}
SIZES = [8 * 4**power for power in range(12)]  # 8 B to 32 MiB
REPEATS = 21
WOBBLE = 0.03  # so far real times lie beside the line, to and fro
TOLERANCES = 0.10, 0.03  # to be right; within the target


def measured(link):
    """Raw times of a ping-pong on `link`: {bytes: seconds, there and back, in the order in which they were taken}."""
    times = {}
    for number, size in enumerate(SIZES):
        there_and_back = 2 * link.time(size) * (1 + (-1) ** number * WOBBLE)
        rows = [there_and_back * (1 + noise / 1000) for noise in whole_numbers(REPEATS, 0, 10)]
        for place in {*whole_numbers(4, 1, REPEATS - 1)}:  # somebody else used the machine
            rows[place] *= whole_numbers(1, 4, 20)[0]
        rows[0] += 3e-3 + 20 * there_and_back  # connections are made
        times[size] = rows
    return times


def _off(link, tolerance):
    def wrong(answer):
        answer = tuple(answer) if isinstance(answer, np.ndarray) and answer.ndim == 1 else answer
        if not (isinstance(answer, tuple | list) and len(answer) == 2 and all(map(is_number, answer))):
            return f"it returned {_kind(answer)} and should return two numbers, (alpha, beta)."
        shows = seconds_text, _beta_text
        for name, found, true, show in zip(("alpha", "beta"), answer, (link.alpha, link.beta), shows):
            if not abs(found / true - 1) <= tolerance:
                shown = show(found) if found > 0 else f"{found:.3g}"
                reason = _reason(name, found / true, answer, link)
                return f"{name} is {shown} and should be {show(true)}, within {tolerance:.0%}{reason}."
        return None

    return wrong


def _beta_text(beta):
    return f"{beta:.4g} s/B ({bytes_text(1 / beta)}/s)"


def _reason(name, times, answer, link):
    """A well-known way to be so many times too long, or "". name: of what is, "alpha" or "beta"."""
    by_beta = answer[1] / link.beta

    def near(value, aim):
        return abs(value / aim - 1) < 0.07

    if near(times, 2):
        both = name == "alpha" and near(by_beta, 2)
        return f": {'both are' if both else 'that is'} twice too long, as if the way back belonged to the message"
    if near(answer[0], link.beta) and near(answer[1], link.alpha):
        return ": the two are the wrong way round"
    if name == "alpha" and (near(times, 1e6) or near(times, 1e3)):
        return f": that is in {'micro' if times > 1e5 else 'milli'}seconds, and seconds were asked for"
    if near(times, 1e6) or near(times, 1e3):
        many = "a million" if times > 1e5 else "a thousand"
        return f": {many} times too long, as if bytes or seconds were counted in another unit"
    if name == "alpha":
        if abs(times - 1) > 0.1 and abs(by_beta - 1) < 0.1:
            return ": β is near, so the long messages have decided, and the short ones were not heard"
        if min(times, by_beta) > 1.1:
            return (
                ": a mean also takes in the first call and the calls that others slowed down; take the median or the fastest "
                "of each size"
            )
        return ""
    if near(times, 1 / 8) or near(times, 8):
        return ": a factor of eight lies between bits and bytes"
    if near(answer[1] * link.beta, 1):
        return ": that is the bandwidth, and β is one over it"
    return ""


def fit_questions():
    for level, tolerance in enumerate(TOLERANCES):
        for name, link in LINKS.items():
            yield Question((measured(link),), _off(link, tolerance), f"times of {name}", level)


FIT_HINTS = (
    "Print the times of one size. Which of them say something about the link, and which about connections that were made, or "
    "about another program? Then think of what was timed: there and back.",
    "One number for each size: half of the median, or of the smallest. Then fit α + nβ. Where the misses are counted in "
    "seconds, the longest message decides alone; count them in parts of the measured time.",
    "Divide each equation α·1 + β·n = t by its t: the columns are 1/t and n/t, the right side is 1. Then "
    "`np.linalg.lstsq(columns, ones, rcond=None)[0]` gives α and β.",
)


# ---------------------------------------------------------------- predict a message

PROTOCOLS = [(6.6e-6, 1 / 20e9), (28e-6, 1 / 180e9)]


def predict_questions():
    for nbytes, lines, channels, microseconds in [
        (1_000_000, [(5e-6, 2e-11)], 1, 25.0),
        (0, [(5e-6, 2e-11)], 4, 5.0),
        (1_000_000, [(5e-6, 2e-11)], 4, 10.0),
        (8, PROTOCOLS, 1, 6.6004),
        (64_000_000, PROTOCOLS, 1, 28 + 64_000 / 180),
        (64_000_000, PROTOCOLS[::-1], 8, 28 + 8_000 / 180),
        (800_000, PROTOCOLS, 1, 28 + 800 / 180),
        (800_000, PROTOCOLS, 8, 6.6 + 100 / 20),  # in one piece another protocol would be taken
        (2**20, [(1e-6, 5e-9), (9e-6, 2e-10), (40e-6, 2e-11)], 2, 40 + 2**19 * 2e-5),
    ]:
        true = microseconds * 1e-6
        says = f"{bytes_text(nbytes)} on {count_text(channels, 'channel')}, {count_text(len(lines), 'protocol')}"
        yield Question((nbytes, lines, channels), _unlike(true), says)


def _unlike(true):
    def wrong(answer):
        if not is_number(answer):
            return f"it returned {_kind(answer)} and should return a number of seconds."
        if abs(answer - true) > 1e-6 * true:
            shown = seconds_text(answer) if answer > 0 else f"{answer:.3g} s"
            return f"it says {shown} and should say {seconds_text(true)} ({' and '.join(_apart(answer, true))} s)."
        return None

    return wrong


PREDICT_HINTS = (
    "A message that is cut into k pieces, sent at the same time on k ways: which of α and nβ gets smaller?",
    "Each piece is a message of its own: the library picks the protocol for a piece of n/k bytes, not for the whole.",
    "min(alpha + nbytes / channels * beta for alpha, beta in lines)",
)


# ---------------------------------------------------------------- two purchases

NOW = 5e-6, 4e-11  # 5 µs, 25 GB/s
HALVES = {"latency": (2.5e-6, 4e-11), "bandwidth": (5e-6, 2e-11)}
UNEVEN = {"new switches": (4e-6, 4e-11), "new cards": (6e-6, 1e-11)}
STEPS = {  # the messages, and which of two offers to take: how many times as fast it makes the step
    "one short message": ([(8, 1)], (("latency", 1.9998720163819033), ("new switches", 1.249980001599872))),
    "one long message": ([(10**8, 1)], (("bandwidth", 1.9975062344139651), ("new cards", 3.981113320079523))),
    "many short ones and a long one": (
        [(1000, 2000), (10**8, 1)],
        (("latency", 1.550784475639967), ("new switches", 1.165590863952334)),
    ),
    "few short ones and a long one": (
        [(1000, 100), (10**8, 1)],
        (("bandwidth", 1.798564020741923), ("new cards", 2.805849408836341)),
    ),
    "as many in the middle": (  # both offers help, and nearly as much
        [(100_000, 60), (150_000, 50)],
        (("latency", 1.3374233128834356), ("new cards", 1.371069182389937)),
    ),
}


def buy_questions():
    for what, (messages, best) in STEPS.items():
        for offers, (name, times) in zip((HALVES, UNEVEN), best):
            says = f"{what}, {' or '.join(offers)}"
            yield Question((messages, NOW, offers), _other_buy(name, times, offers), says)


def _other_buy(name, times, offers):
    def wrong(answer):
        if not (isinstance(answer, tuple | list) and len(answer) == 2 and isinstance(answer[0], str) and is_number(answer[1])):
            example = f"({next(iter(offers))!r}, 1.5)"
            return f"it returned {_kind(answer)} and should return the name of an offer and a number, such as {example}."
        if answer[0] != name:
            return f"it buys {answer[0]!r}, and {name!r} makes the step {times:.2f} times as fast, which is better."
        if abs(answer[1] - times) > 1e-6 * times:
            right, found = _apart(times, answer[1])
            return f"{name!r} is right, but it makes the step {right} times as fast, not {found} times."
        return None

    return wrong


BUY_HINTS = (
    "What does a step take now? Each message pays α and its bytes; a step has several messages of each length, one "
    "after the other.",
    "Compute the time of the whole step with each offer's α and β. Neither the longest message nor the average decides alone.",
    "def step(alpha, beta): return sum(count * (alpha + nbytes * beta) for nbytes, count in messages). Then "
    "`best = min(offers, key=lambda name: step(*offers[name]))`, and the factor is step(*now) / step(*offers[best]).",
)


EXERCISES = {
    "predict": Answer(predict_questions, PREDICT_HINTS),
    "fit": Answer(fit_questions, FIT_HINTS, (Level("within the target"),)),
    "buy": Answer(buy_questions, BUY_HINTS),
}
