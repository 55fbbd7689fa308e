"""Lab of chapter 5, "Broadcast": down a given tree, a tree of fewest rounds, and a chain with the best number of chunks."""

import math

import torch

from ringtree.cost import Link
from ringtree.labs import limits
from ringtree.labs.comparing import is_whole, kind
from ringtree.labs.exercise import Answer, Case, Level, Program, Question
from ringtree.labs.inputs import drawn, easy, whole_numbers
from ringtree.theory import lower_bound
from ringtree.units import binary_text, count_text

TITLE = "Broadcast"
CHAPTER = 5
SIZES = [  # ranks, numbers, root; the last is there twice, with other numbers
    (1, 2, 0),
    (2, 5, 1),
    (3, 7, 2),
    (4, 4, 0),
    (4, 6, 3),
    (5, 3, 4),
    (6, 1, 2),
    (7, 9, 5),
    (8, 8, 6),
    (4, 0, 1),
    (4, 6, 3),
]


def _case(rows, root, **more):
    return Case(tuple((row,) for row in rows), lambda given: [given[root][0]] * len(given), {"root": root}, **more)


def _of_its_own(run):
    """Complains where a rank returned what it was given, and not a tensor of its own."""
    for rank, answer in enumerate(run.outputs):
        given = run.kept[rank][0]
        if given.numel() and answer.untyped_storage().data_ptr() == given.untyped_storage().data_ptr():
            return f"the numbers are right, but rank {rank} returned its `x`: return a tensor of its own"
    return None


def _short_cases():
    yield _case(easy(2, 2), 0)
    yield _case(easy(3, 2), 0)
    for size, length, root in SIZES:
        yield _case(drawn(size, length), root)


# ---------------------------------------------------------------- down a given tree


def down_cases():
    yield _from_0(easy(2, 2))
    yield _from_0(easy(3, 2))
    for size, length in [(1, 2), (4, 3), (5, 1), (6, 4), (7, 2), (8, 3), (4, 0), (13, 2)]:
        yield _from_0(drawn(size, length, torch.float64 if size == 6 else torch.float32))


def _from_0(rows):
    return Case(tuple((row,) for row in rows), lambda given: [given[0][0]] * len(given))


def _along_the_tree(run):
    """Complains of a message that does not go from a rank to one of the two below it."""
    for each in run.trace:
        if each.src != (each.dst - 1) // 2:
            above = f"above it is rank {(each.dst - 1) // 2}" if each.dst else "nobody is above it"
            return f"the numbers are right, but rank {each.dst} heard from rank {each.src}, and {above}"
    return _of_its_own(run)


def rounds_below(rank, size):
    """Rounds until all below a rank have the tensor, if it serves the rank with more below it first."""
    left, right = 2 * rank + 1, 2 * rank + 2
    if left >= size:
        return 0
    return max(1 + rounds_below(left, size), 2 + rounds_below(right, size) if right < size else 0)


DOWN_LEVELS = (
    Level(
        "at the bound",
        (
            limits.rounds(lambda case: rounds_below(0, case.size)),
            limits.messages(lambda case: case.size - 1),
        ),
        "In this tree no rank can have it sooner: each rank passes on what it has at once, first to the rank with more ranks below it.",
    ),
)
DOWN_HINTS = (
    "Two things happen on a rank, one after the other: it gets the tensor, and it hands it on. Which rank does only the second, "
    "and which ranks do only the first?",
    "Rank r is one of the two below rank (r − 1) // 2. Below it are 2r + 1 and 2r + 2, if there are that many ranks.",
    "`if rank > 0: dist.recv(got, (rank - 1) // 2)`. Then a loop over the two below, `dist.send(got, below)` if `below < size`. "
    "Serve 2r + 1 first: it never has fewer ranks below it.",
)


# ---------------------------------------------------------------- a tree of fewest rounds


def _among(rows, members):
    def wanted(given):
        return [given[members[0] if rank in members else rank][0] for rank in range(len(given))]

    return Case(tuple((row,) for row in rows), wanted, {"members": members})


def tree_cases():
    yield _among(easy(2, 2), [0, 1])
    yield _among(easy(3, 2), [0, 1, 2])
    for length, size, members in [
        (2, 1, [0]),
        (5, 2, [1, 0]),
        (7, 3, [2, 0]),
        (4, 4, [0, 1, 2, 3]),
        (6, 4, [3, 1, 0, 2]),
        (2, 4, [2]),
        (3, 5, [4, 0, 3]),
        (1, 6, [2, 5, 1, 3, 4]),
        (9, 7, [5, 6, 0, 3, 1, 2]),
        (8, 8, [6, 7, 0, 1, 2, 3, 4, 5]),
        (0, 4, [1, 3, 2]),
        (6, 4, [3, 1, 0, 2]),
        (3, 13, [11, 12, *range(11)]),
        (2, 16, [5, *range(5), *range(6, 16)]),
    ]:
        yield _among(drawn(size, length), members)
    yield _among(drawn(4, 6, torch.int64), [2, 0, 1, 3])
    yield _among(drawn(4, 6, torch.float64), [1, 0, 3])


TREE_LEVELS = (
    Level(
        "at the bound",
        (
            limits.rounds(lambda case: lower_bound("broadcast", len(case.options["members"])).rounds),
            limits.messages(lambda case: len(case.options["members"]) - 1),
        ),
        "⌈lg p⌉ rounds for p members: the ranks that have it can at most double in each (Chan et al. 2007).",
    ),
)
TREE_HINTS = (
    "After the first round two members have it, then four, then eight. In each round every member that has it tells one that "
    "does not. Who tells whom, so that all agree without asking?",
    "Count places in the list: `place = members.index(rank)`. In the round of distance 1, 2, 4, … each place i that has the "
    "numbers sends to place i + distance, if there is such a place.",
    "`if place < distance and place + distance < len(members)`: send `got` to `members[place + distance]`. "
    "`elif distance <= place < 2 * distance`: receive it from `members[place - distance]`. A rank outside of the list does neither.",
)


# ---------------------------------------------------------------- how many chunks

LINK = Link.of(1e-6, bandwidth=5e9)
CARD = Link.of(5e-6, bandwidth=50e9)


def _chain_time(chunks, nbytes, ranks, link):
    """The chain's time in chapter 5."""
    return (ranks - 2 + chunks) * (link.alpha + nbytes / chunks * link.beta)


def chunks_questions():
    asked = [  # bytes, ranks, their link, the best number of chunks
        (2**20, 2, CARD, 1),
        (2**26, 32, CARD, 90),
        (8, 4, CARD, 1),
        (0, 4, CARD, 1),
        (2**20, 8, LINK, 35),
        (2**30, 3, CARD, 66),
        (100, 64, Link(1e-9, 1e-6), 100),
        (1000, 4, Link(0.0, 1e-9), 1000),
        (2**19, 8, LINK, 25),
    ]
    for question in asked:
        yield _question(*question, 1.1, 0)
    for nbytes, best in ((100_000, 1), (256_000, 2), (768_000, 3), (1_450_000, 3), (8_000_000, 8)):
        yield _question(nbytes, 4, CARD, best, 1 + 1e-9, 1)


def _question(nbytes, ranks, link, best, most, level):
    says = f"{binary_text(nbytes)} on {ranks} ranks, {link}"
    return Question((nbytes, ranks, link.alpha, link.beta), _too_slow(nbytes, ranks, link, best, most), says, level)


def _too_slow(nbytes, ranks, link, best, most):
    def wrong(answer):
        if not is_whole(answer):
            return f"it returned {kind(answer)} and should return a whole number of chunks."
        if answer < 1:
            return f"{answer} chunks are not possible: give 1 or more."
        if answer > max(1, nbytes):
            return f"{_count(answer)} are more chunks than bytes."
        least = _chain_time(best, nbytes, ranks, link)
        if _chain_time(answer, nbytes, ranks, link) > most * least:
            times = _chain_time(answer, nbytes, ranks, link) / least
            return f"with {_count(answer)} it takes {times:.4g} times as long as with {best}."
        return None

    return wrong


def _count(chunks):
    return count_text(chunks, "chunk") if chunks < 10**12 else "so many"


CHUNKS_HINTS = (
    "Write the time of the chain as a function of k: (p − 2 + k)(α + n/k·β). Multiply it out. Which part grows with k, "
    "which one falls?",
    "kα grows, (p − 2)·n/k·β falls. The sum is least where both are equal: k² = (p − 2)·nβ/α. But k is a whole number, at "
    "least 1, and a chunk has at least one byte.",
    "k* = sqrt((p − 2)·n·β/α), or n where α is 0 (and 1 where p is 2). Of the two whole numbers beside it take the one with "
    "the shorter time, which is not always the nearer one, and keep it between 1 and max(1, n).",
)


# ---------------------------------------------------------------- the chain

LARGE = 2**17


def chain_cases():
    """Long vectors of several lengths, one of them drawn afresh each time: no number of chunks is right for all."""
    for case in _short_cases():
        yield _case([row for (row,) in case.given], case.options["root"], machine=LINK)
    yield _case(drawn(4, 100, torch.int64), 2, machine=LINK)
    (between,), (size,) = whole_numbers(1, 2**16, 2**17), whole_numbers(1, 5, 7)
    for ranks, length, root in ((8, 2**15, 3), (size, between, 4), (8, 2**17, 6), (4, 2**17, 1)):
        yield _case(drawn(ranks, length), root, machine=LINK, says=str(LINK))


def best_chain(case):
    """By the rule of the exercise above."""
    best = math.isqrt(int((case.size - 2) * case.nbytes / LINK.half_size))
    beside = (max(1, best), best + 1)
    return {"chunks": min(beside, key=lambda chunks: _chain_time(chunks, case.nbytes, case.size, LINK))}


CHAIN_LEVELS = (
    Level("within the target", (limits.seconds("on this link", 0.8, "mst_broadcast", LARGE),)),
    Level(
        "at the bound",
        (limits.seconds("on this link", 1.02, "chain_broadcast", LARGE, best_chain),),
        "As fast as a chain can be on this link, where its chunks are neither too long nor too many.",
    ),
)
CHAIN_HINTS = (
    "The chain begins at the root and goes right, round the end, to the rank on the root's left, which sends to no other. While a "
    "rank sends on one chunk, the next should come in.",
    "In step s a rank receives chunk s from its left and sends chunk s − 1 to its right, both in one batch. k chunks take k + 1 "
    "such steps. The root receives nothing, and the rank on its left sends nothing.",
    "k = best_chunks(x.nbytes, size, 1e-6, 1 / 5e9), where size > 1; `parts = got.tensor_split(k)`. Leave out an empty batch.",
)


EXERCISES = {
    "hand_down": Program(down_cases, DOWN_HINTS, DOWN_LEVELS, also=_along_the_tree, adds=False),
    "tree_broadcast": Program(tree_cases, TREE_HINTS, TREE_LEVELS, also=_of_its_own, adds=False, live=2),
    "best_chunks": Answer(chunks_questions, CHUNKS_HINTS, (Level("at the bound"),)),
    "chain_broadcast": Program(chain_cases, CHAIN_HINTS, CHAIN_LEVELS, also=_of_its_own, adds=False, live=2),
}
