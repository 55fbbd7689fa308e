"""Lab of chapter 15, "Barriers and order": read the reports of five hangs, compare two ranks' calls, agree before a call."""

import re
from functools import cache

import torch

from ringtree.cost import Link
from ringtree.errors import UsageError
from ringtree.labs import limits
from ringtree.labs.comparing import short
from ringtree.labs.exercise import Answer, Case, Level, Program, Question
from ringtree.labs.inputs import whole_numbers
from ringtree.simulated import ProgramError, simulate
from ringtree.theory import lower_bound
from ringtree.waits import name_ranks

TITLE = "Order"
CHAPTER = 15


# ---------------------------------------------------------------- five programs that hang


def first_job(x, dist):
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank > 0:
        before = torch.empty_like(x)
        dist.recv(before, rank - 1)
        x += before
    if rank < size - 1:
        dist.send(x, rank + 1)
    if x.sum() > 8:
        return
    dist.all_reduce(x)


def second_job(x, dist):
    rank, size = dist.get_rank(), dist.get_world_size()
    middle, gradient = size // 2, torch.zeros_like(x)
    if 0 < rank < middle:
        dist.recv(x, rank - 1)
    if rank < middle:
        dist.send(x, rank + 1)
    if rank >= middle:
        dist.send(gradient, rank - 1)
    if rank >= middle:
        dist.recv(x, rank - 1)
    dist.barrier()


def third_job(x, dist):
    rank = dist.get_rank()
    data, model = dist.new_group([0, 1, 2]), dist.new_group([1, 2, 3])
    for name in ["data", "model"] if rank < 2 else ["model", "data"]:
        group = data if name == "data" else model
        if rank in dist.get_process_group_ranks(group):
            dist.all_reduce(x, group=group)


def fourth_job(x, dist):
    rank, size = dist.get_rank(), dist.get_world_size()
    for other in range(size):
        if rank == 0:
            dist.recv(x, 1 + other % (size - 1))
        elif rank == other:
            dist.send(x, 0)
    dist.all_reduce(x)


def fifth_job(x, dist):
    for step in range(3):
        if step == 2 and dist.get_rank() == 2:
            dist.broadcast(x, src=0)
        dist.all_reduce(x)
    dist.broadcast(x, src=0)


CAUSES = {
    "stayed away": "a rank has finished, and never comes to the collective that the others are in",
    "circle": "ranks that are in a plain send or recv wait for each other, each before it does what the other waits for",
    "two groups": "ranks share two groups and enter them in different orders",
    "nobody sends": "a rank waits for a message, and its sender has gone on to something else",
    "other collective": "two ranks call different collectives, which meet",
    "length": "sender and receiver give tensors of different lengths",
    "tag": "sender and receiver give different tags",
}

# the job, its ranks, and what may be answered: whose mistake, in which call, what
JOBS = (
    (first_job, 5, {4}, {"all_reduce"}, "stayed away"),
    (second_job, 6, {2, 3}, {"send"}, "circle"),
    (third_job, 4, {1, 2}, {"all_reduce"}, "two groups"),
    (fourth_job, 4, {0, 1}, {"recv"}, "nobody sends"),
    (fifth_job, 4, {0, 2}, {"broadcast", "all_reduce"}, "other collective"),
)


@cache
def _report(number):
    job, size, *_ = JOBS[number - 1]
    try:
        simulate(job, [torch.ones(2) for _ in range(size)], Link(1e-6, 0.0), checked=True)
    except ProgramError as error:
        return re.sub(r", line \d+", "", str(error))  # of programs that nobody is to look up
    raise AssertionError(f"job {number} ended")


def report(number):
    """What the simulator says of one of five jobs that hang. number: 1 to 5. Raises UsageError for any other."""
    if type(number) is not int or not 1 <= number <= len(JOBS):
        raise UsageError(f"there is no report {number!r}: give a number from 1 to {len(JOBS)}")
    return _report(number)


def _misread(answer, job):
    _, size, ranks, calls, cause = job
    if not isinstance(answer, tuple | list) or len(answer) != 3:
        return 'it should return three things: a rank, a call and a cause, such as (0, "barrier", "tag")'
    rank, call, said = answer
    if type(rank) is not int or not 0 <= rank < size:
        return f"the first of the three should be a rank, 0 to {size - 1}"
    if not isinstance(said, str) or said not in CAUSES:
        return f"the third of the three should be one of {', '.join(map(repr, CAUSES))}"
    if said != cause:
        return f"the cause is not {said!r}, which is that {CAUSES[said]}. What do those do who wait, and for whom?"
    if rank not in ranks:
        way = "go from each rank to the one that it waits for, until the way ends or goes round"
        return f"it is {cause!r}, but not on rank {rank}: {way}"
    if not isinstance(call, str) or call not in calls:
        asked = "the second of the three should be the call, by its name in torch.distributed"
        return f"it is {cause!r}, and rank {rank} has to do with it; {asked}"
    return None


def report_questions():
    for number, job in enumerate(JOBS, 1):
        yield Question((number, report(number)), lambda answer, job=job: _misread(answer, job), f"report {number}")


REPORT_HINTS = (
    "Each line says who waits, in which call, and for whom. Start at any rank and go to the one it waits for, from there to "
    "the next. The way ends at a rank that has finished, or it goes round in a circle. The others only wait behind.",
    "A circle in `send` and one in an all_reduce look alike; the lines in brackets tell them apart. Two ranks that wait for "
    "each other in the same line, with a group in it, are in two different groups.",
    "1: who has finished? 2: which two are in the circle, and in what call? 3: the line says group=group. 4: rank 0 waits in "
    "a recv; where is the one that should send? 5: the report names two ranks and two calls: either will do.",
)


# ---------------------------------------------------------------- two ranks' calls

EVERYBODY, LEFT, RIGHT = (0, 1, 2, 3), (0, 1), (2, 3)


def differ(calls, a, b):
    """The first of the calls in groups of both ranks where they differ: (its place, a's call, b's call), or None."""
    mine, theirs = ([call for call in calls[rank] if a in call[0] and b in call[0]] for rank in (a, b))
    for place in range(max(len(mine), len(theirs))):
        pair = tuple(each[place] if place < len(each) else None for each in (mine, theirs))
        if pair[0] != pair[1]:
            return (place, *pair)
    return None


def _wrong_difference(answer, calls, a, b):
    wanted = differ(calls, a, b)
    if wanted is None:
        return None if answer is None else f"it returned {short(answer)}, and ranks {a} and {b} agree: None was wanted"
    if not isinstance(answer, tuple | list) or len(answer) != 3:
        return f"it returned {short(answer)}, and ranks {a} and {b} differ: three things were wanted, a place and the two calls"
    place, mine, theirs = answer
    if type(place) is not int or place != wanted[0]:
        where = f"among the calls in groups of both, ranks {a} and {b} first differ at place {wanted[0]} (from 0)"
        return f"it says place {short(place)}: {where}"
    for rank, said, should in ((a, mine, wanted[1]), (b, theirs, wanted[2])):
        if not _same(said, should):
            truth = "nothing more, which is None" if should is None else should
            return f"it says that rank {rank} calls {short(said)} there; it calls {truth}"
    return None


def _same(said, should):
    return said is None if should is None else isinstance(said, list | tuple) and repr(tuple(said)) == repr(should)


def calls_questions():
    every = [(EVERYBODY, "broadcast", 8), (EVERYBODY, "all_reduce", 8), (EVERYBODY, "barrier", 0)]
    two, other = (LEFT, "all_reduce", 4), (RIGHT, "all_gather", 5)
    both = (0, 1, 2), (1, 2, 3)
    crossed = [(both[0], "all_reduce", 2), (both[1], "all_reduce", 2)]
    cases = [
        ("the same calls", {0: every, 1: list(every)}, 0, 1),
        ("two calls changed round", {0: every, 1: [every[1], every[0], every[2]]}, 0, 1),
        ("another length", {0: every, 1: [every[0], (EVERYBODY, "all_reduce", 9), every[2]]}, 0, 1),
        ("one ends earlier", {0: every, 3: every[:2]}, 0, 3),
        ("one goes on", {2: every, 1: [*every, every[0]]}, 2, 1),
        ("each with its own group", {0: [every[0], two, every[1]], 2: [other, every[0], every[1], other]}, 0, 2),
        ("behind calls of its own group", {0: [two, two, every[1]], 2: [other, every[0], every[1]]}, 0, 2),
        ("two groups in two orders", {0: crossed[:1], 1: crossed, 2: crossed[::-1], 3: crossed[1:]}, 1, 2),
        ("two groups, and only one shared", {0: crossed[:1], 1: crossed, 2: crossed, 3: crossed[1:]}, 0, 1),
        ("no group of both", {0: [two, two], 3: [other]}, 0, 3),
        ("nobody calls", {0: [], 1: []}, 0, 1),
    ]
    for says, calls, a, b in cases:
        given = calls, a, b
        yield Question(given, lambda answer, given=given: _wrong_difference(answer, *given), f"ranks {a} and {b}, {says}")


CALLS_HINTS = (
    "Which calls of rank 2 does rank 0 have to match? Those in groups that have both of them. Throw the others away, and keep "
    "the order of the rest.",
    "Then compare place by place, up to the end of the *longer* list: a rank that calls nothing more differs from one that does. "
    "`zip` stops at the end of the shorter one.",
    "`mine = [call for call in calls[a] if a in call[0] and b in call[0]]`, the same for b, and "
    "`itertools.zip_longest(mine, theirs)` gives None where a list has ended.",
)


# ---------------------------------------------------------------- agree before a call


def agree_cases():
    agreeing = [(size, ()) for size in (2, 3, 1, 4, 7)]
    differing = [(2, (1,)), (3, (2,)), (4, (3,)), (5, (0,)), (6, (1, 4)), (7, (5,)), (8, (6,))]
    for size, strange in sorted(agreeing + differing):
        usual, *others = sorted(set(whole_numbers(40, 1, 10**6)))[: size + 1]
        codes = [others[rank] if rank in strange else usual for rank in range(size)]
        yield _agree_case(codes, f"another code on {name_ranks(strange)}" if strange else "one code")
    (middle,) = whole_numbers(1, 100, 10**6)
    yield _agree_case([middle, middle - 1, middle + 1, middle], "other codes on ranks 1 and 2, whose mean is that of the others")


def _agree_case(codes, says):
    same = len(set(codes)) == 1
    return Case(tuple((torch.tensor([code]),) for code in codes), lambda given: [same] * len(given), says=says)


AGREE_LEVELS = (
    Level(
        "within the target",
        (limits.rounds(lambda case: 2 * lower_bound("all_reduce", case.size).rounds),),
    ),
    Level(
        "at the bound",
        (limits.rounds(lambda case: lower_bound("all_reduce", case.size).rounds),),
        "⌈lg p⌉ rounds: what a rank knows can reach at most twice as many ranks in each.",
    ),
)
AGREE_HINTS = (
    "All codes are the same if the smallest of all is also the largest of all. Both fit into one message.",
    "The barrier of this chapter: in round i send to the rank 2^i further on, and receive from the one 2^i before. A "
    "smallest and a largest may be counted twice without harm, so it works for every p.",
    "`known = torch.stack([code[0], code[0]])`; in each round receive `other` of the same shape, in one batch with the send, "
    "then `known = torch.stack([torch.minimum(known[0], other[0]), torch.maximum(known[1], other[1])])`. At the end "
    "`return bool(known[0] == known[1])`.",
)


GIVEN = CAUSES, report

EXERCISES = {
    "diagnose": Answer(report_questions, REPORT_HINTS),
    "first_difference": Answer(calls_questions, CALLS_HINTS),
    "agree": Program(agree_cases, AGREE_HINTS, AGREE_LEVELS, adds=False),
}
