"""Lab of chapter 2, "Alpha and beta": fit a link from raw times, predict a message, choose between two purchases."""

import numbers

from ringtree.cost import Link
from ringtree.labs.comparing import is_number
from ringtree.labs.exercise import Answer, Question
from ringtree.labs.inputs import whole_numbers
from ringtree.units import bytes_text, count_text, seconds_text

TITLE = "Alpha and beta"
CHAPTER = 2


def _kind(value):
    if value is None:
        return "nothing"
    if isinstance(value, numbers.Real):
        return repr(value)
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"


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
        pair = isinstance(answer, tuple | list) and len(answer) == 2 and all(map(is_number, answer))
        if not pair:
            return f"it returned {_kind(answer)} and should return two numbers, (alpha, beta)."
        shows = seconds_text, _beta_text
        for name, found, true, show in zip(("alpha", "beta"), answer, (link.alpha, link.beta), shows):
            if not abs(found / true - 1) <= tolerance:
                shown = show(found) if found > 0 else f"{found:.3g}"
                return f"{name} is {shown} and should be {show(true)}, within {tolerance:.0%}{_reason(answer, link)}."
        return None

    return wrong


def _beta_text(beta):
    return f"{beta:.4g} s/B ({bytes_text(1 / beta)}/s)"


def _reason(answer, link):
    """A well-known way to be so far off, or ""."""
    by_alpha, by_beta = answer[0] / link.alpha, answer[1] / link.beta

    def near(value, aim):
        return abs(value / aim - 1) < 0.15

    if near(by_alpha, 2) and near(by_beta, 2):
        return ": both are twice too long, as if the way back belonged to the message"
    if near(by_beta, 1 / 8) or near(by_beta, 8):
        return ": a factor of eight lies between bits and bytes"
    if near(answer[0], link.beta) and near(answer[1], link.alpha):
        return ": the two are the wrong way round"
    if near(answer[1], 1 / link.beta):
        return ": that is the bandwidth, and β is one over it"
    if near(by_alpha, 1e6):
        return ": that is in microseconds, and seconds were asked for"
    if near(by_beta, 1):
        return ": β is near, so the long messages have decided, and the short ones were not heard"
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
    for nbytes, lines, channels in [
        (1_000_000, [(5e-6, 2e-11)], 1),
        (0, [(5e-6, 2e-11)], 4),
        (1_000_000, [(5e-6, 2e-11)], 4),
        (8, PROTOCOLS, 1),
        (64_000_000, PROTOCOLS, 1),
        (64_000_000, PROTOCOLS[::-1], 8),
        (800_000, PROTOCOLS, 1),
        (800_000, PROTOCOLS, 8),  # in one piece another protocol would be taken
        (2**20, [(1e-6, 5e-9), (9e-6, 2e-10), (40e-6, 2e-11)], 2),
    ]:
        true = min(alpha + nbytes / channels * beta for alpha, beta in lines)
        says = f"{bytes_text(nbytes)} on {count_text(channels, 'channel')}, {count_text(len(lines), 'protocol')}"
        yield Question((nbytes, lines, channels), _unlike(true), says)


def _unlike(true):
    def wrong(answer):
        if not is_number(answer):
            return f"it returned {_kind(answer)} and should return a number of seconds."
        if abs(answer - true) > 1e-6 * true:
            shown = seconds_text(answer) if answer > 0 else f"{answer:.3g} s"
            return f"it says {shown} and should say {seconds_text(true)} ({answer:.4g} and {true:.4g} s)."
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
STEPS = {
    "one short message": [(8, 1)],
    "one long message": [(10**8, 1)],
    "many short ones and a long one": [(1000, 2000), (10**8, 1)],
    "few short ones and a long one": [(1000, 100), (10**8, 1)],
    "as many in the middle": [(100_000, 50), (150_000, 50)],
}


def _step(messages, alpha, beta):
    return sum(count * (alpha + nbytes * beta) for nbytes, count in messages)


def buy_questions():
    for what, messages in STEPS.items():
        for offers in (HALVES, UNEVEN):
            now, *after = (_step(messages, *link) for link in (NOW, *offers.values()))
            best = min(after)
            name = list(offers)[after.index(best)]
            says = f"{what}, {' or '.join(offers)}"
            yield Question((messages, NOW, offers), _other_buy(name, now / best, offers), says)


def _other_buy(name, times, offers):
    def wrong(answer):
        if not (isinstance(answer, tuple | list) and len(answer) == 2 and isinstance(answer[0], str) and is_number(answer[1])):
            example = f"({next(iter(offers))!r}, 1.5)"
            return f"it returned {_kind(answer)} and should return the name of an offer and a number, such as {example}."
        if answer[0] != name:
            return f"it buys {answer[0]!r}, and {name!r} makes the step {times:.2f} times as fast, which is more."
        if abs(answer[1] - times) > 1e-6 * times:
            return f"{name!r} is right, but it makes the step {times:.4g} times as fast, not {answer[1]:.4g} times."
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
    "fit": Answer(fit_questions, FIT_HINTS, ("within the target",)),
    "predict": Answer(predict_questions, PREDICT_HINTS),
    "buy": Answer(buy_questions, BUY_HINTS),
}
