"""Lab of chapter 22, "Tensor parallel": a matrix cut by columns, a feed-forward, also by positions, and a shared vocabulary."""

import torch

from ringtree.labs import limits
from ringtree.labs.exercise import Case, Level, Program
from ringtree.labs.harnesses import tensor_parallel as harnesses
from ringtree.labs.inputs import drawn, whole_numbers
from ringtree.units import count_text

TITLE = "Tensor parallel"
CHAPTER = 22


def fractions(*shape, dtype=torch.float64):
    """Numbers from −1 to 1 of this shape, drawn at random: no two alike, and none so small that nobody would miss it."""
    numbers = drawn(1, torch.Size(shape).numel(), torch.float64)[0]
    sizes = 0.1 + 0.9 * numbers.abs() / numbers.abs().max().clamp(min=1)
    return torch.where(numbers < 0, -sizes, sizes).view(shape).to(dtype)


def ring_bytes(count, size, itemsize):
    """Through a port, in a ring all-reduce of `count` numbers."""
    return 2 * (count - count // size) * itemsize


def ends_of(positions, width, dtype):
    """Return what the loss multiplies results by: so small that sums of gradients keep their digits, in 32 bits too."""
    return fractions(positions, width, dtype=dtype) / 16


def matrices(size, width, hidden, dtype):
    """By rank: up, its bias, and down."""
    for _ in range(size):
        yield fractions(hidden, width, dtype=dtype), fractions(hidden, dtype=dtype), fractions(width, hidden, dtype=dtype)


# ---------------------------------------------------------------- a matrix cut by columns


CUTS = [  # positions, numbers that come out, numbers that go in by rank
    (1, 2, [1, 1]),
    (2, 3, [1, 2, 1]),
    (2, 2, [3]),
    (3, 4, [2, 2, 2, 2]),
    (2, 1, [3, 1, 2, 4, 1]),
    (4, 2, [2, 1, 2, 1, 2, 1, 2, 1]),
    (3, 3, [2, 1, 1]),
    (2, 5, [3, 1, 2, 2]),
]


def linear_cases(cuts=CUTS):
    for positions, out, widths in cuts:
        dtype = torch.float64 if len(widths) == 5 else torch.float32
        bias = fractions(out, dtype=dtype)
        given = [(fractions(positions, width, dtype=dtype), fractions(out, width, dtype=dtype), bias) for width in widths]
        holds = f"{', '.join(map(str, widths))} numbers of {count_text(positions, 'position')}"
        yield Case(tuple(given), _linear_alone, holds=holds)


def _linear_alone(given):
    x, weight = (torch.cat([each[i] for each in given], 1) for i in (0, 1))
    return [torch.nn.functional.linear(x, weight, given[0][2])] * len(given)


def _one_result(case):
    x, weight, _ = case.given[0]
    return ring_bytes(len(x) * len(weight), case.size, x.element_size())


LINEAR_LEVELS = (
    Level(
        "at the bound",
        (limits.rounds(lambda case: 2 * (case.size - 1)), limits.port_bytes(_one_result)),
        "One all-reduce of the result: each rank has a part of every number in it.",
    ),
)
LINEAR_HINTS = (
    "One number of the result is a sum over all hidden numbers, `Σ x[i] · weight[j, i] + bias[j]`. Which terms of this sum can your "
    "rank compute? Which terms are on all ranks?",
    "`F.linear(x, weight)` is your part of the result, in its full shape. What is left is one sum over the ranks.",
    "Add the bias *after* the all-reduce: added before, it is in the sum as many times as there are ranks.",
)


# ---------------------------------------------------------------- columns, then rows


SHAPES = [  # ranks, positions, width, hidden numbers of a rank
    (2, 1, 2, 1),
    (3, 2, 3, 2),
    (1, 2, 2, 3),
    (4, 3, 4, 2),
    (5, 2, 3, 1),
    (8, 4, 2, 2),
    (3, 5, 1, 2),
    (4, 4, 4, 3),
]


def whole_cases(shapes=SHAPES):
    for size, positions, width, hidden in shapes:
        dtype = torch.float64 if size % 2 else torch.float32
        x, bias = fractions(positions, width, dtype=dtype), fractions(width, dtype=dtype)
        ends = ends_of(positions, width, dtype)
        given = tuple((x, *mine, bias, ends) for mine in matrices(size, width, hidden, dtype))
        yield Case(given, harnesses.alone, holds=held(positions, width, hidden))


def held(positions, width, hidden):
    return f"{count_text(positions, 'position')} of {count_text(width, 'number')}, {count_text(hidden, 'hidden number')} a rank"


def _two_sums(times):
    """Two all-reduces of the result, by a ring, times so many."""

    def most(case):
        ends = case.given[0][-1]
        return times * 2 * ring_bytes(ends.numel(), case.size, ends.element_size())

    return most


WHOLE_LEVELS = (
    Level("within the target", (limits.port_bytes(_two_sums(2)),)),
    Level(
        "at the bound",
        (limits.port_bytes(_two_sums(1)), limits.rounds(lambda case: 4 * (case.size - 1))),
        "Every number of the result has a part on every rank, and so has every number of x's gradient: two all-reduces, and "
        "none takes less through a port than 2(p−1)/p of what it sums.",
    ),
)
WHOLE_HINTS = (
    "Forward: columns, GELU, rows, all without any message between the ranks. Each rank then has a part of every sum. The bias of "
    "down must be added once, not p times. Then ask for each of the five inputs: what does its gradient need from other ranks?",
    "Two `torch.autograd.Function`s. One returns x as it is, and all-reduces the gradient: put it before the "
    "first product. The other "
    "all-reduces, and returns the gradient as it is: put it after the second. Each needs `dist`: keep it as `ctx.dist`.",
    "`forward(ctx, x, dist)` of the second: `total = x.clone(); dist.all_reduce(total); return total`. In the "
    "`backward` of the first the "
    "same with `gradient.contiguous()`. A backward returns one value for each argument of forward: `return total, None`. All in "
    "all: `leave(linear(gelu(linear(enter(x), up, up_bias)), down)) + bias`.",
)


# ---------------------------------------------------------------- by positions


def positions_cases(shapes=SHAPES):
    for size, positions, width, hidden in shapes:
        dtype, width = torch.float64 if size % 2 else torch.float32, width + 1  # a norm of one number is 0
        scale, shift, bias = (fractions(width, dtype=dtype) for _ in range(3))
        apart = 2 * torch.arange(width, dtype=dtype)  # a norm of numbers that are nearly alike has few right digits
        given = tuple(
            (fractions(positions, width, dtype=dtype) + apart, scale, shift, *mine, bias, ends_of(positions, width, dtype))
            for mine in matrices(size, width, hidden, dtype)
        )
        yield Case(
            given, harnesses.positions_alone, holds=f"{held(positions, width, hidden)}; of the positions each has its own"
        )


def _four_halves(times):
    """Two all-gathers and two reduce-scatters of all positions, times so many, and an all-reduce of what all ranks have alike."""

    def most(case):
        ends = case.given[0][-1]
        norms = ring_bytes(3 * ends.shape[1], case.size, ends.element_size())
        return times * (4 * (case.size - 1) * ends.nbytes + norms)

    return most


POSITIONS_LEVELS = (
    Level("within the target", (limits.port_bytes(_four_halves(2)),)),
    Level(
        "at the bound",
        (limits.port_bytes(_four_halves(1)), limits.rounds(lambda case: 6 * (case.size - 1))),
        "Each rank needs the other ranks' positions, and gets p−1 parts of each of its own; the same on the way back. Three "
        "gradients are sums over all positions, and one all-reduce has room for them.",
    ),
)
POSITIONS_HINTS = (
    "Take your answer to the first exercise. The norm needs its own positions alone. Before the first product all positions are "
    "wanted: an all-gather; after the second each rank wants the sums of its own: a reduce-scatter. What is the way back of "
    "each? And which three gradients does a rank have from its own positions only?",
    "The way back of an all-gather is a reduce-scatter, and the other way round: a gathered position was used on all ranks. The "
    "gradients of scale, shift and bias are parts of sums. The function that returns its input as it is and all-reduces "
    "the gradient is the right one for them, too.",
    "`everything = x.new_empty(size * len(x), x.shape[1]); dist.all_gather_single(everything, x.contiguous())`, and "
    "`mine = x.new_empty(len(x) // size, x.shape[1]); dist.reduce_scatter_single(mine, x.contiguous())`. For one "
    "all-reduce instead of "
    "three: `scale, shift, bias = enter(torch.cat([scale, shift, bias])).chunk(3)`.",
)


# ---------------------------------------------------------------- a shared vocabulary


SYMBOLS = [[1, 1], [2, 3, 1], [4], [3, 3, 2, 2], [1, 2, 1, 3, 2], [2, 2, 2, 2, 1, 1, 1, 1], [5, 5, 5], [3, 4, 3, 4]]


def loss_cases(counts=SYMBOLS):
    for number, symbols in enumerate(counts):
        yield loss_case(symbols, tokens=1 if number == 0 else 3 + number, steep=number in (1, 7))


def loss_case(symbols, tokens, steep=False):
    """symbols: how many each rank has. steep: scores so large that e to their power is no number any more."""
    dtype = torch.float64 if len(symbols) % 2 else torch.float32
    targets = torch.tensor(whole_numbers(tokens, 0, sum(symbols) - 1))
    firsts = [sum(symbols[:rank]) for rank in range(len(symbols))]
    factor = 2000 if steep else 3
    given = tuple((factor * fractions(tokens, count, dtype=dtype), first, targets) for count, first in zip(symbols, firsts))
    says = f"{', '.join(map(str, symbols))} symbols{', scores of 1000 and more' if steep else ''}"
    return Case(given, harnesses.scored_alone, holds=count_text(tokens, "token"), says=says)


def _three_numbers(case):
    """All-reduces of three numbers a token, by rings, and a little for lengths that do not divide."""
    scores, _, targets = case.given[0]
    itemsize = scores.element_size()
    return ring_bytes(3 * len(targets), case.size, itemsize) + 6 * itemsize


LOSS_LEVELS = (
    Level(
        "within the target",
        (limits.port_bytes(_three_numbers),),
        "Three numbers a token that no rank has alone: the largest score, the sum of the powers, and the target's score.",
    ),
)
LOSS_HINTS = (
    "The loss of a token is log Σ exp(score) − its target's score. The sum runs over all ranks' symbols, and the "
    "target's score is on "
    "one of them. Large scores have no exp: take the largest of all away first, which changes nothing.",
    "`largest = scores.detach().amax(1)`, all-reduced with `dist.ReduceOp.MAX`, needs no gradient. The other two "
    "are sums over ranks: "
    "Σ exp(score − largest), and the target's score, which is 0 where another rank has that symbol. For them use "
    "the function that "
    "all-reduces and returns the gradient as it is.",
    "`place = targets - first`, `mine = (place >= 0) & (place < scores.shape[1])`; then "
    "`scores.gather(1, place.clamp(0, scores.shape[1] - 1)[:, None])[:, 0] * mine`. With `powers, target = "
    "leave(torch.stack([powers, target]))` the loss is `(powers.log() + largest - target).mean()`.",
)


EXERCISES = {
    "linear": Program(linear_cases, LINEAR_HINTS, LINEAR_LEVELS, builtin=True, adds=False),
    "feed_forward": Program(
        whole_cases, WHOLE_HINTS, WHOLE_LEVELS, builtin=True, keeps=False, adds=False, harness=harnesses.whole
    ),
    "by_positions": Program(
        positions_cases,
        POSITIONS_HINTS,
        POSITIONS_LEVELS,
        builtin=True,
        keeps=False,
        adds=False,
        harness=harnesses.by_positions,
    ),
    "loss_of": Program(loss_cases, LOSS_HINTS, LOSS_LEVELS, builtin=True, keeps=False, adds=False, harness=harnesses.scored),
}
