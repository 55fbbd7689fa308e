"""Lab of chapter 25, "When training hangs": read the records of five hangs, find who is late, average where rows are uneven."""

import hashlib
import json
from functools import cache, partial
from pathlib import Path

import torch

from ringtree.errors import UsageError
from ringtree.labs import limits
from ringtree.labs.comparing import is_whole, short
from ringtree.labs.exercise import Answer, Case, Level, Program, Question
from ringtree.labs.inputs import drawn
from ringtree.measure.flight_recorder import Entry, entries_of

TITLE = "Hangs"
CHAPTER = 25


# ---------------------------------------------------------------- where the ranks part


def _entries(calls, first=1, group="0"):
    """Entries of calls such as "all_reduce 4", numbered from `first`; one that ends in ! has not ended."""
    entries = []
    for number, call in enumerate(calls, first):
        operation, elements = call.rstrip("!").split()
        entries.append(Entry(group, number, operation, int(elements), not call.endswith("!"), ("average",)))
    return entries


def _wrong_partings(answer, wanted):
    if not isinstance(answer, dict):
        return f"it returned {short(answer)}: return a dict from the name of a group to a number"
    for group in sorted({*wanted, *answer}, key=str):
        if group not in wanted:
            return f"it says that group {group!r} parts at collective {short(answer[group])}; there its ranks agree"
        if group not in answer:
            return f"group {group!r} is not in what it returned, and its ranks part at collective {wanted[group]}"
        if not is_whole(answer[group]) or answer[group] != wanted[group]:
            return f"it says that group {group!r} parts at collective {short(answer[group])}; it does at {wanted[group]}"
    return None


def parting_questions():
    step = ["all_reduce 4", "all_reduce 6", "reduce 1"]
    open_ = ["all_reduce 4", "all_reduce 6!"]
    both = {
        0: _entries(step) + _entries(step[:2], group="left"),
        1: _entries(step[:2], group="left") + _entries(step),
        2: _entries(step) + _entries(["all_reduce 4", "barrier 0!"], group="right"),
        3: _entries(step) + _entries(step[:1], group="right"),
    }
    behind = {0: _entries(step[2:] + step, 3), 1: _entries(step + step), 2: _entries(step + step[:1] + ["barrier 0!"])}
    forgotten = {0: _entries(step, 4), 1: _entries(["broadcast 8", *step[1:], *step])}
    cases = [
        ("ranks that agree", {0: _entries(step), 1: _entries(step)}, {}),
        ("a rank that has made fewer calls", {0: _entries(step), 1: _entries(step), 2: _entries(step[:1])}, {"0": 2}),
        ("another operation", {0: _entries(step), 1: _entries(["all_reduce 4", "barrier 0!"])}, {"0": 2}),
        ("another operation of the same length", {0: _entries(step), 1: _entries(["broadcast 4", *step[1:]])}, {"0": 1}),
        ("the same operation, another length", {0: _entries(step), 1: _entries(["all_reduce 8", *step[1:]])}, {"0": 1}),
        ("all in one call that does not end", {0: _entries(open_), 1: _entries(open_)}, {"0": 2}),
        ("a call that has ended on one rank alone", {0: _entries(step[:2]), 1: _entries(open_)}, {"0": 2}),
        ("a difference in what rank 0 has forgotten", forgotten, {}),
        ("rank 0 has forgotten its first calls", behind, {"0": 5}),
        ("three groups", both, {"right": 2}),
    ]
    for says, records, wanted in cases:
        yield Question((records,), lambda answer, wanted=wanted: _wrong_partings(answer, wanted), says)


PARTING_HINTS = (
    "Sort the entries first: group → rank → number → entry. Ranks that have no entry for a group are not in it.",
    "For each group, begin with the largest of the ranks' first numbers, because before it some rank has forgotten; end with the "
    "largest of their last ones. A rank that has no entry of a number there has not called it.",
    "`found = [numbers.get(n) for numbers in ranks.values()]`: they part where one is None, where the pairs (operation, elements) "
    "are not all the same, or where one is not `done`. The first such n is the group's; go on to the next group.",
)


# ---------------------------------------------------------------- five records

CAUSES = {
    "skipped": "a rank has left out a whole step, and is now a step ahead of the others",
    "alone": "a rank makes a call that no other rank ever makes",
    "size": "a rank gives another number of elements than the others ever give",
    "order": "a rank makes the calls of a step in another order",
    "away": "a rank is in no collective: it computes, waits for its data, or is dead",
    "groups": "two ranks enter two groups in different orders",
    "network": "all ranks are in the same call, and it does not end",
}
JOBS, RANKS = 5, 4
# Fingerprints of what may be answered: the cause; with it the rank; with both the number of the collective.
# Whoever opens this file is to find it out all the same.
ACCEPTED = frozenset(
    (
        "0020bde7 012dffff 1a69ea08 1bacab73 375e623f 392e196a 3d24830e 4114ecfc 41deebb1 590dc143 "
        "5e777991 61515614 61e01263 65355a27 6b319388 79f5b2ed 7c3a0b6c 84085dbb 99295a79 a49e0132 "
        "aa592e82 b3a6bb1b baf4ce90 c3423b2d e1db208c e6bdb2de ea65bf95 eab0f2f3 fdb1d24e fe48f1d5"
    ).split()
)


def _is_right(name, *said):
    return hashlib.sha256(repr((name, *said)).encode()).hexdigest()[:8] in ACCEPTED


@cache
def _records():
    with open(Path(__file__).with_suffix(".json")) as file:
        return json.load(file)


def _record(name):
    return {rank: entries_of(dump) for rank, dump in enumerate(_records()[name])}


def record(number):
    """By rank the entries of the Flight Recorder of one of five jobs, as `flight_recorder.read` gives them.

    number: 1 to 5. Raises UsageError for any other.
    """
    if not is_whole(number) or not 1 <= number <= JOBS:
        raise UsageError(f"there is no record {number!r}: give a number from 1 to {JOBS}")
    return _record(str(number))


def _misread(answer, is_right):
    """is_right(cause), is_right(cause, rank), is_right(cause, rank, number): whether it may be said of this record."""
    if not isinstance(answer, tuple | list) or len(answer) != 3:
        return 'it should return three things: a rank, the number of a collective and a cause, such as (0, 3, "network")'
    rank, place, cause = answer
    if not is_whole(rank) or not 0 <= rank < RANKS:
        return f"the first of the three should be a rank, 0 to {RANKS - 1}"
    if not is_whole(place):
        return f"the second of the three should be the number of a collective, and is {short(place)}"
    if not isinstance(cause, str) or cause not in CAUSES:
        return f"the third of the three should be one of {', '.join(map(repr, CAUSES))}"
    if not is_right(cause):
        return f"the cause is not {cause!r}: that would mean that {CAUSES[cause]}. What had the ranks called before, and in what order?"
    if not is_right(cause, int(rank)):
        return f"it is {cause!r}, but not on rank {rank}: which rank is not like the others?"
    if not is_right(cause, int(rank), int(place)):
        return f"it is {cause!r} on rank {rank}, but they part in another collective than number {place}"
    return None


def record_questions():
    for level, again in enumerate(("", " again")):
        for number in range(1, JOBS + 1):
            name = f"{number}{again}"
            says = f"record {number} again, from another night" if again else f"record {number}"
            yield _record_question(number, _record(name), partial(_is_right, name), says, level)


def _record_question(number, records, is_right, says, level):
    return Question((number, records), lambda answer: _misread(answer, is_right), says, level)


RECORD_HINTS = (
    "Your `partings` gives the number. Then look which rank differs from the others there, and what it has called before.",
    "A step calls two averages and a log; after each second step all save, with a barrier. So count on each rank how many averages "
    "there are between two saves, and whether the others have ever called what the odd rank calls.",
    "1: how many steps has each rank made before its second save? 2: which ranks have ever saved? 3: who else gives 8? 4: is rank 3 "
    "in a call at all? 5: rank 2 gives 6 where the others give 4; and what do they give next?",
    "For the target the causes may stay in your table. The number comes from `partings`, and the rank is the one whose call "
    "there is not that of most.",
)


# ---------------------------------------------------------------- who is late


def _wrong_late(answer, wanted):
    if not isinstance(answer, list | tuple) or len(answer) != len(wanted) or not all(map(is_whole, answer)):
        return f"it returned {short(answer)}: return a list of {len(wanted)} whole numbers, one for each rank"
    if sum(answer) != sum(wanted):
        return (
            f"it counts {sum(answer)} times in all, and there were {sum(wanted)} collectives, each with one rank that came last"
        )
    for rank, (said, truth) in enumerate(zip(answer, wanted)):
        if said != truth:
            return f"it says that rank {rank} came last {said} times; it did {truth} times"
    return None


def _watched(came, offsets, takes=(0.25,)):
    """Times by each rank's own clock. came[k][rank]: when it came to collective k, by the true clock; offsets: of the clocks."""
    calls = [[] for _ in offsets]
    for number, row in enumerate(came):
        left = max(row) + takes[number % len(takes)]
        for rank, when in enumerate(row):
            calls[rank].append((when + offsets[rank], left + offsets[rank]))
    return calls


def late_questions():
    cases = [
        ("one collective of two ranks", [[1.0, 2.0]], [0.0, 0.0]),
        ("always the same rank", [[1.0, 1.5, 3.0, 1.25], [5.0, 4.5, 6.0, 4.75], [8.0, 8.5, 9.0, 8.25]], [0.0] * 4),
        (
            "one rank often, another once and very late",
            [[1.0, 1.5, 1.25], [3.5, 3.0, 3.25], [5.0, 5.5, 5.25], [7.0, 7.5, 90.0]],
            [0.0] * 3,
        ),
        ("clocks that do not agree", [[1.0, 2.0, 1.5], [4.0, 3.0, 3.5], [6.0, 7.0, 6.5]], [1000.0, 0.0, -500.0]),
        ("a clock that runs an hour ahead", [[2.0, 1.0], [3.75, 4.0], [6.0, 5.0]], [0.0, 3600.0]),
        ("collectives of different lengths", [[1.0, 1.5], [3.0, 2.5], [9.0, 8.5]], [0.0, 8.0]),
    ]
    for says, came, offsets in cases:
        wanted = [sum(max(range(len(row)), key=row.__getitem__) == rank for row in came) for rank in range(len(offsets))]
        calls = _watched(came, offsets, (0.25, 2.0) if "lengths" in says else (0.25,))
        yield Question((calls,), lambda answer, wanted=wanted: _wrong_late(answer, wanted), says)


LATE_HINTS = (
    "All leave a collective at nearly one moment. So the rank that came last was in it for the shortest time, and each rank "
    "can measure that by its own clock.",
    "For collective k, `waits = [left - came for came, left in (rank[k] for rank in calls)]`; the rank with the smallest of them came last.",
    "Count them: `late[waits.index(min(waits))] += 1`, for each k.",
)


# ---------------------------------------------------------------- the mean over rows


def _mean(given):
    rows = sum(count for _, count in given)
    total = torch.stack([total for total, _ in given]).sum(0)
    return [total / rows if rows else torch.zeros_like(total)] * len(given)


def mean_cases():
    yield _mean_case((1, 3), [torch.tensor([6.0]), torch.tensor([2.0])])
    for counts, length, dtype in [
        ((2, 0), 2, torch.float32),
        ((0, 0, 0), 2, torch.float32),
        ((4, 4, 0, 4), 5, torch.float32),
        ((5,), 3, torch.float32),
        ((0, 7, 1, 0, 2), 4, torch.float64),
        ((3, 1, 0, 300, 2, 5, 0, 8), 9, torch.float64),
        ((0, 2, 2, 2, 2, 2, 9), 1, torch.float64),
        ((4, 4, 3, 4), 6, torch.float64),
    ]:
        yield _mean_case(counts, drawn(len(counts), length, dtype))


def _mean_case(counts, totals):
    given = tuple((total if count else torch.zeros_like(total), count) for total, count in zip(totals, counts))
    return Case(given, _mean, says=f"with {', '.join(map(str, counts))} rows")


MEAN_LEVELS = (
    Level(
        "within the target",
        (limits.rounds(lambda case: 2 * (case.size - 1)),),
        "One all-reduce of a ring, 2(p−1) rounds: the number of rows travels with the gradients.",
    ),
)
MEAN_HINTS = (
    "The sum over all ranks of the totals, divided by the sum over all ranks of the rows. Every rank takes part, even one that has none.",
    "Two all-reduces do it. One will, if the number of rows travels as one more number of the same tensor.",
    "`both = torch.cat([total, total.new_tensor([rows])])`, all-reduce it, and return `both[:-1] / both[-1].clamp(min=1)`: where nobody "
    "has rows the sum is zeros, and stays zeros.",
)


GIVEN = CAUSES, record

EXERCISES = {
    "came_last": Answer(late_questions, LATE_HINTS),
    "partings": Answer(parting_questions, PARTING_HINTS),
    "diagnose": Answer(record_questions, RECORD_HINTS, (Level("within the target"),)),
    "mean_over_rows": Program(mean_cases, MEAN_HINTS, MEAN_LEVELS, builtin=True),
}
