"""Lab of chapter 7, "Scatter and gather": collect in another order, and shards of several lengths, over a tree and how long."""

import torch

from ringtree.labs import limits
from ringtree.labs.comparing import is_whole, short
from ringtree.labs.exercise import Answer, Case, Level, Program, Question
from ringtree.labs.inputs import drawn, easy, whole_numbers
from ringtree.theory import lower_bound
from ringtree.units import count_text

TITLE = "Scatter and gather"
CHAPTER = 7


# ---------------------------------------------------------------- the last rank first


def collect_cases():
    for size, root, length in ((2, 0, 1), (3, 0, 2), (2, 1, 2), (4, 2, 1), (1, 0, 3), (5, 4, 2), (8, 3, 1), (4, 0, 3)):
        yield collect_case(size, root, length, easy if length == 1 else drawn)


def collect_case(size, root, length, numbers=drawn):
    def wanted(given):
        whole = torch.cat([row for (row,) in reversed(given)])
        return [whole if rank == root else None for rank in range(size)]

    return Case(tuple((row,) for row in numbers(size, length)), wanted, {"root": root})


COLLECT_HINTS = (
    "Every rank but the root sends its shard to the root. The root receives from each of them, into a tensor for each.",
    "Until a message has arrived, a tensor means nothing: `torch.empty_like(shard)` makes room for one shard. The root's own shard "
    "needs no message.",
    "On the root: `rows = [shard if rank == root else torch.empty_like(shard) for rank in range(size)]`, then receive `rows[other]` "
    "from each `other`. `torch.cat(rows[::-1])` puts the last in front.",
)


# ---------------------------------------------------------------- how many for each

SPEEDS = [  # samples, seconds that each rank needs for one, and in how many seconds all can be done
    (6, (1.0, 1.0), 3),
    (6, (1.0, 2.0), 4),
    (10, (1.0, 1.0, 1.0, 1.0), 3),
    (100, (2.0, 2.0, 2.0, 5.0), 60),
    (400, (1.0, 9.0, 1.0), 190),
    (0, (1.0, 3.0), 0),
    (512, (1.0, 1.5, 1.1, 4.0, 1.0, 1.0, 2.5, 1.0), 83),
]
CLOSE = [
    (3, (4.0, 4.0, 1.0, 4.0), 3),
    (10, (1.0, 1.5, 2.5), 5),
    (11, (2.0, 3.0, 7.0), 12),
    (7, (3.0, 2.0, 2.0, 2.0), 4),
    (25, (5.0, 4.0, 1.0, 1.0), 11),
    (9, (7.0, 3.0, 3.0), 12),
]


def shares_questions():
    for level, asked in enumerate((SPEEDS, CLOSE)):
        for samples, seconds, least in asked:
            says = f"{count_text(samples, 'sample')}, {', '.join(f'{each:g}' for each in seconds)} s each"
            yield Question((samples, list(seconds)), _too_long(samples, seconds, least, (1.1, 1 + 1e-9)[level]), says, level)


def _too_long(samples, seconds, least, most):
    def wrong(answer):
        if not (isinstance(answer, list | tuple) and len(answer) == len(seconds) and all(map(is_whole, answer))):
            return f"it returned {short(answer)} and should return a list of {len(seconds)} whole numbers."
        if min(answer) < 0:
            return f"rank {answer.index(min(answer))} gets {min(answer)} samples: give 0 or more."
        if sum(answer) != samples:
            return f"{short(answer)} are {sum(answer)} samples, and there are {samples}."
        took = max(count * each for count, each in zip(answer, seconds))
        if took > most * least:
            last = max(range(len(answer)), key=lambda rank: answer[rank] * seconds[rank])
            return f"with {short(answer)} rank {last} ends last, after {took:g} s, where {least:g} s are enough."
        return None

    return wrong


SHARES_HINTS = (
    "All ranks should end at about the same time. A rank that needs twice as long for a sample should get how many?",
    "In proportion to the speed, 1 / seconds: that is a fraction. Round down, and some samples are left over. Who takes one more "
    "sample with the least harm?",
    "Give the samples one after the other, each to the rank that would be ready with it first: the one with the smallest "
    "(counts[rank] + 1) * seconds[rank].",
)


# ---------------------------------------------------------------- scatter and gather

LENGTHS = [
    ((2, 2), 0),
    ((2, 1), 1),
    ((1, 2, 3), 0),
    ((2,), 0),
    ((2, 0, 1), 2),
    ((3, 1, 2), 1),
    ((1, 2, 3, 4), 0),
    ((5, 0, 2, 1), 2),
    ((0, 0, 4, 0), 1),
    ((2, 3, 1, 4, 2), 4),
    ((1, 1, 7, 1, 1, 2), 3),
    ((3, 2, 1, 1, 2, 3, 4), 5),
    ((2, 2, 2, 2, 2, 2, 2, 2), 0),
    ((1, 0, 3, 5, 2, 0, 4, 1), 6),
    ((4, 1, 3, 2), 3),
    ((4, 1, 3, 2), 3),
]


def _lists(filled):
    """Cases in which rank r's list holds numbers where filled(r, shard, root); elsewhere it is room, and means nothing."""
    for number, (lengths, root) in enumerate(LENGTHS):
        size, dtype = len(lengths), torch.int64 if number == 6 else torch.float64 if number == 13 else torch.float32
        rows = (easy if number == 0 else drawn)(size, max(lengths), dtype)
        whole = [row[:length] for row, length in zip(rows, lengths)]
        room = [torch.tensor(whole_numbers(length, 900, 999), dtype=dtype) for length in lengths]
        given = [[(whole if filled(rank, each, root) else room)[each] for each in range(size)] for rank in range(size)]
        yield tuple((each,) for each in given), whole, root, f"shards of {', '.join(map(str, lengths))}"


def scatter_cases():
    for given, whole, root, says in _lists(lambda rank, shard, root: rank == root):
        yield Case(given, lambda given, whole=whole: whole, {"root": root}, says=says)


def gather_cases():
    for given, whole, root, says in _lists(lambda rank, shard, root: rank == shard):
        wanted = [whole if rank == root else None for rank in range(len(given))]
        yield Case(given, lambda given, wanted=wanted: wanted, {"root": root}, says=says)


def _through_the_root(case):
    """All bytes but those that the root keeps."""
    shards = case.given[case.options["root"]][0]
    return sum(each.nbytes for each in shards) - shards[case.options["root"]].nbytes


def _levels(collective, way):
    rounds = limits.rounds(lambda case: lower_bound(collective, case.size).rounds)
    bytes_ = limits.port_bytes(_through_the_root)
    return (
        Level("within the target", (rounds,)),
        Level("at the bound", (bytes_,), f"⌈lg p⌉ rounds, and what must go {way} the root goes once (Chan et al. 2007)."),
    )


SCATTER_HINTS = (
    "The root keeps the shards of its half of the ranks, and sends all those of the other half, in one message, to one rank "
    "there. Then each half goes on alone.",
    "A message is one tensor: `torch.cat` of the half's shards. The receiver knows all lengths, "
    "`[len(each) for each in shards]`, receives into a tensor as long as their sum, and cuts it with `split`.",
    "The loop is that of the tree broadcast: first, end, middle, partner. What is sent is shards[middle:end] if root < middle, "
    "else shards[first:middle].",
)
GATHER_HINTS = (
    "A gather is a scatter backwards: the same tree, walked from its leaves. Which rank sends first, and how much has it by "
    "then?",
    "Go through the halves as in the scatter, and only note (root, partner, which shards). Then walk the notes in the other "
    "order: the partner sends these shards, the root of that half receives them.",
    "for root, partner, begin, end in reversed(edges): if rank == partner, send torch.cat(shards[begin:end]) to root; if rank == "
    "root, receive as much, and copy the pieces into shards[begin:end].",
)


EXERCISES = {
    "collect": Program(collect_cases, COLLECT_HINTS, adds=False),
    "shares": Answer(shares_questions, SHARES_HINTS, (Level("at the bound"),)),
    "scatter_list": Program(scatter_cases, SCATTER_HINTS, _levels("scatter", "out of"), adds=False, keeps=False, live=2),
    "gather_list": Program(gather_cases, GATHER_HINTS, _levels("gather", "into"), adds=False, keeps=False, live=2),
}
