"""Lab of chapter 6, "Reduce": up a given tree, a tree that keeps the order of the ranks, and a mean of long vectors."""

from functools import reduce

import torch

from ringtree.cost import Link
from ringtree.labs import limits
from ringtree.labs.exercise import Case, Level, Program
from ringtree.labs.exercises.broadcast import rounds_below
from ringtree.labs.inputs import drawn, easy, sample, whole_numbers
from ringtree.theory import lower_bound

TITLE = "Reduce"
CHAPTER = 6


def _at_root(root, value, size):
    """Return what is wanted: a value on the root, and no promise on the others."""
    return [value if rank == root else None for rank in range(size)]


# ---------------------------------------------------------------- up a given tree


def up_cases():
    yield _up(easy(2, 2))
    yield _up(easy(3, 2))
    for size, length in [(1, 2), (4, 3), (5, 1), (6, 4), (7, 2), (8, 3), (4, 0), (13, 2)]:
        yield _up(drawn(size, length, torch.float64 if size == 6 else torch.float32))


def _up(rows):
    def wanted(given):
        return _at_root(0, torch.stack([row for (row,) in given]).sum(0), len(given))

    return Case(tuple((row,) for row in rows), wanted)


def _along_the_tree(run):
    """Complains of a message that does not go from a rank to the one above it."""
    for each in run.trace:
        if each.dst != (each.src - 1) // 2:
            above = f"above it is rank {(each.src - 1) // 2}" if each.src else "nobody is above it"
            return f"the sum is right, but rank {each.src} sent to rank {each.dst}, and {above}"
    return None


UP_LEVELS = (
    Level(
        "at the bound",
        (
            limits.rounds(lambda case: rounds_below(0, case.size)),
            limits.messages(lambda case: case.size - 1),
        ),
        "In this tree no sum is complete sooner: each rank hears first from the one below it that is ready first.",
    ),
)
UP_HINTS = (
    "Two things happen on a rank, one after the other: it hears from those below it, and it tells the one above. What has to be "
    "in the tensor when it tells?",
    "What comes must not go where your own numbers are: `got = torch.empty_like(x)`, `dist.recv(got, below)`, `total += got`. "
    "Below rank r are 2r + 1 and 2r + 2, above it is (r − 1) // 2.",
    "Hear from 2r + 2 before 2r + 1: it never has more ranks below it, so it is ready first. And every rank but 0 ends with "
    "`dist.send(total, (rank - 1) // 2)`.",
)


# ---------------------------------------------------------------- in the order of the ranks


def then(first, second):
    """Do x → a·x + b of `first`, then that of `second`; a and b are rows 0 and 1. Its order matters, its brackets do not."""
    return torch.stack([first[0] * second[0], first[1] * second[0] + second[1]])


def product(left, right):
    """Of matrices."""
    return left @ right


def ordered_cases():
    for size, length, root in [
        (2, 1, 0),
        (2, 2, 1),
        (3, 1, 0),
        (1, 2, 0),
        (3, 2, 1),
        (4, 3, 0),
        (4, 2, 3),
        (5, 2, 2),
        (6, 1, 5),
        (7, 3, 4),
        (8, 2, 0),
        (8, 2, 5),
        (11, 1, 7),
        (4, 3, 1),
    ]:
        yield _ordered(_maps(size, length), root, then)
    for size, root in ((2, 1), (4, 2), (4, 2), (7, 6)):
        yield _ordered([torch.tensor(whole_numbers(4, -2, 2)).view(2, 2) for _ in range(size)], root, product)


def _maps(size, length):
    """For each of `size` ranks `length` maps x → a·x + b. In a column each leaves a number of its own as it is, so that no two commute."""
    slopes = torch.tensor(whole_numbers(size * length, 2, 4), dtype=torch.float64).view(size, length)
    kept = torch.tensor([sample(range(1, 2 * size + 1), size) for _ in range(length)], dtype=torch.float64).T
    return list(torch.stack([slopes, kept * (1 - slopes)], dim=1))


def _ordered(rows, root, combine):
    def wanted(given):
        return _at_root(root, reduce(combine, [row for (row,) in given]), len(given))

    return Case(tuple((row,) for row in rows), wanted, {"root": root, "combine": combine})


ORDERED_LEVELS = (
    Level(
        "at the bound",
        (
            limits.rounds(lambda case: lower_bound("reduce", case.size).rounds),
            limits.messages(lambda case: case.size - 1),
        ),
        "⌈lg p⌉ rounds: a partial sum merges with one other in each round, so it can at most double the ranks that it contains.",
    ),
)
ORDERED_HINTS = (
    "Brackets may be set as you like, so a tree is allowed. But what two ranks put together must stand side by side: a group of "
    "a tree has to be ranks first, first + 1, … without a gap.",
    "Take the tree of the broadcast in halves, and walk it from the leaves. The two halves of a step are neighbors. The one "
    "with the lower ranks is the left one, whichever of the two goes on.",
    "On the receiver: `mine = combine(mine, got) if partner > rank else combine(got, mine)`. Between halves a comparison of the "
    "two ranks says which half is the lower. Counting from the root instead would turn the order.",
)


# ---------------------------------------------------------------- long vectors

LINK = Link.of(10e-6, bandwidth=5e9)
LARGE = 2**17


def _mean(root):
    return lambda given: _at_root(root, torch.stack([row for (row,) in given]).mean(0), len(given))


def _case(rows, root, **more):
    return Case(tuple((row,) for row in rows), _mean(root), {"root": root}, machine=LINK, **more)


def long_cases():
    yield _case(easy(2, 2), 0)
    yield _case(easy(4, 4), 0)
    for size, length, root in [
        (1, 3, 0),
        (2, 5, 1),
        (4, 4, 0),
        (4, 9, 3),
        (4, 3, 1),
        (8, 20, 5),
        (8, 17, 2),
        (16, 13, 9),
        (4, 0, 1),
        (4, 9, 3),
    ]:
        yield _case(drawn(size, length), root)
    yield _case(drawn(4, 6, torch.float64), 1)
    for size, root in ((8, 0), (8, 3), (16, 0)):
        yield _case(drawn(size, LARGE), root, says=str(LINK))


LONG_LEVELS = (
    Level("within the target", (limits.seconds("on this link", 0.9, "mst_reduce", LARGE),)),
    Level(
        "at the bound",
        (limits.seconds("on this link", 1.02, "rabenseifner_reduce", LARGE),),
        "As fast as Rabenseifner's: 2 lg p rounds, and no port moves more than 2(p−1)/p·n.",
    ),
)
LONG_HINTS = (
    "In a tree the whole vector goes up, ⌈lg p⌉ times one after the other. Let every rank add up a part instead, and collect "
    "the finished parts at the root.",
    "Swap halves with the place p/2 away, `place ^ width` with width = p/2: keep one half, and add to it the half that you receive. Then swap "
    "quarters with the place p/4 away, and so on. After lg p swaps each place has one finished part.",
    "The way back is the same in the other order, for width = 1, 2, 4, …: of each pair, the place with `place & width` sends the "
    "`width` parts that it has and is done; the other receives those beside its own, and now has twice as many. Divide at the end.",
)


EXERCISES = {
    "add_up": Program(up_cases, UP_HINTS, UP_LEVELS, also=_along_the_tree),
    "ordered_reduce": Program(ordered_cases, ORDERED_HINTS, ORDERED_LEVELS, adds=False, live=2),
    "long_reduce": Program(long_cases, LONG_HINTS, LONG_LEVELS, live=2),
}
