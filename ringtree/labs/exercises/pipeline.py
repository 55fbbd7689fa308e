"""Lab of chapter 23, "Pipeline": how many micro-batches, layers cut by time, the order 1F1B, and a training step."""

import re
from functools import partial

import torch

from ringtree.cost import Link
from ringtree.labs import limits
from ringtree.labs.comparing import is_whole, short
from ringtree.labs.exercise import Answer, Case, Level, Limit, Program, Question
from ringtree.labs.harnesses import pipeline as harnesses
from ringtree.labs.inputs import drawn, whole_numbers
from ringtree.parallel import pipeline as by_hand
from ringtree.simulated import Deadlock, Sketch, simulate
from ringtree.simulated.sketches import pipeline as sketched
from ringtree.units import count_text, seconds_text

TITLE = "Pipeline"
CHAPTER = 23


# ---------------------------------------------------------------- how many micro-batches


BUBBLES = [(2, 0.5), (4, 0.25), (4, 0.4), (8, 0.12), (1, 0.1), (2, 0.9), (3, 0.75), (16, 0.06), (64, 0.011)]  # ranks, share


def bubble_questions(tasks=BUBBLES):
    for size, most in tasks:
        yield Question(
            (size, most), partial(_wrong_number, size, most), f"{count_text(size, 'rank')}, idle for {most:.4g} at most"
        )


def _wrong_number(size, most, answer):
    if not is_whole(answer) or answer < 1:
        return f"returned {short(answer)}: return a whole number of micro-batches, 1 or more."
    if _idle(size, answer) > most:
        return f"with {micro_batches(answer)} a rank is idle for {_idle(size, answer):.4g} of the step."
    if answer > 1 and _idle(size, answer - 1) <= most:
        return f"returned {answer}, and {micro_batches(answer - 1)} will do: a rank is then idle for {_idle(size, answer - 1):.4g}."
    return None


def _idle(size, count):
    return (size - 1) / (count + size - 1)


BUBBLE_HINTS = (
    "With m micro-batches on p ranks a step takes m + p − 1 turns, and a rank works in m of them. In how many is it idle?",
    "The share is (p − 1) / (m + p − 1). Ask for which m it is exactly `most`, and then which whole number to take.",
    "m = (p − 1)(1 − most) / most, rounded up, and 1 at least. Or count m up from 1 until the share is small enough.",
)


# ---------------------------------------------------------------- layers cut by time


LAYERS = [  # milliseconds of each layer, ranks
    ([1, 1], 2),
    ([1, 1, 1, 1, 1, 3], 2),
    ([3, 1, 1, 1, 1], 3),
    ([5], 1),
    ([1, 1, 5], 3),
    ([2, 5, 2, 2, 1], 3),
    ([1, 2, 1, 2, 1, 2, 1, 2], 4),
    ([4, 4, 4, 4, 4, 4, 4, 4, 4, 3], 4),
    ([9, 1, 1, 1, 1, 1, 1, 9], 3),
    ([2] * 11 + [5], 5),
    ([7, 2, 5, 3, 9, 1, 4, 6, 8, 2, 3, 5, 7, 1], 4),
    ([3, 8, 1, 6, 2, 9, 4, 5, 7, 1, 8, 2, 6, 3, 9, 5, 1, 7, 4, 2], 6),
]


def slowest(milliseconds, counts):
    """Of stages of so many layers each, the milliseconds of the one that takes longest."""
    cuts = [sum(counts[:n]) for n in range(len(counts) + 1)]
    return max(sum(milliseconds[first:end]) for first, end in zip(cuts, cuts[1:]))


def least_slowest(milliseconds, size):
    """The least that the slowest of `size` stages can take."""
    best = [sum(milliseconds[:end]) for end in range(len(milliseconds) + 1)]  # in one stage, of the first layers
    for stages in range(2, size + 1):
        best = [
            min((max(best[cut], sum(milliseconds[cut:end])) for cut in range(stages - 1, end)), default=0)
            for end in range(len(milliseconds) + 1)
        ]
    return best[-1]


def cut_questions(tasks=LAYERS):
    for level, within in enumerate((None, 1.3, 1.0)):
        for milliseconds, size in tasks:
            told = f"layers of {', '.join(map(str, milliseconds))} ms in {count_text(size, 'stage')}"
            yield Question((milliseconds, size), partial(_wrong_cut, milliseconds, size, within), told, level)


def _wrong_cut(milliseconds, size, within, answer):
    if not isinstance(answer, list | tuple) or not all(map(is_whole, answer)):
        return f"returned {short(answer)}: return a list of whole numbers, how many layers each stage has."
    if len(answer) != size or sum(answer) != len(milliseconds):
        return f"returned {short(answer)}: give {count_text(size, 'number')}, {count_text(len(milliseconds), 'layer')} in all."
    if min(answer) < 1:
        return f"returned {short(answer)}: a stage has one layer at least."
    took, least = slowest(milliseconds, answer), least_slowest(milliseconds, size)
    if within is not None and took > within * least:
        return f"with {short(list(answer))} the slowest stage takes {took} ms, and {least} ms are possible."
    return None


CUT_HINTS = (
    "The slowest stage sets the pace, so look for the least time that no stage need exceed. Given such a time, how would you "
    "fill the stages?",
    "Take layers into a stage as long as the time is not exceeded, then begin the next one. Where that needs more stages than "
    "there are, the time was too short. Only sums of neighboring layers can be that time.",
    "Try all such sums from the smallest. And every stage needs a layer, so also begin the next stage when there are only as "
    "many layers left as stages.",
)


# ---------------------------------------------------------------- the order


SIZES = [(1, 1), (2, 1), (2, 2), (2, 3), (3, 2), (3, 5), (4, 4), (4, 8), (5, 3), (8, 16), (4, 1)]  # ranks, micro-batches
FORWARD, BACKWARD = 1.0, 2.0


def micro_batches(count):
    return "1 micro-batch" if count == 1 else f"{count} micro-batches"


def order_questions(sizes=SIZES):
    for level, asks in enumerate((None, "held", "time")):
        for size, count in sizes:
            told = f"{count_text(size, 'rank')}, {micro_batches(count)}"
            yield Question((size, count), partial(_wrong_orders, size, count, asks), told, level)


def _wrong_orders(size, count, asks, answer):
    if (
        not isinstance(answer, list | tuple)
        or len(answer) != size
        or not all(isinstance(each, list | tuple) for each in answer)
    ):
        return f"returned {short(answer)}: return {count_text(size, 'list')}, one for each rank."
    for rank, texts in enumerate(answer):
        if wrong := _wrong_order(texts, count):
            return f"rank {rank} {wrong}"
    orders = [[(rank, text[0], int(text[1:])) for text in texts] for rank, texts in enumerate(answer)]
    program = partial(sketched.in_order, orders=orders, stages=[sketched.Stage(FORWARD, BACKWARD)] * size)
    try:
        run = simulate(program, [Sketch(1)] * size, Link(0.0, 0.0))
    except Deadlock as problem:
        return f"{_circle(problem)}: each waits for an action that comes later in the other's list."
    for rank, counts in enumerate(sketched.held(run.trace)):
        most, enough = max(number for _, number in counts), min(size - rank, count)
        if asks == "held" and most > enough:
            return f"rank {rank} holds {micro_batches(most)} at once, and {enough} will do."
    whole = (count + size - 1) * (FORWARD + BACKWARD)
    if asks == "time" and run.makespan > 1.001 * whole:
        return f"the step takes as long as {run.makespan:g} forward passes, and {whole:g} are possible."
    return None


def _wrong_order(texts, count):
    if not all(isinstance(text, str) and re.fullmatch(r"[FB]\d+", text) for text in texts):
        return f"has {short(texts)}: give F or B and the number of a micro-batch, such as F0 and B0."
    for kind, name in ("F", "forward"), ("B", "backward"):
        numbers = sorted(int(text[1:]) for text in texts if text[0] == kind)
        if numbers != list(range(count)):
            return f"takes {numbers} {name}: each of {micro_batches(count)} passes once."
    places = {text: place for place, text in enumerate(texts)}
    early = [i for i in range(count) if places[f"B{i}"] < places[f"F{i}"]]
    return f"has B{early[0]} before F{early[0]}." if early else None


def _circle(problem):
    ranks = sorted(problem.waits)
    return f"rank {ranks[0]} and rank {problem.waits[ranks[0]]} do not fit together"


ORDER_HINTS = (
    "The last rank can go backward at once: F0 B0 F1 B1 … The rank before it must be one forward ahead, or the last rank "
    "would have nothing to do.",
    "Rank r has p − 1 − r ranks behind it. It does that many forwards first, then F and B in turn, and at the end the "
    "backwards "
    "that are left.",
    "`ahead = min(size - 1 - rank, count)`. With few micro-batches the middle part may be empty.",
)


# ---------------------------------------------------------------- a pipeline that hangs


def pipeline_cases():
    for size, count, length in [(2, 4, 1), (3, 5, 3), (4, 2, 1), (4, 6, 1), (4, 7, 2)]:
        batches = [torch.tensor(whole_numbers(count * length, -9, 9)).float().view(count, length) for _ in range(size)]
        weights = [torch.tensor([[-3.0, -2.0, 2.0, 3.0][i] for i in whole_numbers(length, 0, 3)]) for _ in range(size)]
        yield Case(tuple(zip(batches, weights)), _gradients)


def _gradients(given):
    """Of half the sum of all squared outputs by each stage's weight: Σ batch² · (all weights)² / weight."""
    batches, everything = given[0][0], torch.stack([weight for _, weight in given]).prod(0)
    return [(batches**2).sum(0) * everything**2 / weight for _, weight in given]


def one_forward_one_backward(run):
    """Complains unless every stage had as many micro-batches out at once as one-forward-one-backward has."""
    size, count = run.case.size, len(run.case.given[0][0])
    for rank in range(size - 1):
        after = rank + 1
        moments = [(each.start, 1) for each in run.trace if (each.src, each.dst) == (rank, after)]
        moments += [(each.end, -1) for each in run.trace if (each.src, each.dst) == (after, rank)]
        now = most = 0
        for _, step in sorted(moments):
            now += step
            most = max(most, now)
        wanted = min(size - rank, count)
        if most > wanted:
            return (
                f"the numbers are right, but rank {rank} had {most} micro-batches under way at once, and must keep the inputs "
                f"of all of them: the schedule one forward, one backward needs {wanted}"
            )
        if most < wanted:
            return (
                f"the numbers are right, but rank {rank} never had more than {most} micro-batch{'' if most == 1 else 'es'} "
                f"under way: with fewer than {wanted} the stages after it stand idle"
            )
    return None


PATIENT_HINTS = (
    "The report shows a circle of two. What does each of the two want to give the other, and what would the "
    "other have to be doing to take it?",
    "An activation goes right while a gradient goes left, between the same two ranks. The left one sends its activation "
    "first and then waits for the gradient. In which order must the right one do its half?",
    "Take the next activation before you send the gradient home: split `backward` into what computes the gradient and what "
    "sends it, and put the `recv` of the next input between the two.",
)


# ---------------------------------------------------------------- the step


LINK = Link.of(20e-6, bandwidth=100e6)
SECONDS = 200e-6, 400e-6  # of a stage, forward and backward
STEPS = [(2, 1, 2), (2, 3, 1), (3, 2, 2), (1, 3, 2), (3, 5, 1), (5, 4, 2), (8, 8, 1), (4, 2, 3), (4, 8, 2)]
# ranks, micro-batches, rows of each


def step_cases(sizes=STEPS, width=3):
    for size, count, each in sizes:
        weights = [row.view(width, width) / row.abs().max() for row in drawn(size, width * width, torch.float64)]
        rows, wanted = (row.view(-1, width) / row.abs().max() for row in drawn(2, count * each * width, torch.float64))
        given = tuple((weight, rows, wanted, count, *SECONDS) for weight in weights)
        told = micro_batches(count)
        yield Case(given, harnesses.step_alone, machine=LINK, says=told, holds=f"a layer of {width} × {width}")


def _activations(case):
    """Numbers of a micro-batch's activations."""
    return case.given[0][1].numel() // case.given[0][3]


def _port_bytes(case):
    """A rank in the middle sends activations on and gradients back; one at an end sends one of the two."""
    ways = min(2, case.size - 1)
    return ways * case.given[0][3] * _activations(case) * 8


def _seconds(case):
    """Of the step that the chapter makes by 1F1B."""
    size, count = case.size, case.given[0][3]
    order = partial(by_hand.one_f_one_b, count=count)
    program = partial(sketched.step, order=order, stages=[sketched.Stage(*SECONDS)] * size)
    return simulate(program, [Sketch(_activations(case), torch.float64)] * size, LINK, trace=False).makespan


def _time(factor):
    return Limit(
        "from the first start to the last end", lambda run: run.makespan, lambda case: factor * _seconds(case), seconds_text
    )


def _too_many(run):
    """By how many micro-batches some rank holds more than there are ranks from it to the end."""
    size = run.case.size
    return max(_held(run.trace, rank) - (size - rank) for rank in range(size))


def _held(trace, rank):
    spans = [span for span in trace.spans if (span.rank, span.kind) == (rank, "compute")]
    changes = [(span.start, 1) if span.label == "forward" else (span.end, -1) for span in spans]
    most = now = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


def _computed(run):
    """Complains of a rank that did not take every micro-batch through its stage once each way."""
    count = run.case.given[0][3]
    for rank in range(run.case.size):
        if run.trace.time(rank, "compute") < 0.999 * count * sum(SECONDS):
            return f"rank {rank} has not taken every micro-batch through its `stage` and back: leave alone what the layers do there"
    return None


STEP_LEVELS = (
    Level("within the target", (limits.port_bytes(_port_bytes), _time(1.3))),
    Level(
        "at the bound",
        (Limit("micro-batches more than p − r on a rank", _too_many, lambda case: 0), _time(1.001)),
        "With fewer than p − r under way rank r would stand idle before its first one is back, since that many are in the hands of the "
        "ranks after it. The time is that of the chapter's 1F1B: m + p − 1 turns, with a message each way in every turn.",
    ),
)
STEP_HINTS = (
    "Three things a rank does with a micro-batch: get x (from `inputs`, or from the rank before), compute y = stage(x) and keep "
    "both, send y.detach() on. Backward: get the gradient of y (none on the last rank: there y is the loss), call "
    "y.backward(gradient), send x.grad back. What came from another rank needs x.requires_grad_().",
    "Take the actions in the order of 1F1B. After each, put into one batch_isend_irecv what came out of it, and what the next "
    "one needs. Neighbors then send and receive in the same batch. The losses are divided by the number of micro-batches.",
    'For action k of ("F" or "B", i): `needs(k)` is the rank before for F, the rank behind for B, or none at the ends; `gives(k)` '
    "the other one. Before the first action receive what it needs; after action k send to gives(k) and receive from needs(k + 1), "
    "into `torch.empty_like(like)`. An empty list makes no batch.",
)


EXERCISES = {
    "fewest": Answer(bubble_questions, BUBBLE_HINTS),
    "cut": Answer(cut_questions, CUT_HINTS, (Level("within the target"), Level("at the bound"))),
    "orders": Answer(order_questions, ORDER_HINTS, (Level("within the target"), Level("at the bound"))),
    "pipeline": Program(pipeline_cases, PATIENT_HINTS, also=one_forward_one_backward, adds=False),
    "train_step": Program(
        step_cases,
        STEP_HINTS,
        STEP_LEVELS,
        keeps=False,
        adds=False,
        also=_computed,
        harness=harnesses.step,
    ),
}
