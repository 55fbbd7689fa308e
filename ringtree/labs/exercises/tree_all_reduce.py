"""Lab of chapter 11, "Tree all-reduce": up and down a tree, halving and doubling for any number of ranks, and two trees."""

from functools import partial

import torch

from ringtree.cost import Link
from ringtree.labs import limits
from ringtree.labs.comparing import is_whole
from ringtree.labs.exercise import Answer, Case, Level, Program, Question
from ringtree.labs.inputs import drawn, easy, sum_of_all
from ringtree.units import bytes_text, count_text

TITLE = "Tree all-reduce"
CHAPTER = 11


def _power_of_two(size):
    return size & (size - 1) == 0


# ---------------------------------------------------------------- up and down a tree


PARENTS = [
    [None, 0],
    [None, 0, 0],
    [None],
    [1, None],
    [None, 0, 1, 1],
    [2, 2, None, 2],
    [None, 0, 1, 2, 3],
    [3, 3, 0, None, 0, 1],
    [None, 0, 0, 1, 1, 2, 2],
    [4, 4, 1, 1, None, 7, 7, 4],
]


def given_tree_cases(trees=PARENTS):
    for number, parents in enumerate(trees):
        rows = easy(len(parents), 2) if number < 2 else drawn(len(parents), number)
        yield Case(tuple((row,) for row in rows), sum_of_all, {"parents": parents})
    for dtype, length in ((torch.int64, 3), (torch.float64, 3), (torch.float32, 0)):
        yield Case(tuple((row,) for row in drawn(4, length, dtype)), sum_of_all, {"parents": [1, None, 1, 2]})


def _along_the_tree(run):
    """Complains of a message between two ranks of which neither is above the other."""
    parents = run.case.options["parents"]
    for each in run.trace:
        if parents[each.src] != each.dst and parents[each.dst] != each.src:
            return f"the sum is right, but rank {each.src} sent to rank {each.dst}, and neither hangs below the other"
    return None


GIVEN_TREE_LEVELS = (
    Level(
        "at the bound",
        (limits.messages(lambda case: 2 * (case.size - 1)),),
        "2(p−1) messages: each rank but the root has to tell its part, and to hear the sum.",
    ),
)
GIVEN_TREE_HINTS = (
    "Which ranks hang below yours? The ranks whose entry in `parents` is your rank. A rank with none below it is a leaf.",
    "Up: hear from all below you, one after the other, and add; then tell your parent. The root, whose entry is None, has the "
    "sum now. What is left to do for the others, and in which order?",
    "`for other in below: dist.recv(got, other); total += got`. If there is a parent: `dist.send(total, parent)`, then "
    "`dist.recv(total, parent)`. Finally `dist.send(total, other)` to each rank below you.",
)


# ---------------------------------------------------------------- halving and doubling


def cases():
    sizes = [(1, 3), (4, 8), (4, 3), (5, 3), (6, 12), (7, 20), (8, 64), (4, 0)]
    for rows in [easy(2, 2), easy(3, 3), *(drawn(*each) for each in sizes)]:
        says = "fewer numbers than ranks" if 0 < len(rows[0]) < len(rows) else ""
        yield Case(tuple((row,) for row in rows), sum_of_all, says=says)
    for dtype in torch.int64, torch.float64:
        yield Case(tuple((row,) for row in drawn(4, 6, dtype)), sum_of_all)


def folded_rounds(case):
    """2⌊lg p⌋, and two more where ranks are left over: Thakur, Rabenseifner and Gropp 2005."""
    return 2 * (case.size.bit_length() - 1) + 2 * (not _power_of_two(case.size))


def folded_bytes(case):
    return (2 if _power_of_two(case.size) else 3) * case.nbytes


def fewest_bytes(case):
    """2(p−1) chunks, of the longest where p does not divide the vector: where it does, 2(p−1)/p·n."""
    numbers = case.given[0][0]
    return 2 * (case.size - 1) * -(-numbers.numel() // case.size) * numbers.element_size()


HALVING_LEVELS = (
    Level("within the target", (limits.rounds(folded_rounds), limits.port_bytes(folded_bytes))),
    Level(
        "at the bound",  # in as many rounds as the target allows: fewer there are not
        (limits.port_bytes(fewest_bytes),),
        "2(p−1)/p·n bytes, the bound of Patarasuk and Yuan (2009), in 2⌈lg p⌉ rounds for every p.",
    ),
)
HALVING_HINTS = (
    "First the powers of two. Partners at distance p/2, p/4, … 1 swap halves and add; then they go the same way back and swap "
    "what is finished. Keep a list of (partner, what I kept, what I gave away), and walk it backwards.",
    "Now the ranks beyond a power of two. Let each of them send its whole vector to a neighbor at the start, "
    "who adds it, works for both, and sends the result back at the end. That is within the target. (A message alone goes "
    "into a batch of one: NCCL's first batch waits for all ranks, and none may come to it late because of a plain send.)",
    "At the bound no rank works for two: Bruck's reduce-scatter (chapter 9) and then Bruck's all-gather (chapter 8). With "
    "`places = chunks[rank:] + chunks[:rank]`, for distance 4, 2, 1: send places[distance : 2·distance] to rank + distance, "
    "and add what comes from rank − distance to the first places. Then for 1, 2, 4 the same messages the other way, copied.",
)


# ---------------------------------------------------------------- the trees


def _not_trees(answer, size):
    """Return what keeps an answer from being the parents in two binary trees, in a sentence; or None."""
    if not isinstance(answer, list | tuple) or len(answer) != 2 or not all(isinstance(tree, list | tuple) for tree in answer):
        return "it should return two lists: for each tree, the parent of every rank"
    for name, tree in zip("AB", answer):
        if len(tree) != size:
            return f"tree {name} has {len(tree)} entries, and should have one for each rank: {size}"
        if tree[0] is not None:
            return f"in tree {name} rank 0 has the parent {tree[0]!r}: it is the root, and should have None"
        for rank in range(1, size):
            if not is_whole(tree[rank]) or not 0 <= tree[rank] < size:
                return f"in tree {name} rank {rank} has the parent {tree[rank]!r}: it should be a rank, 0 to {size - 1}"
        for rank in range(size):
            if len(below := _children(tree, rank)) > 2:
                return f"in tree {name} rank {rank} has {len(below)} children, and a binary tree has two at most"
            if _depth(tree, rank) is None:
                return f"in tree {name} the way up from rank {rank} never comes to rank 0"
    return None


def _children(tree, rank):
    return [child for child, parent in enumerate(tree) if parent == rank and child]


def _depth(tree, rank):
    for steps in range(len(tree)):
        if rank == 0:
            return steps
        rank = tree[rank]
    return None


def _busy_in_both(answer, size):
    for rank in range(1, size):
        if all(below := [_children(tree, rank) for tree in answer]):
            both = f"rank {rank} has children in both trees, {below[0]} and {below[1]}"
            return f"{both}: a rank that works in one should be a leaf in the other"
    return None


def _too_deep(answer, size):
    most = (size - 1).bit_length()
    for name, tree in zip("AB", answer):
        for rank in range(size):
            if (steps := _depth(tree, rank)) > most:
                return f"in tree {name} rank {rank} is {steps} steps from the root, where ⌈lg p⌉ = {most} are enough"
    return None


def questions(sizes=(2, 3, 4, 5, 1, 6, 7, 8, 9, 12, 13, 16, 31, 64)):
    for size in sizes:
        for level, wrong in enumerate((_not_trees, _busy_in_both, _too_deep)):
            yield Question((size,), partial(_what_is_wrong, wrong, size), count_text(size, "rank"), level)


def _what_is_wrong(wrong, size, answer):
    return _not_trees(answer, size) or wrong(answer, size)


TREES_HINTS = (
    "Take tree A first. A heap is the shortest way to write a binary tree: the children of r are 2r and 2r + 1. With root 0 "
    "and its one child 1, who is the parent of r?",
    "In that heap only the ranks up to (p − 1)/2 have children. So in tree B let the upper half have them: it is the same heap "
    "with the ranks counted from the other end.",
    "Tree A: rank // 2. Tree B: call rank r by the number p − r; its parent has the number (p − r) // 2, and that is rank "
    "p − (p − r) // 2, or the root 0 where the number is 0.",
)


# ---------------------------------------------------------------- two trees

LINK = Link.of(1e-6, bandwidth=5e9)
LARGE = 2**16
PARENTS = {  # by number of ranks: two trees in which no rank but 0 has children in both
    1: ([None], [None]),
    2: ([None, 0], [None, 0]),
    3: ([None, 0, 1], [None, 2, 0]),
    4: ([None, 0, 1, 1], [None, 3, 3, 0]),
    5: ([None, 0, 1, 1, 2], [None, 3, 4, 4, 0]),
    6: ([None, 0, 1, 1, 2, 2], [None, 4, 4, 5, 5, 0]),
    7: ([None, 0, 1, 1, 2, 2, 3], [None, 4, 5, 5, 6, 6, 0]),
    8: ([None, 0, 1, 1, 2, 2, 3, 3], [None, 5, 5, 6, 6, 7, 7, 0]),
}


def tree_cases():
    for size, length in [(2, 4), (3, 6), (4, 16), (5, 8), (1, 3), (4, 1), (6, 40), (8, 33), (4, 64)]:
        rows = easy(size, length) if size == 2 else drawn(size, length)
        yield Case(tuple((row, _trees(size)) for row in rows), sum_of_all)
    rows = drawn(7, LARGE)
    yield Case(tuple((row, _trees(7)) for row in rows), sum_of_all, machine=LINK, says="α 1 µs, 5 GB/s")


def _trees(size):
    """Lists of the rank's own: it may write on them."""
    return [list(tree) for tree in PARENTS[size]]


def along_its_edges(run):
    """Complains unless each half of the vector went up and down its own tree, and nothing went elsewhere."""
    _, parents = run.case.given[0]
    wanted = {}
    for half, tree in zip(run.case.given[0][0].tensor_split(2), parents):
        for child, parent in enumerate(tree):
            for way in [(child, parent), (parent, child)] if child else ():
                wanted[way] = wanted.get(way, 0) + half.nbytes
    sent = {}
    for each in run.trace:
        sent[each.src, each.dst] = sent.get((each.src, each.dst), 0) + each.nbytes
    for src, dst in sorted({*wanted, *sent}):
        has, should = sent.get((src, dst), 0), wanted.get((src, dst), 0)
        if has != should:
            asked = "no tree joins the two"
            if should:
                asked = f"should send {bytes_text(should)}: for each tree that joins the two, its half"
            return f"the sum is right, but rank {src} sent {bytes_text(has)} to rank {dst}, and {asked}"
    return None


FOR_LONG = "for 262 KB on 7 ranks"
TREE_LEVELS = (
    Level("within the target", (limits.seconds(FOR_LONG, 0.75, "mst_all_reduce", 4 * LARGE),)),
    Level(
        "at the bound",
        (limits.seconds(FOR_LONG, 1.1, "two_trees_all_reduce", 4 * LARGE, lambda case: {"chunks": 8}),),
        "Within a tenth of this book's two trees in 8 chunks, which follow Sanders, Speck and Träff (2009).",
    ),
)
TREE_HINTS = (
    "A rank can receive chunk k + 1 from a child while it sends chunk k to its parent, if both are in one batch_isend_irecv. "
    "A leaf sends chunk 0 in step 0. When has a rank of height 1 the chunk 0 of both children added, and when one of height h?",
    "Up is the way down with heights for depths: in step s a child of height h sends its parent chunk s − h. The number of "
    "steps is `count` plus the greatest height. Put the messages of both trees into the step's batch.",
    "A parent receives into a tensor of its own, `got = torch.empty_like(piece)`, and adds it to the piece when the batch is "
    "done. So keep the pairs (piece, got) of a step in a list, and add them up after `batch(operations)`.",
)


EXERCISES = {
    "tree_all_reduce": Program(given_tree_cases, GIVEN_TREE_HINTS, GIVEN_TREE_LEVELS, also=_along_the_tree),
    "halving_doubling": Program(cases, HALVING_HINTS, HALVING_LEVELS, live=2),
    "trees": Answer(questions, TREES_HINTS, (Level("within the target"), Level("at the bound"))),
    "two_trees": Program(tree_cases, TREE_HINTS, TREE_LEVELS, also=along_its_edges),
}
