"""Lab of chapter 20, "Data parallel": gradients averaged in buckets, during the backward pass, and over uneven batches."""

import functools
from fractions import Fraction

import torch

from ringtree.cost import Link
from ringtree.labs import limits
from ringtree.labs.exercise import Case, Level, Limit, Program
from ringtree.labs.harnesses import data_parallel as harnesses
from ringtree.labs.inputs import drawn, easy
from ringtree.simulated import Sketch, simulate
from ringtree.units import bytes_text, count_text, seconds_text

TITLE = "Data parallel"
CHAPTER = 20


def bytes_of_buckets(gradients, nbytes):
    """The bytes of each bucket: last tensors first, each bucket filled before the next is begun."""
    buckets, room = [], 0
    for each in reversed(gradients):
        if each.nbytes > room:
            buckets.append(0)
            room = nbytes
        buckets[-1] += each.nbytes
        room -= each.nbytes
    return buckets


def ring_bytes(tensors, size):
    """Through a port, where each tensor is all-reduced by a ring of its own: no way to put them together takes more."""
    return sum(2 * (each.numel() - each.numel() // size) * each.element_size() for each in tensors)


def too_large(run, tensors, nbytes):
    """Complains of an all-reduce that is larger than a bucket may be."""
    alone = [each.nbytes for each in tensors]
    for call in run.trace.calls:
        if call.nbytes > nbytes and call.nbytes not in alone:
            return f"{call.operation} was called for {bytes_text(call.nbytes)}, and a bucket has {bytes_text(nbytes)} at most"
    return None


# ---------------------------------------------------------------- buckets


SHAPES = [  # ranks, the gradients' shapes, numbers in a bucket
    (2, [(2,), (1,)], 2),
    (2, [(2,), (1,), (2,)], 3),
    (3, [(4,), (2, 2), (3,), (1,)], 5),
    (1, [(2,), (3, 2)], 6),
    (4, [(3, 4), (4,), (4, 4), (4,), (2, 4), (2,)], 20),
    (4, [(5,), (2, 20), (5,), (5,)], 10),  # one that is larger than a bucket
    (5, [(3,), (0,), (7,), (2, 3), (1,)], 8),  # one without numbers
    (8, [(4, 4), (4,)] * 6, 40),
    (3, [(6,), (6,), (6,)], 100),  # all in one
    (4, [(4, 2), (2,), (2, 2), (2,)], 6),
]


def gradients(size, shapes, dtype, numbers):
    """By rank, a gradient of each shape. Drawn numbers are multiples of `size`: their means are whole, whoever divides when."""
    lengths = [torch.Size(shape).numel() for shape in shapes]
    for row in numbers(size, sum(lengths), dtype):
        row = row * size if numbers is drawn else row
        yield [part.view(shape).clone() for part, shape in zip(row.split(lengths), shapes)]


def bucket_cases(sizes=SHAPES):
    for number, (size, shapes, count) in enumerate(sizes):
        dtype = torch.float64 if number in (3, len(SHAPES) - 1) else torch.float32
        given = gradients(size, shapes, dtype, easy if number == 0 else drawn)
        room = count * dtype.itemsize
        yield Case(tuple((each, room) for each in given), _means, says=f"buckets of {bytes_text(room)}")


def _means(given):
    return [[torch.stack(each).sum(0) / len(given) for each in zip(*(row for row, _ in given))]] * len(given)


def _cut_as_asked(run):
    """Complains of too large a bucket, and of buckets that begin with the first gradient."""
    gradients, nbytes = run.case.given[0]
    if wrong := too_large(run, gradients, nbytes):
        return wrong
    sizes = sorted(call.nbytes for call in run.trace.calls if call.rank == 0)
    from_the_last, from_the_first = (sorted(bytes_of_buckets(each, nbytes)) for each in (gradients, gradients[::-1]))
    if sizes == from_the_first != from_the_last:
        return (
            "the means are right, but the buckets begin with the first gradient: begin with the last, which a backward pass "
            "has first"
        )
    return None


BUCKET_LEVELS = (
    Level("within the target", (limits.port_bytes(lambda case: ring_bytes(case.given[0][0], case.size)),)),
    Level(
        "at the bound",
        (limits.rounds(lambda case: 2 * (case.size - 1) * len(bytes_of_buckets(*case.given[0]))),),
        "As few buckets as possible: each ends where the next gradient has no room, and a bucket that ends earlier leaves more for "
        "those after it.",
    ),
)
BUCKET_HINTS = (
    "Two steps: first say which gradients go together, then all-reduce each of these buckets as one vector. Write the first "
    "as a function of its own: you will need it again.",
    "Go through the gradients from the last to the first, with `room`, the bytes that are left in the bucket. Where a gradient "
    "has more than that, begin a new bucket. So one that is larger than any bucket stands alone.",
    "`flat = torch.cat([each.flatten() for each in bucket])` is a copy, which may be changed. After `dist.all_reduce(flat)` "
    "divide it by the number of ranks, and cut it again: `flat.split([each.numel() for each in bucket])`. Then `view_as`.",
)


# ---------------------------------------------------------------- while the backward pass goes on


LINK = Link.of(20e-6, bandwidth=100e6)
HIDES = 0.6, 1.01  # of a bucket's all-reduce, the backward pass of a layer: two, or one alone, hide the bucket before them


@functools.cache
def all_reduce_seconds(size, nbytes):
    """Of a ring all-reduce on the lab's link."""
    given = [Sketch(nbytes // 8, torch.float64)] * size
    return simulate(lambda x, dist: dist.all_reduce(x), given, LINK, trace=False).makespan


def fractions(size, length):
    """`length` numbers from −1 to 1 for each of `size` rows, drawn at random."""
    rows = drawn(size, length, torch.float64)
    most = max(row.abs().max() for row in rows)
    return [row / most for row in rows]


def overlap_case(size, count, width, parts, pairs=False):
    """`count` layers of one width; a bucket has room for two of them, or for one where they stand in pairs."""
    weights = [row.view(width, width) for row in fractions(count, width * width)]
    rows = [row.view(2 * parts, width) for row in fractions(size, 2 * parts * width)]
    nbytes = (1 if pairs else 2) * weights[0].nbytes + 8
    seconds = HIDES[count % 2] * all_reduce_seconds(size, 2 * weights[0].nbytes) if size > 1 else 1e-4
    given = tuple((weights, mine, parts, nbytes, seconds, pairs) for mine in rows)
    passes = "one backward pass" if parts == 1 else f"{parts} backward passes"
    told = f"{count_text(count, 'layer')}, {passes} a step"
    return Case(given, _trained, machine=LINK, says=f"{told}{', in pairs side by side' if pairs else ''}")


def overlap_cases():
    for size, count, width, parts in [(2, 2, 2, 1), (2, 3, 2, 2), (3, 5, 3, 1), (1, 3, 2, 2), (4, 5, 4, 2), (5, 4, 2, 2)]:
        yield overlap_case(size, count, width, parts)
    yield overlap_case(3, 4, 2, 1, pairs=True)
    yield overlap_case(8, 4, 4, 2)
    yield overlap_case(4, 6, 4, 2, pairs=True)


def _trained(given):
    weights, *_, pairs = given[0]
    return [harnesses.trained_alone(weights, torch.cat([rows for _, rows, *_ in given]), pairs)] * len(given)


class _Noting:
    """The ranks' `dist`, which notes what is all-reduced."""

    def __init__(self, dist):
        self._dist, self.reduced = dist, []

    def __getattr__(self, name):
        return getattr(self._dist, name)

    def all_reduce(self, tensor, *more, **named):
        self.reduced.append(tensor.detach().reshape(-1).clone())
        return self._dist.all_reduce(tensor, *more, **named)


def _other_buckets(run, rank, element):
    """Tells of the first all-reduce that was of one bucket on one rank and of another on another one."""
    size, noted = run.case.size, [[] for _ in run.case.given]

    def program(*given):
        dist = given[-1]
        noting = _Noting(dist)
        found = harnesses.overlapped(run.function, *given[:-1], noting)
        weights, rows, parts, _, _, pairs = given[:-1]
        own = harnesses.own_gradients(weights, rows, parts, dist.get_rank() % 2 == 1, pairs)
        of_a_step = noting.reduced[: len(noting.reduced) // harnesses.STEPS]
        noted[dist.get_rank()] = [_layers_in(flat, own, size) for flat in of_a_step]
        return found

    simulate(program, list(run.case.given), run.case.machine, trace=False, seconds=5.0, autograd=True)
    for number, of_ranks in enumerate(zip(*noted)):
        for other, layers in enumerate(of_ranks):
            if layers and of_ranks[0] and layers != of_ranks[0]:
                return (
                    f"rank 0's {_ordinal(number + 1)} all-reduce of a step was the bucket of {_named(of_ranks[0])}, and rank "
                    f"{other}'s that of {_named(layers)}: all ranks must send their buckets in one order"
                )
    return None


def _layers_in(flat, gradients, size):
    """The numbers of the layers whose gradients lie in a vector, also where they have been divided by the number of ranks."""
    windows = [(number, each.reshape(-1)) for number, each in enumerate(gradients) if each.numel() <= flat.numel()]
    return [number for number, each in windows if any(_lies_in(part, flat) for part in (each, each / size))]


def _lies_in(part, flat):
    return bool(torch.isclose(flat.unfold(0, part.numel(), 1), part.to(flat.dtype), rtol=1e-5, atol=1e-8).all(1).any())


def _named(layers):
    return f"layer{'s' if len(layers) > 1 else ''} {' and '.join(map(str, layers))}"


def _ordinal(number):
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number, 'th') }"


def _computing(case):
    """Seconds that a rank's backward passes take, in all steps."""
    weights, _, parts, _, seconds, _ = case.given[0]
    return harnesses.STEPS * parts * len(weights) * seconds


def _exposed(wanted):
    """wanted(seconds of the all-reduces of a step's buckets): how much of it nothing hides, in each step."""

    def most(case):
        weights, _, _, nbytes, _, pairs = case.given[0]
        if pairs:  # who computes in another order than the buckets' has to wait
            return None
        buckets = [all_reduce_seconds(case.size, each) for each in bytes_of_buckets(weights, nbytes)]
        return 1.001 * (_computing(case) + harnesses.STEPS * wanted(buckets))

    return Limit("from the first start to the last end", lambda run: run.makespan, most, seconds_text)


def _sent_and_computed(run):
    """Complains of too large a bucket, and of a rank that did not compute."""
    weights, _, _, nbytes, *_ = run.case.given[0]
    if wrong := too_large(run, weights, nbytes):
        return wrong
    for rank in range(run.case.size):
        if run.trace.time(rank, "compute") < 0.999 * _computing(run.case):
            return f"the backward passes of rank {rank} took no time: leave alone what the layers do there"
    return None


def _once(case):
    return harnesses.STEPS * ring_bytes(case.given[0][0], case.size)


OVERLAP_LEVELS = (
    Level("within the target", (limits.port_bytes(_once), _exposed(lambda buckets: (sum(buckets) + buckets[-1]) / 2))),
    Level(
        "at the bound",
        (_exposed(lambda buckets: buckets[-1]),),
        "Only the last bucket is exposed: it has the first layer's gradient, which is there when the backward pass is over.",
    ),
)
OVERLAP_HINTS = (
    "Cut the parameters into buckets, as before. For each bucket count how many gradients are still missing. A hook, "
    "`parameter.register_post_accumulate_grad_hook(filled)`, is called as filled(parameter) when a gradient has been added.",
    "The hook that brings a bucket's missing gradients to 0 starts `dist.all_reduce(flat, async_op=True)` and keeps the work. "
    "With `parts` backward passes each gradient comes `parts` times, and only the last counts. `finish` waits for each work, "
    "writes the means to the parameters' `grad`, and sets the counts back.",
    "The k-th all-reduce must be of the same bucket on every rank. So number the buckets, and let `sent` be how many you have "
    "started: `while sent < len(buckets) and missing[sent] == 0:` start bucket `sent`. A full bucket waits until those before "
    "it are full. Missing at first: parts · (number of parameters in the bucket).",
)


# ---------------------------------------------------------------- uneven batches


def uneven_cases():
    for counts in ([1, 3], [2, 1, 0], [3], [5, 1, 1, 1], [0, 4, 2, 3, 1], [1, 1, 1, 1, 1, 1, 1, 9], [2, 0, 3, 1]):
        yield uneven_case(counts)


def uneven_case(counts, width=3):
    weight = fractions(1, width * width)[0].float().view(width, width)
    rows = [row.float().view(-1, width) for row in fractions(len(counts), max(counts) * width)]
    given = tuple((weight, row[:count].clone()) for row, count in zip(rows, counts))
    return Case(given, _of_all_rows, says=f"with {', '.join(map(str, counts))} rows")


def _of_all_rows(given):
    net = harnesses.layers([given[0][0]])
    loss = harnesses.forward(net, torch.cat([rows for _, rows in given])).mean()
    loss.backward()
    return [{"gradient": net[0].weight.grad, "loss": loss.detach()}] * len(given)


def _beside_the_gradient(extra):
    """And beside the loss, which goes to the log."""
    loss, one = torch.empty(1), torch.empty(1, dtype=torch.float64)
    return lambda case: ring_bytes([case.given[0][0], loss] + extra * [one], case.size)


def _how_rows_count(run, rank, element):
    """Tells what part of the whole each rank's rows have in the gradient."""

    def parts(weight, rows, dist):
        each = torch.ones(len(rows), requires_grad=True)
        run.function(each * 1.0, dist).backward()
        return torch.zeros(len(rows)) if each.grad is None else each.grad / dist.get_world_size()

    found = simulate(parts, list(run.case.given), run.case.machine, trace=False, seconds=5.0, autograd=True).outputs
    fair = Fraction(1, sum(map(len, found)))
    shares = [sorted({Fraction(part).limit_denominator(1000) for part in each.tolist()}) for each in found]
    if all(each in ([], [fair]) for each in shares):
        return f"every row counts {fair} in the gradient, as it should, but what is returned is not the loss of these rows"
    said = ", ".join(f"{' or '.join(map(str, each))} on rank {rank}" for rank, each in enumerate(shares) if each)
    return f"a row counts {said}, and should count {fair} everywhere"


UNEVEN_LEVELS = (
    Level("within the target", (limits.port_bytes(_beside_the_gradient(4)),)),
    Level(
        "at the bound",
        (limits.port_bytes(_beside_the_gradient(1)),),
        "Beside the gradient and the loss it takes one number: no rank knows alone how many rows there are.",
    ),
)
UNEVEN_HINTS = (
    "Take two ranks, with 1 row and 3 rows. What must a row count in the whole, and what does it count if each rank takes "
    "the mean of its own and the ranks' gradients are averaged?",
    "Everybody's rows must count alike: 1 over the number of all rows. That number is the sum of the ranks' counts. And the "
    "gradients will be divided by the number of ranks afterwards, so undo that here.",
    "`count = torch.tensor([len(losses)], device=losses.device)`, `dist.all_reduce(count)`, then return `losses.sum() * size / "
    "count`. The sum of no losses is 0; their mean is nan, and then the total of all ranks is nan too.",
)


EXERCISES = {
    "fair_loss": Program(
        uneven_cases,
        UNEVEN_HINTS,
        UNEVEN_LEVELS,
        builtin=True,
        keeps=False,
        adds=False,
        tells=_how_rows_count,
        harness=harnesses.weighted,
    ),
    "average": Program(bucket_cases, BUCKET_HINTS, BUCKET_LEVELS, builtin=True, also=_cut_as_asked),
    "overlapped": Program(
        overlap_cases,
        OVERLAP_HINTS,
        OVERLAP_LEVELS,
        builtin=True,
        keeps=False,
        adds=False,
        also=_sent_and_computed,
        tells=_other_buckets,
        harness=harnesses.overlapped,
    ),
}
