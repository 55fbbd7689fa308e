"""Lab of chapter 21, "Sharded": ZeRO-1 by hand, the norm of what nobody has whole, and the stage that sends least."""

import torch

from ringtree.labs import limits
from ringtree.labs.comparing import is_whole
from ringtree.labs.exercise import Answer, Case, Level, Limit, Program, Question
from ringtree.labs.harnesses import sharded as harnesses
from ringtree.labs.inputs import drawn, easy
from ringtree.units import bytes_text

TITLE = "Sharded"
CHAPTER = 21


# ---------------------------------------------------------------- the optimizer's state


WIDTHS = [  # ranks, the widths between the layers, dtype
    (2, (2, 1), torch.float64),
    (2, (3, 3, 1), torch.float64),
    (3, (2, 4, 3), torch.float64),
    (1, (3, 2), torch.float64),
    (4, (2, 2), torch.float32),
    (5, (3, 3, 2), torch.float64),  # 15 numbers, and five ranks
    (8, (2, 2, 1), torch.float64),  # fewer numbers than ranks
    (4, (5, 6, 5, 3), torch.float32),
    (4, (4, 7, 4), torch.float64),
]


def fractions(size, length, dtype):
    """`length` numbers from −1 to 1 for each of `size` rows, drawn at random."""
    rows = drawn(size, length, torch.float64)
    most = max([row.abs().max() for row in rows if len(row)], default=1)
    return [(row / most).to(dtype) for row in rows]


def zero1_case(size, widths, dtype, count=2):
    """`count` rows a rank, through layers of these widths."""
    sizes = list(zip(widths, widths[1:]))
    weights = [fractions(1, one * other, dtype)[0].view(other, one) for one, other in sizes]
    rows = [row.view(count, widths[0]) for row in fractions(size, count * widths[0], dtype)]
    says = "layers of " + ", ".join(f"{one} × {other}" for one, other in sizes)
    return Case(tuple((weights, mine) for mine in rows), _trained, says=says)


def zero1_cases():
    for each in WIDTHS:
        yield zero1_case(*each)


def _trained(given):
    weights = given[0][0]
    return [harnesses.trained_alone(weights, torch.cat([rows for _, rows in given]))] * len(given)


def numbers_of(case):
    """(of all weights, of the largest, bytes of one)."""
    counts = [each.numel() for each in case.given[0][0]]
    return sum(counts), max(counts), case.given[0][0][0].itemsize


def _state(most):
    """most(numbers of all weights, of the largest weight, ranks): how many of them a rank's optimizers may have."""

    def limit(case):
        count, largest, itemsize = numbers_of(case)
        return 2 * itemsize * most(count, largest, case.size)

    def kept(run):
        return max(each["state"] for each in run.outputs)

    return Limit("of optimizer's state on the rank with the most", kept, limit, bytes_text)


def _state_is_there(run):
    """Complains of an optimizer that was not used for all weights."""
    count, _, itemsize = numbers_of(run.case)
    kept = sum(each["state"] for each in run.outputs)
    if kept < 2 * itemsize * count:
        have, need = bytes_text(kept), bytes_text(2 * itemsize * count)
        together = f"the ranks' optimizers have {have} of state together, and the weights need {need}"
        return f"{together}: leave every update to `optimizer`"
    return None


def _whole_tensors(case):
    """An all-reduce, and each weight from its rank to all by a tree."""
    count, _, itemsize = numbers_of(case)
    around = 2 * sum(each.numel() - each.numel() // case.size for each in case.given[0][0])
    return harnesses.STEPS * itemsize * (around + (case.size - 1).bit_length() * count)


def _shards(case):
    """A reduce-scatter and an all-gather of one vector, padded so that the ranks divide it."""
    count, _, itemsize = numbers_of(case)
    return harnesses.STEPS * itemsize * 2 * -(-count // case.size) * (case.size - 1)


ZERO1_LEVELS = (
    Level(
        "within the target",
        (
            _state(lambda count, largest, size: -(-count // size) + largest if size > 1 else count),
            limits.port_bytes(_whole_tensors),
        ),
    ),
    Level(
        "at the bound",
        (_state(lambda count, largest, size: -(-count // size)), limits.port_bytes(_shards)),
        "Each number's state is on some rank, so one rank has at least ⌈n/p⌉ of them. And the bytes are those of an all-reduce: "
        "the parts of a sum go to the rank that updates it, and the updated number goes back to every other rank.",
    ),
)
ZERO1_HINTS = (
    "Think of one vector with all weights one after another, and of rank r as the owner of its r-th part. What does the owner "
    "need from the others, and what do they need from the owner?",
    "Pad the vector so that p divides its length. In `step`: the gradients into such a vector, `dist.reduce_scatter_single(mine, "
    "gradients)`, divide by p, put it into the shard's `grad`, `optimizer.step()`, `dist.all_gather_single(whole, shard)`, and "
    "write the parts of `whole` to the parameters, under `torch.no_grad()`.",
    "flat = torch.cat([each.detach().flatten() for each in parameters]); padded = torch.cat([flat, flat.new_zeros(-len(flat) % "
    "size)]); shard = padded.chunk(size)[rank].clone(); adam = optimizer([shard]). After the all-gather: for parameter, part in "
    "zip(parameters, whole[:len(flat)].split(lengths)): parameter.copy_(part.view_as(parameter)).",
)


# ---------------------------------------------------------------- the norm of all gradients


def clip_cases():
    for number, (size, length) in enumerate([(2, 2), (2, 3), (3, 4), (1, 5), (4, 1), (5, 3), (8, 6), (4, 7)]):
        dtype = torch.float64 if number % 2 else torch.float32
        yield clip_case(size, length, (0.5, 1.0, 2.0)[number % 3], dtype, first=number == 0)
    yield clip_case(3, 4, 0.5, torch.float64, empty=(1,))


def clip_case(size, length, part, dtype, first=False, empty=()):
    """most: so much of the norm of all. empty: ranks with a shard of no numbers."""
    rows = easy(size, length, dtype) if first else drawn(size, length, dtype)
    rows = [row[:0] if rank in empty else row for rank, row in enumerate(rows)]
    most = part * torch.cat(rows).double().norm().item()
    says = f"at most {most:.4g}" + (f", rank {empty[0]} with no numbers" if empty else "")
    return Case(tuple((row, most) for row in rows), _clipped, says=says)


def _clipped(given):
    most = given[0][1]
    norm = torch.cat([row for row, _ in given]).double().norm().item()
    factor = min(1.0, most / norm)
    return [(row.double() * factor).to(row.dtype) for row, _ in given]


def _around(count):
    """An all-reduce of so many numbers."""
    return lambda case: 2 * (count - count // case.size) * case.given[0][0].itemsize if case.size > 1 else 0


CLIP_LEVELS = (
    Level("within the target", (limits.port_bytes(_around(4)),)),
    Level(
        "at the bound",
        (limits.port_bytes(_around(1)),),
        "One number a rank, the sum of the squares of its shard: no rank knows another's.",
    ),
)
CLIP_HINTS = (
    "The norm is the root of the sum of all squares. A sum can be made in parts; a root of it cannot.",
    "Each rank adds up the squares of its shard; these p numbers are all-reduced; then comes the root, on every rank.",
    "squares = shard.square().sum().reshape(1); dist.all_reduce(squares); norm = squares.sqrt(); "
    "shard * (most / norm).clamp(max=1).",
)


# ---------------------------------------------------------------- which stage


def holds(stage, ranks, parameters, activations, parts):
    """Bytes on a rank, in mixed precision with Adam: 2, 2 and 12 a parameter, of
    which a stage divides some by `ranks`; and a part's activations.
    """
    each = sum(size / (ranks if stage >= since else 1) for size, since in ((2, 3), (2, 2), (12, 1)))
    return each * parameters + activations / parts


def sends(stage, parts):
    """Times (p−1)/p · n that a rank sends in a step of `parts` backward passes."""
    return (2, 2, 1 + parts, 3 * parts)[stage]


TASKS = [  # parameters, ranks, bytes of memory, bytes of activations of the whole batch on a rank, rows
    (1e9, 8, 80e9, 20e9, 8),  # all of it fits
    (7e9, 8, 80e9, 30e9, 16),  # ZeRO-1 at once
    (7e9, 8, 80e9, 90e9, 16),  # ZeRO-1 in four parts sends less than anything that takes them in two
    (7e9, 64, 32e9, 60e9, 16),  # ZeRO-2 in four parts sends less than ZeRO-3 in two
    (13e9, 8, 80e9, 10e9, 1),  # one row is one part
    (13e9, 16, 64e9, 40e9, 6),  # ZeRO-3 at once sends what ZeRO-2 in two parts does
    (70e9, 64, 80e9, 100e9, 8),  # only ZeRO-3, and not at once
    (70e9, 64, 60e9, 100e9, 9),  # parts that divide nine
    (70e9, 8, 80e9, 10e9, 8),  # nothing fits
]


def best(task):
    """(stage, parts) that fits and sends least; of several the one with the fewest parts, then the lowest stage; None if none."""
    parameters, ranks, memory, activations, rows = task
    found = [
        (sends(stage, parts), parts, stage)
        for stage in range(4)
        for parts in range(1, rows + 1)
        if rows % parts == 0 and holds(stage, ranks, parameters, activations, parts) <= memory
    ]
    return min(found)[2:0:-1] if found else None


def plan_questions(tasks=TASKS):
    for task in tasks:
        parameters, ranks, memory, activations, rows = task
        says = (
            f"{parameters / 1e9:g} billion parameters on {ranks} ranks of {bytes_text(memory)}, activations of "
            f"{bytes_text(activations)}, {rows} {'row' if rows == 1 else 'rows'}"
        )
        yield Question(task, lambda answer, task=task: _plan(answer, *task), says)


def _plan(answer, parameters, ranks, memory, activations, rows):
    wanted = best((parameters, ranks, memory, activations, rows))
    if answer is None or wanted is None:
        if answer == wanted:
            return None
        nothing = f"returned {answer!r}, and nothing fits: return None."
        return "says that nothing fits, and something does." if answer is None else nothing
    if not isinstance(answer, tuple | list) or len(answer) != 2 or not all(map(is_whole, answer)):
        return f"returned {answer!r}: return (stage, parts), two whole numbers, or None."
    stage, parts = answer
    if stage not in range(4):
        return f"returned stage {stage}: give 0 for data parallel, 1, 2 or 3 for ZeRO."
    if parts < 1 or rows % parts:
        return f"cuts {rows} rows into {parts} equal parts: give a number that divides them."
    if (needs := holds(stage, ranks, parameters, activations, parts)) > memory:
        return f"returned {answer!r}, which needs {bytes_text(needs)} and there are {bytes_text(memory)}."
    if tuple(answer) == wanted:
        return None
    ours, theirs = sends(*wanted), sends(*answer)
    if theirs > ours:
        return f"returned {answer!r}, which sends {theirs} · (p−1)/p · n; another that fits sends {ours}."
    if parts > wanted[1]:
        return f"returned {answer!r}, which sends no more than another that fits with {wanted[1]} parts."
    return f"returned {answer!r}, and a lower stage fits too and sends no more."


PLAN_HINTS = (
    "Try everything: four stages, and every number of parts that divides the rows. Leave out what does not fit.",
    "Of what is left take the least that is sent. In stages 0 and 1 whole gradients are added up in place and sent once; in "
    "stage 2 each part's are reduced, and parameters gathered once; in stage 3 each part gathers twice and reduces once.",
    "min((sends, parts, stage) for …): tuples are compared from the front, so of equal sends the fewest parts come first.",
)


EXERCISES = {
    "clip": Program(clip_cases, CLIP_HINTS, CLIP_LEVELS, builtin=True, adds=False),
    "zero1": Program(
        zero1_cases,
        ZERO1_HINTS,
        ZERO1_LEVELS,
        builtin=True,
        keeps=False,
        adds=False,
        also=_state_is_there,
        harness=harnesses.trained,
    ),
    "plan": Answer(plan_questions, PLAN_HINTS),
}
