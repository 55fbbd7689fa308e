"""Lab of chapter 6, "Reduce": a mean in one message, a tree that keeps the order of the ranks, and a reduce for long vectors."""

from functools import reduce

import torch

from ringtree.cost import Link
from ringtree.labs import limits
from ringtree.labs.exercise import Case, Level, Program
from ringtree.labs.inputs import drawn, easy, whole_numbers
from ringtree.theory import lower_bound

TITLE = "Reduce"
CHAPTER = 6


def _at_root(root, value, size):
    """What is wanted: a value on the root, and no promise on the others."""
    return [value if rank == root else None for rank in range(size)]


# ---------------------------------------------------------------- a mean of all samples


def mean_cases():
    for lengths, root, dtype in [
        ((1, 2), 0, torch.float32), ((2, 1), 1, torch.float32), ((1, 1, 1), 2, torch.float32), ((1, 2, 3, 4), 0, torch.float32),
        ((3, 0, 5, 1), 2, torch.float32), ((0, 0, 0, 4, 1), 1, torch.float64), ((7, 2, 2, 9, 1, 0, 3, 5), 6, torch.float32),
        ((2, 5, 1, 1), 3, torch.float64),
    ]:  # fmt: skip
        rows = [torch.tensor(whole_numbers(length, -99, 99), dtype=dtype) for length in lengths]
        says = "a rank without samples" if 0 in lengths else ""
        yield Case(tuple((row,) for row in rows), _mean_of_all(root), {"root": root}, says=says)


def _mean_of_all(root):
    return lambda given: _at_root(root, torch.cat([row for (row,) in given]).mean(), len(given))


MEAN_LEVELS = (
    Level(
        "at the bound",
        (limits.messages(lambda case: case.size - 1),),
        "p − 1 messages: every other rank must be heard once, and says all it knows at once.",
    ),
)
MEAN_HINTS = (
    "A mean is a sum over a count. Which of the two does `losses.mean()` throw away?",
    "Reduce the sum of the losses and their number, and divide on the root. Ranks without samples take part too: with what?",
    "Both in one tensor, and so in one message: `both = torch.stack([losses.sum(), losses.new_tensor(len(losses))])`, "
    "`dist.reduce(both, dst=root)`.",
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
        (2, 1, 0), (2, 2, 1), (3, 1, 0), (1, 2, 0), (3, 2, 1), (4, 3, 0), (4, 2, 3), (5, 2, 2), (6, 1, 5), (7, 3, 4), (8, 2, 0),
        (8, 2, 5), (11, 1, 7), (4, 3, 1),
    ]:  # fmt: skip
        maps = [torch.tensor(whole_numbers(2 * length, 2, 4), dtype=torch.float64).view(2, length) for _ in range(size)]
        yield _ordered(maps, root, then)
    for size, root in ((2, 1), (4, 2), (4, 2), (7, 6)):
        yield _ordered([torch.tensor(whole_numbers(4, -2, 2)).view(2, 2) for _ in range(size)], root, product)


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
        "⌈lg p⌉ rounds: a result that hears of one more group in each round can at most double what it knows.",
    ),
)
ORDERED_HINTS = (
    "Brackets may be set as you like, so a tree is allowed. But what two ranks put together must stand side by side: a group of "
    "a tree has to be ranks first, first + 1, … without a gap.",
    "Take the tree of the broadcast in halves, and walk it from the leaves. The two halves of a step are neighbours. The one "
    "with the lower ranks is the left one, whichever of the two goes on.",
    "On the receiver: `mine = combine(mine, got) if partner > rank else combine(got, mine)`. Between halves a comparison of the "
    "two ranks says which half is the lower. Counting from the root instead would turn the order.",
)


# ---------------------------------------------------------------- long vectors

LINK = Link.of(10e-6, bandwidth=5e9)
LARGE = 2**17


def _sum(root):
    return lambda given: _at_root(root, torch.stack([row for (row,) in given]).sum(0), len(given))


def _total(rows, root, **more):
    return Case(tuple((row,) for row in rows), _sum(root), {"root": root}, machine=LINK, **more)


def long_cases():
    yield _total(easy(2, 2), 0)
    yield _total(easy(3, 3), 0)
    for size, length, root in [
        (1, 3, 0), (2, 5, 1), (3, 7, 2), (4, 4, 0), (4, 9, 3), (5, 3, 1), (6, 13, 5), (7, 20, 4), (8, 17, 2), (4, 0, 1),
        (4, 9, 3),
    ]:  # fmt: skip
        yield _total(drawn(size, length), root)
    yield _total(drawn(4, 6, torch.int64), 2)
    yield _total(drawn(4, 6, torch.float64), 1)
    for size, root in ((8, 0), (8, 3), (16, 0)):
        yield _total(drawn(size, LARGE), root, says=str(LINK))


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
    "With p a power of two: swap halves with the rank p/2 away, keep one half and add what comes to it; then quarters with the "
    "rank p/4 away, and so on. After lg p steps each rank has one finished part.",
    "The way back is the same in the other order: of each pair, who is not on the root's side sends what it has and is done; the "
    "other now has twice as much. Where p is no power of two, the ranks beyond it first send all they have to one of the others.",
)


EXERCISES = {
    "mean_loss": Program(mean_cases, MEAN_HINTS, MEAN_LEVELS, builtin=True, adds=False),
    "ordered_reduce": Program(ordered_cases, ORDERED_HINTS, ORDERED_LEVELS, adds=False, live=2),
    "long_reduce": Program(long_cases, LONG_HINTS, LONG_LEVELS, live=2),
}
