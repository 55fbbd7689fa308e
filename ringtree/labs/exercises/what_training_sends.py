"""Lab of chapter 17, "What training sends": a step's calls, the cut behind a log, buckets that leave little over, 16-bit sums."""

from collections import Counter
from dataclasses import dataclass

import torch

from ringtree.cost import Link
from ringtree.labs import limits
from ringtree.labs.comparing import is_whole, short
from ringtree.labs.exercise import Answer, Case, Level, Program, Question
from ringtree.labs.inputs import drawn, easy, whole_numbers
from ringtree.units import binary_text, count_text, seconds_text

TITLE = "What training sends"
CHAPTER = 17
BUCKET = 25 * 2**20  # bytes


@dataclass(frozen=True)
class Model:
    """A transformer. Each parameter, gradient and activation is a number of 2 bytes."""

    layers: int
    width: int
    parameters: int


@dataclass(frozen=True)
class Layout:
    """tensor × data ranks. A step of each tensor group goes through so many `microbatches` of `tokens`."""

    tensor: int
    data: int
    microbatches: int
    tokens: int


# ---------------------------------------------------------------- a step's calls

LLAMA, SMALL, WIDE = Model(80, 8192, 70 * 10**9), Model(12, 1024, 200 * 10**6), Model(32, 4096, 6_710_886_400)
STEPS = [  # a model, its layout, whether it serves; what a tensor group sends (calls, bytes each), and a data group (calls, all)
    (SMALL, Layout(2, 1, 1, 2048), False, (48, 4_194_304), (0, 0)),
    (SMALL, Layout(1, 2, 1, 2048), False, (0, 0), (16, 400_000_000)),
    (SMALL, Layout(2, 2, 1, 2048), False, (48, 4_194_304), (8, 200_000_000)),
    (LLAMA, Layout(8, 4, 1, 8192), False, (320, 134_217_728), (668, 17_500_000_000)),
    (LLAMA, Layout(8, 16, 4, 8192), False, (1280, 134_217_728), (668, 17_500_000_000)),
    (WIDE, Layout(4, 8, 2, 4096), False, (256, 33_554_432), (128, 3_355_443_200)),
    (LLAMA, Layout(8, 1, 1, 2048), True, (160, 33_554_432), (0, 0)),
    (LLAMA, Layout(8, 4, 1, 16), True, (160, 262_144), (0, 0)),
]


def step_questions():
    for model, layout, serving, tensor, data in STEPS:
        says = f"{'serving' if serving else 'training'}, {model}, {layout}"
        yield Question(
            (model, layout, serving),
            lambda answer, wanted=(tensor, data), layout=layout: _wrong_step(answer, wanted, layout),
            says,
        )


def _wrong_step(answer, wanted, layout):
    pairs = isinstance(answer, list | tuple) and len(answer) == 2 and all(isinstance(each, list | tuple) for each in answer)
    if not pairs or not all(len(each) == 2 and all(map(is_whole, each)) for each in answer):
        return f"returned {short(answer)}: return two pairs of whole numbers, such as ((48, 4194304), (16, 400000000))."
    for size, who, (calls, nbytes), (right_calls, right) in zip(
        (layout.tensor, layout.data), ("tensor", "data"), map(tuple, answer), wanted
    ):
        each = "each" if who == "tensor" else "in all"
        if calls != right_calls:
            return f"says {calls:,} calls by the {who} group of {count_text(size, 'rank')}, and there are {right_calls:,}."
        if nbytes != right:
            return f"says {nbytes:,} bytes {each} by the {who} group of {count_text(size, 'rank')}, and there are {right:,}."
    return None


STEP_HINTS = (
    "A group of one rank sends nothing: then the answer is (0, 0). The rest is arithmetic, with 2 bytes a number.",
    "A tensor group sums whole activations, tokens × width, twice a layer on the way forward and twice on the way back. A "
    "server only goes forward. Every microbatch does it again. How many of the parameters has one rank, and how often are "
    "gradients sent?",
    "Calls: (2 if serving else 4) · layers · microbatches, of tokens · width · 2 bytes. Gradients: parameters / tensor · 2 "
    "bytes, once a step, and `math.ceil(nbytes / (25 * 2**20))` buckets. A server has none.",
)


# ---------------------------------------------------------------- the cut behind a log

LOGS = [  # a model, its layout, bytes of a bucket, whether tensor groups are neighbors in number, the rank whose log it is
    (SMALL, Layout(2, 1, 1, 2048), BUCKET, True, 1),
    (SMALL, Layout(1, 2, 1, 2048), BUCKET, True, 0),
    (SMALL, Layout(2, 4, 1, 2048), BUCKET, True, 5),
    (WIDE, Layout(8, 1, 1, 3200), BUCKET, True, 3),
    (WIDE, Layout(1, 8, 2, 4096), BUCKET, True, 7),
    (WIDE, Layout(8, 2, 1, 256), BUCKET, True, 9),
    (WIDE, Layout(2, 8, 2, 16384), BUCKET, True, 4),
    (SMALL, Layout(4, 2, 1, 2048), 2**19, True, 6),
    (WIDE, Layout(4, 8, 1, 4096), BUCKET, False, 13),
    (WIDE, Layout(4, 4, 1, 4096), BUCKET, False, 2),
    (SMALL, Layout(8, 4, 3, 512), BUCKET, False, 30),
]


def log_of(model, layout, bucket=BUCKET, neighbors=True, rank=0) -> list:
    """The all-reduces of one rank in a training step, in order: (ranks of the group, bytes). neighbors: in a tensor group."""
    size = layout.tensor * layout.data
    here, step = (rank // layout.tensor, 1) if neighbors else (rank % layout.data, layout.data)
    first = here * layout.tensor if neighbors else here
    tensor = tuple(range(first, first + layout.tensor * step, step))
    place = tensor.index(rank)
    data = tuple(range(place, size, layout.tensor)) if neighbors else tuple(range(rank - here, rank - here + layout.data))
    sums = [(tensor, layout.tokens * model.width * 2)] * (2 * model.layers if layout.tensor > 1 else 0)
    whole, rest = divmod(2 * model.parameters // layout.tensor, bucket)
    gradients = [(data, nbytes) for nbytes in [bucket] * whole + [rest] * (rest > 0)] if layout.data > 1 else []
    calls = 2 * sums * (layout.microbatches - 1) + sums
    per_layer = -(-len(gradients) // model.layers)  # they leave during the last way back
    for layer in range(model.layers):
        calls += sums[:2] + gradients[layer * per_layer : (layer + 1) * per_layer]
    return calls + 2 * [(tuple(range(size)), 4)]  # the loss, and the norm of the gradient


def log_questions():
    for number, (model, *given) in enumerate(LOGS, 1):
        calls, layout = log_of(model, *given), given[0]
        says = f"log {number}, {count_text(len(calls), 'call')} of rank {given[-1]}"
        yield Question(
            (model, calls),
            lambda answer, layout=layout, calls=calls: _wrong_split(answer, layout, calls),
            says,
        )


def _wrong_split(answer, layout, calls):
    if not isinstance(answer, list | tuple) or len(answer) != 2 or not all(map(is_whole, answer)):
        return f"returned {short(answer)}: return two whole numbers, the ranks of a tensor group and of a data group."
    if tuple(answer) == (layout.tensor, layout.data):
        return None
    tensor, data = answer
    ranks = layout.tensor * layout.data
    if tensor * data != ranks:
        return (
            f"says tensor {tensor} × data {data}, and there are {count_text(ranks, 'rank')}: in the last calls all take part."
        )
    carried = Counter()
    for group, nbytes in calls[:-2]:
        carried[group] += nbytes
    sums = [f"{binary_text(nbytes)} among {count_text(len(group), 'rank')}" for group, nbytes in carried.items()]
    asked = "which of that is 2 bytes for each parameter of a rank?"
    return f"says tensor {tensor} × data {data}. The log has {' and '.join(sums)}: {asked}"


LOG_HINTS = (
    "The two calls at the end, of 4 bytes, are the loss and a norm: all ranks take part in them. So you know how many there are. "
    "Add up the bytes of the other calls, group by group: at most two groups remain.",
    "Sizes and numbers of calls tell little: a bucket may be larger or smaller than an activation, and groups may be numbered "
    "in any way. But you know what all gradients of a rank are together: 2 bytes for each parameter it has.",
    "If a group of d among p ranks is the data group, tensor groups have p / d ranks, a rank has parameters · d / p of the "
    "parameters, and the group's calls carry 2 bytes for each. If no group fits, data is 1.",
)


# ---------------------------------------------------------------- buckets


def left_over(gradients, counts, ranks, link) -> float:
    """Seconds between the end of the backward pass and that of the
    last all-reduce, where bucket i has the next `counts[i]` gradients.

    gradients: (bytes, the second at which it is there), in that order.
    A bucket starts when it is full and the one before it has gone. An
    all-reduce is a ring of so many `ranks` on `link`.
    """
    done = first = 0
    for count in counts:
        bucket = gradients[first : first + count]
        first += count
        nbytes = sum(size for size, _ in bucket)
        done = max(done, bucket[-1][1]) + 2 * (ranks - 1) * link.time(nbytes / ranks)
    return done - gradients[-1][1]


def backward(layers, seconds) -> list:
    """The gradients of a backward pass that takes `seconds`; layers: (bytes, work) of each tensor, the first layer first."""
    total, so_far, gradients = sum(work for _, work in layers), 0, []
    for nbytes, work in reversed(layers):
        so_far += work
        gradients.append((nbytes, seconds * so_far / total))
    return gradients


EVEN = [(2**20, 1)] * 4
CONVOLUTIONS = [each for width in (64, 128, 256, 512) for _ in range(8) for each in ((36 * width**2, 1), (4 * width, 0))]
NETWORK = [*CONVOLUTIONS, (8_192_000, 0.02)]
BLOCK = [(6 * 1024**2, 3), (2048, 0), (2 * 1024**2, 1), (8 * 1024**2, 4), (2048, 0), (8 * 1024**2, 4)]
TRANSFORMER = [(100_000_000, 0.5), *BLOCK * 16]
NEAR, FAR = Link.of(3e-6, bandwidth=200e9), Link.of(10e-6, bandwidth=25e9)
BUCKETS = [  # what it is; the gradients; ranks; the link; the least that can be left over
    ("4 even layers", backward(EVEN, 400e-6), 4, FAR, 0.0001858291),
    ("convolutions, a slow backward pass", backward(NETWORK, 30e-3), 16, FAR, 0.0003110592),
    ("convolutions, a quick one", backward(NETWORK, 7e-3), 16, FAR, 0.002259946),
    ("convolutions, a very quick one", backward(NETWORK, 1.5e-3), 16, FAR, 0.007284743),
    ("convolutions in a node", backward(NETWORK, 7e-3), 8, NEAR, 4.329024e-05),
    ("a transformer with its embedding", backward(TRANSFORMER, 60e-3), 64, FAR, 0.01097186),
    ("gradients that come all at once", [(2**16, 1e-3)] * 40, 8, FAR, 0.0003235008),
]


def bucket_questions():
    for level, within in enumerate((None, 1.25, 1.001)):
        for says, gradients, ranks, link, least in BUCKETS:
            most = within and within * least
            yield Question(
                (gradients, ranks, link),
                lambda answer, told=(gradients, ranks, link, most): _wrong_buckets(answer, *told),
                f"{says}, {count_text(len(gradients), 'gradient')} on {ranks} ranks, {link}",
                level,
            )


def _wrong_buckets(answer, gradients, ranks, link, most):
    if not isinstance(answer, list | tuple) or not all(map(is_whole, answer)):
        return f"returned {short(answer)}: return a list of whole numbers, how many gradients go into each bucket."
    if not all(count > 0 for count in answer) or sum(answer) != len(gradients):
        return f"returned {short(answer)}: give each bucket one gradient or more, {len(gradients)} in all."
    if most is not None and (left := left_over(gradients, answer, ranks, link)) > most:
        return (
            f"with {count_text(len(answer), 'bucket')} {seconds_text(left)} are left over, where {seconds_text(most)} will do."
        )
    return None


BUCKET_HINTS = (
    "Fill buckets up to a size in bytes, as DistributedDataParallel does, and try sizes by factors of two: `left_over` says "
    "which is best. That is within the target. A gradient larger than the size has a bucket of its own.",
    "At the bound buckets have different sizes. When gradients 0 to j − 1 have gone, what matters for the rest is only *when* "
    "that was. So keep, for every j, the earliest second at which they can have gone.",
    "best[0] = 0, and best[j] is the least, over the first gradient i of the last bucket, of max(best[i], the second at which "
    "gradient j − 1 is there) + the seconds of an all-reduce of gradients i to j − 1. Keep the i, and walk back from the end.",
)


# ---------------------------------------------------------------- 16 bits on the wire, 32 in the sum


def sum_cases():
    ones = [row.to(torch.bfloat16) for row in easy(2, 3)]
    yield _sum_case(ones)
    yield _sum_case([torch.full((2,), value, dtype=torch.bfloat16) for value in (256.0, 1.0, 1.0)], "256 + 1 + 1")
    for size, length in [(3, 5), (1, 3), (4, 7), (5, 12), (6, 4), (7, 3), (8, 64), (4, 0)]:
        yield _sum_case(_sixteen_bits(size, length, torch.bfloat16))
    yield _sum_case(_sixteen_bits(6, 13, torch.float16))
    yield _sum_case(_sixteen_bits(4, 7, torch.bfloat16))


def _sum_case(rows, says=""):
    return Case(tuple((row,) for row in rows), _rounded_once, says=says)


def _sixteen_bits(size, length, dtype):
    """Whole numbers that fill the digits of the dtype, some of them doubled a few times: a float32 holds their sums exactly."""
    digits, most = (255, 6) if dtype == torch.bfloat16 else (2047, 2)
    rows = []
    for row in drawn(size, length):
        times = torch.tensor(whole_numbers(length, 0, most), dtype=torch.float32)
        rows.append(((row % digits + 1) * 2**times).to(dtype))
    return rows


def _rounded_once(given):
    total = torch.stack([x for (x,) in given]).float().sum(0)
    return [total.to(given[0][0].dtype)] * len(given)


def _ring_of(width):
    """Bytes that a ring all-reduce moves through each port, its numbers in so many bytes."""
    return lambda case: 2 * (case.size - 1) * -(-case.given[0][0].numel() // case.size) * width


SUM_LEVELS = (
    Level("within the target", (limits.port_bytes(_ring_of(4)),)),
    Level(
        "at the bound",
        (limits.port_bytes(_ring_of(2)), limits.rounds(lambda case: 2 * (case.size - 1))),
        "2(p−1)/p·n bytes, the least there is (Patarasuk and Yuan 2009), at 16 bits a number.",
    ),
)
SUM_HINTS = (
    "Adding is what rounds, not sending: what a rank was given goes over in 16 bits without loss. So no rank should pass on a "
    "sum that is not yet complete.",
    "Let each rank be the one that adds a piece: it needs that piece of *every* other rank, as they were given. That is an "
    "all-to-all. Then it adds them up as float32, rounds once, and gives its piece to everybody.",
    "`pieces = x.tensor_split(size)`, `lengths = [len(piece) for piece in pieces]`. First `dist.all_to_all_single(came, x, "
    "[lengths[rank]] * size, lengths)`; `total = came.view(size, lengths[rank]).float().sum(0).to(x.dtype)`; then the same call "
    "with `total.repeat(size)`, and the two lists of lengths change places.",
)


GIVEN = Layout, Model, left_over, log_of
EXERCISES = {
    "sends": Answer(step_questions, STEP_HINTS),
    "split_of": Answer(log_questions, LOG_HINTS),
    "buckets": Answer(bucket_questions, BUCKET_HINTS, (Level("within the target"), Level("at the bound"))),
    "add_in_32": Program(sum_cases, SUM_HINTS, SUM_LEVELS, builtin=True),
}
