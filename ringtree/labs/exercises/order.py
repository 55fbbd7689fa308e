"""Lab of chapter 15, "Barriers and order": one order for all, the reports of five hangs, two ranks' calls, agree before a call."""

import hashlib
import re
from functools import cache, partial

import torch

from ringtree.cost import Link
from ringtree.errors import UsageError
from ringtree.labs import limits
from ringtree.labs.comparing import is_whole, short
from ringtree.labs.exercise import Answer, Case, Level, Program, Question
from ringtree.labs.inputs import drawn, easy, whole_numbers
from ringtree.simulated import ProgramError, simulate
from ringtree.theory import lower_bound
from ringtree.waits import name_ranks

TITLE = "Order"
CHAPTER = 15


# ---------------------------------------------------------------- sums by name

NAMES = ["wq", "bias", "up", "gate", "wk"]


def sum_named_cases():
    """By rank, names and their tensors, in an order of the rank's own: of one length, where a mix-up adds up, and of several."""
    for size, count, lengths, numbers in [
        (2, 2, (2, 2, 2, 2, 2), easy),
        (2, 2, (3, 1, 2, 4, 5), easy),
        (3, 3, (1, 1, 1, 1, 1), drawn),
        (1, 2, (2, 2, 2, 2, 2), drawn),
        (4, 5, (2, 3, 3, 1, 2), drawn),
        (6, 5, (2, 2, 2, 2, 2), drawn),
    ]:
        yield _named_case(size, lengths[:count], numbers)


def _named_case(size, lengths, numbers=drawn):
    whole = [row.split(lengths) for row in numbers(size, sum(lengths))]
    return Case(tuple(_named(row, rank) for rank, row in enumerate(whole)), _sums_by_name, says=f"{len(lengths)} names")


def _named(tensors, rank):
    """The names and tensors of a rank: turned by its number, on ranks 2 and 3 of four backwards."""
    order = [(place + rank) % len(tensors) for place in range(len(tensors))][:: -1 if rank % 4 > 1 else 1]
    return [NAMES[each] for each in order], [tensors[each].clone() for each in order]


def _sums_by_name(given):
    totals = {}
    for names, tensors in given:
        for name, tensor in zip(names, tensors):
            totals[name] = totals[name] + tensor if name in totals else tensor.clone()
    return [[totals[name] for name in names] for names, _ in given]


SUM_NAMED_HINTS = (
    "An all-reduce has no name. The k-th call of one rank meets the k-th call of every other rank, whatever tensors they give.",
    "So all ranks must go through the names in one order. Which order can each rank find alone, without a message?",
    "`for name in sorted(names):` is the same on every rank. `tensors[names.index(name)]` is that name's tensor.",
)


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

JOBS = (first_job, 5), (second_job, 6), (third_job, 4), (fourth_job, 4), (fifth_job, 4)  # with their ranks
AGAIN = (1, 4, 2.0), (2, 10, 1.0), (1, 6, 2.0), (4, 5, 1.0)  # job, ranks, and what each rank's numbers are
# Fingerprints of what may be answered: the cause, whose mistake, and in which call of that rank.
# Whoever opens this file is to find it out all the same.
ACCEPTED = frozenset(
    (
        "01aa04ac 08dddd27 0afdaec2 0f505e85 1299c8ff 136e7d42 2112b425 23b4e08f 2fd4113f 31236511 3bfbd5b5 "
        "3f6a8ba0 432f1bf8 46ab86e8 53f5a7d3 54bdf2fe 5c9d2e08 60473b7f 6427fb70 650cb47d 6f7a9230 797e1ced "
        "7d0d16cf 8a16eadc 914615c6 9436e235 9aaf5c02 a61399c2 a8f82c0f afa14ebd b08faeb0 be0b24b5 bf4a61c2 "
        "c0ba18ed c490861d cdcf5031 ce498280 cfc5f854 d32cb8ec d3a5b51e d3d25054 d835db6d d9488eb2 dfb23a72 "
        "e0be1d0c e739a5ab e9b60f79 ed567232 edca253f f87915b0 fc62b6b3 fe483238 ffd0ed4e"
    ).split()
)


def _is_right(number, size, said):
    return hashlib.sha256(repr((number, size, said)).encode()).hexdigest()[:8] in ACCEPTED


@cache
def _report(number, size, filled=1.0):
    job, _ = JOBS[number - 1]
    try:
        simulate(job, [torch.full((2,), filled) for _ in range(size)], Link(1e-6, 0.0), checked=True)
    except ProgramError as error:
        return re.sub(r", line \d+", "", str(error))  # of programs that nobody is to look up
    raise AssertionError(f"job {number} ended")


def report(number):
    """Return what the simulator says of one of five jobs that hang. number: 1 to 5. Raises UsageError for any other."""
    if type(number) is not int or not 1 <= number <= len(JOBS):
        raise UsageError(f"there is no report {number!r}: give a number from 1 to {len(JOBS)}")
    return _report(number, JOBS[number - 1][1])


def _misread(answer, size, is_right):
    """is_right(said): whether it may be said of this report: a cause, a rank, or (rank, call)."""
    if not isinstance(answer, tuple | list) or len(answer) != 3:
        return 'it should return three things: a rank, a call and a cause, such as (0, "barrier", "tag")'
    rank, call, said = answer
    if not is_whole(rank) or not 0 <= rank < size:
        return f"the first of the three should be a rank, 0 to {size - 1}"
    if not isinstance(said, str) or said not in CAUSES:
        return f"the third of the three should be one of {', '.join(map(repr, CAUSES))}"
    if not is_right(said):
        return f"the cause is not {said!r}: that would mean that {CAUSES[said]}. What are the waiting ranks doing, and for whom do they wait?"
    if not is_right(int(rank)):
        way = "go from each rank to the one that it waits for, until the path ends or closes a circle"
        way = "the report names the two ranks that are in different calls" if said == "other collective" else way
        return f"it is {said!r}, but not on rank {rank}: {way}"
    if not isinstance(call, str) or not is_right((int(rank), call.rpartition(".")[2])):
        asked = "the call that it is in or never reached, by its name in torch.distributed"
        begins = f"it is {said!r}, and rank {rank} is involved"
        return f"{begins}; the second of the three should be {asked}, and is not {short(call)}"
    return None


def report_questions():
    for number, (_, size) in enumerate(JOBS, 1):
        yield _report_question(number, size, partial(_is_right, number, size))
    for number, size, filled in AGAIN:
        yield _report_question(number, size, partial(_is_right, number, size), filled, level=1)


def _report_question(number, size, is_right, filled=1.0, level=0):
    text = _report(number, size, filled)
    says = f"report {number} again, of {size} ranks (it is: {text})" if level else f"report {number}"
    return Question((number, text), lambda answer: _misread(answer, size, is_right), says, level)


REPORT_HINTS = (
    "Each line says who waits, in which call, and for whom. Start at any rank and go to the one it waits for, from there to "
    "the next. The path ends at a rank that has finished, or it closes a circle. The others only wait behind.",
    "A circle in `send` and one in an all_reduce look alike; the calls tell them apart. If two ranks wait for each other in "
    "the same line, and the line names a group, they are in two different groups.",
    "1: who has finished? 2: which two are in the circle, and in what call? 3: the line says group=group. 4: rank 0 waits in "
    "a recv; where is the one that should send? 5: the report names two ranks and two calls: either will do.",
    "For the target the call and the cause may stay in your table. Find the rank in the text: `read_report(report)` of "
    "`ringtree.waits` gives `waits`, each with its `rank`, `call`, `others` and `finished`, and the ranks of the `circle`.",
)


# ---------------------------------------------------------------- two ranks' calls

EVERYBODY, LEFT, RIGHT = (0, 1, 2, 3), (0, 1), (2, 3)


def _wrong_difference(answer, a, b, wanted):
    if wanted is None:
        return None if answer is None else f"it returned {short(answer)}, and ranks {a} and {b} agree: return None"
    if not isinstance(answer, tuple | list) or len(answer) != 3:
        return f"it returned {short(answer)}, and ranks {a} and {b} differ: return three things, a place and the two calls"
    place, mine, theirs = answer
    if not is_whole(place) or place != wanted[0]:
        where = (
            f"among the calls in groups that have both of them, ranks {a} and {b} first differ at place {wanted[0]} (from 0)"
        )
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
    broadcast, all_reduce, barrier = every
    longer = (EVERYBODY, "all_reduce", 9)
    cases = [  # in words; the calls; which two ranks; and where they first differ
        ("the same calls", {0: every, 1: list(every)}, 0, 1, None),
        ("two calls changed round", {0: every, 1: [all_reduce, broadcast, barrier]}, 0, 1, (0, broadcast, all_reduce)),
        ("another length", {0: every, 1: [broadcast, longer, barrier]}, 0, 1, (1, all_reduce, longer)),
        ("one ends earlier", {0: every, 3: every[:2]}, 0, 3, (2, barrier, None)),
        ("one goes on", {2: every, 1: [*every, broadcast]}, 2, 1, (3, None, broadcast)),
        ("each with its own group", {0: [broadcast, two, all_reduce], 2: [other, broadcast, all_reduce, other]}, 0, 2, None),
        (
            "behind calls of its own group",
            {0: [two, two, all_reduce], 2: [other, broadcast, all_reduce]},
            0,
            2,
            (0, all_reduce, broadcast),
        ),
        ("two groups in two orders", {0: crossed[:1], 1: crossed, 2: crossed[::-1], 3: crossed[1:]}, 1, 2, (0, *crossed)),
        ("two groups, and only one shared", {0: crossed[:1], 1: crossed, 2: crossed, 3: crossed[1:]}, 0, 1, None),
        ("no group of both", {0: [two, two], 3: [other]}, 0, 3, None),
        ("nobody calls", {0: [], 1: []}, 0, 1, None),
    ]
    for says, calls, a, b, wanted in cases:
        truth = a, b, wanted
        yield Question(
            (calls, a, b), lambda answer, truth=truth: _wrong_difference(answer, *truth), f"ranks {a} and {b}, {says}"
        )


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
    yield _agree_case(
        [middle, middle - 1, middle + 1, middle], "other codes on ranks 1 and 2, whose mean is that of the others"
    )
    large = 2**61 + middle
    yield _agree_case([large, large, large + 1], "codes of 62 bits, and rank 2's is one more")
    yield _agree_case([large, large - 2**60, large], "codes of 62 bits, and rank 1's differs in the 61st alone")


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
    "sum_named": Program(sum_named_cases, SUM_NAMED_HINTS, builtin=True, keeps=False, adds=False),
    "diagnose": Answer(report_questions, REPORT_HINTS, (Level("within the target"),)),
    "first_difference": Answer(calls_questions, CALLS_HINTS),
    "agree": Program(agree_cases, AGREE_HINTS, AGREE_LEVELS, adds=False),
}
