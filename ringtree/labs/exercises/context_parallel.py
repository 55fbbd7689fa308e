"""Lab of chapter 26, "Context parallel": two blocks as one, an even cut, a mask for packed documents, gradients that come home."""

import torch

from ringtree.labs import limits
from ringtree.labs.comparing import is_whole, short
from ringtree.labs.exercise import Answer, Case, Level, Program, Question
from ringtree.labs.harnesses import context_parallel as harnesses
from ringtree.labs.inputs import drawn
from ringtree.units import count_text

TITLE = "Context parallel"
CHAPTER = 26


def fractions(*shape, dtype=torch.float64):
    """Numbers from −1 to 1 of this shape, drawn at random: no two alike, and none so small that nobody would miss it."""
    numbers = drawn(1, torch.Size(shape).numel(), torch.float64)[0]
    sizes = 0.1 + 0.9 * numbers.abs() / numbers.abs().max().clamp(min=1)
    return torch.where(numbers < 0, -sizes, sizes).view(shape).to(dtype)


def wrong_tensor(answer, wanted, what):
    """What is wrong with a tensor that should be `wanted`, or None."""
    if not isinstance(answer, torch.Tensor):
        return f"{what} is {short(answer)}: return a tensor."
    if answer.shape != wanted.shape:
        return f"{what} has the shape {tuple(answer.shape)}: it should be {tuple(wanted.shape)}."
    if answer.dtype != wanted.dtype:
        return f"{what} has the dtype {answer.dtype}: it should be {wanted.dtype}."
    if torch.allclose(answer, wanted, rtol=1e-9, atol=1e-9):
        return None
    place = tuple((~torch.isclose(answer, wanted, rtol=1e-9, atol=1e-9)).nonzero()[0].tolist())
    return f"{what} has {answer[place].item():.6g} at {list(place)}, where {wanted[place].item():.6g} is right."


# ---------------------------------------------------------------- two blocks as one


MERGES = [  # queries, keys of the first block and of the second, added to all scores of the first and of the second
    (1, 1, 1, 0, 0, "one query, one key in each block"),
    (3, 2, 4, 0, 0, "three queries"),
    (2, 3, 2, 0, 5, "higher scores in the second block"),
    (2, 3, 2, 5, 0, "higher scores in the first block"),
    (3, 2, 2, 900, 1000, "scores of about 1000"),
    (3, 2, 2, -1000, -1010, "scores of about −1000"),
    (2, 0, 3, 0, 0, "nothing seen in the first block"),
    (2, 3, 0, 0, 0, "nothing seen in the second block"),
]


def merge_questions(merges=MERGES):
    dice = torch.Generator().manual_seed(len(merges))

    def numbers(*shape):
        return 2 * torch.rand(shape, generator=dice, dtype=torch.float64) - 1

    for queries, first, second, low, high, says in merges:
        blocks = [
            (3 * numbers(queries, keys) + shift, numbers(keys, 2)) if keys else None
            for keys, shift in ((first, low), (second, high))
        ]
        one, other = (_seen([block] if block else [], queries) for block in blocks)
        wanted = _seen([block for block in blocks if block], queries)
        yield Question((one, other), lambda answer, wanted=wanted: _wrong_merge(answer, wanted), says)


def _seen(blocks, queries):
    """What queries have seen of these blocks: a result and a norm."""
    if not blocks:
        return torch.zeros(queries, 2, dtype=torch.float64), torch.full((queries,), -torch.inf, dtype=torch.float64)
    scores, values = torch.cat([scores for scores, _ in blocks], 1), torch.cat([values for _, values in blocks])
    return scores.softmax(1) @ values, scores.logsumexp(1)


def _wrong_merge(answer, wanted):
    if not isinstance(answer, list | tuple) or len(answer) != 2:
        return f"returned {short(answer)}: return two things, a result and a norm."
    names = "its result", "its norm"
    return next(filter(None, map(wrong_tensor, answer, wanted, names)), None)


MERGE_HINTS = (
    "A block's result was divided by the sum of *its* weights. To put two results together, each must count by that sum. "
    "The norm is the sum's logarithm. What is the norm of both blocks together?",
    "The sums add up, so the norm of both is log(e^a + e^b), which `torch.logaddexp(a, b)` computes without overflow. The first "
    "result then counts e^(a − norm), and the second e^(b − norm).",
    "`norm = torch.logaddexp(one[1], other[1])`, and the result is `one[0] * (one[1] - norm).exp()[:, None]` plus the "
    "same of `other`.",
)


# ---------------------------------------------------------------- an even cut


CUTS = [(1, 4), (2, 4), (2, 8), (3, 12), (4, 16), (4, 64), (5, 10), (8, 64), (6, 120)]  # ranks, positions
UNEVEN = [(2, 7), (3, 10), (4, 30), (4, 63), (5, 101), (8, 100)]


def positions_questions(cuts=CUTS, uneven=UNEVEN):
    for level, sizes in enumerate((cuts, uneven)):
        for size, length in sizes:
            says = f"{count_text(length, 'position')} on {count_text(size, 'rank')}"
            yield Question((size, length), lambda answer, asked=(size, length): _wrong_positions(answer, *asked), says, level)


def _wrong_positions(answer, size, length):
    if not isinstance(answer, list | tuple) or len(answer) != size:
        return f"returned {short(answer)}: return a list with a list of positions for each of {count_text(size, 'rank')}."
    held = [each.tolist() if isinstance(each, torch.Tensor) else each for each in answer]
    for rank, places in enumerate(held):
        if not isinstance(places, list | tuple | range) or not all(map(is_whole, places)):
            return f"rank {rank} holds {short(places)}: give a list of whole numbers."
    every = sorted(place for places in held for place in places)
    if every != list(range(length)):
        strange = next((p for p in every if not 0 <= p < length), None)
        if strange is not None:
            return f"there is no position {strange}: they are 0 to {length - 1}."
        missing = next((p for p in range(length) if p not in every), None)
        if missing is not None:
            return f"no rank holds position {missing}."
        twice = next(p for p in every if every.count(p) > 1)
        return f"position {twice} is held twice."
    for rank, places in enumerate(held):
        runs = 1 + sum(after != before + 1 for before, after in zip(places, places[1:]))
        if runs > 2:
            return f"rank {rank} holds {runs} runs of positions: with more than two, hardly any block can be skipped."
    work = [sum(place + 1 for place in places) for places in held]
    most, mean = max(work), sum(work) / size
    allowed = mean if length % (2 * size) == 0 else mean + length
    if most > allowed:
        return (
            f"rank {work.index(most)} computes {most} scores, and the mean is {mean:.6g}: a position sees itself and all before it, "
            f"and no rank should have more than {allowed:.6g} here."
        )
    return None


POSITIONS_HINTS = (
    "Position i sees i + 1 keys. Which late position makes up for position 0, so that the two together see as much as positions "
    "1 and its partner do?",
    "Cut the positions into 2·size parts. The first part and the last together see as much as the second and the last but one.",
    "`parts = torch.arange(length).tensor_split(2 * size)`, and rank i holds `[*parts[i], *parts[-1 - i]]`, as plain numbers. "
    "Where 2·size does not divide the length, `tensor_split` makes some parts longer by one.",
)


# ---------------------------------------------------------------- a mask for packed documents


MASKS = [  # lengths of the documents, positions of the queries and of the keys
    ([2], [0, 1], [0, 1]),
    ([4], [2, 3], [0, 1]),
    ([4], [0, 1], [2, 3]),
    ([2, 2], [2, 3], [0, 1]),
    ([2, 2], [0, 1, 2, 3], [0, 1, 2, 3]),
    ([1, 3], [0, 3], [1, 2]),
    ([3, 3, 2], [1, 6], [0, 7]),
    ([6], [2, 3, 4], [0, 5]),
    ([3, 3, 2], [2, 3], [2, 3]),
    ([8], [1, 6], [0, 7]),
    ([1, 1, 1, 1], [0, 1, 2, 3], [3, 2, 1, 0]),
    ([5, 1, 4, 6], [3, 4, 11, 12], [0, 1, 14, 15]),
    ([5, 1, 4, 6], [5, 6, 9, 10], [5, 6, 9, 10]),
    ([6, 2, 8], [12, 13, 2, 3], [0, 1, 8, 9]),
    ([16], [12, 13, 14], [4, 5, 6]),
]


def mask_questions(masks=MASKS):
    for lengths, queries, keys in masks:
        asked = torch.tensor(queries), torch.tensor(keys), lengths
        says = f"documents of {lengths}, queries at {queries}, keys at {keys}"
        yield Question(asked, lambda answer, asked=(queries, keys, lengths): _wrong_mask(answer, *asked), says)


def _wrong_mask(answer, queries, keys, lengths):
    numbers = [number for number, length in enumerate(lengths) for _ in range(length)]
    wanted = [[key <= query and numbers[key] == numbers[query] for key in keys] for query in queries]
    if not any(map(any, wanted)):
        return None if answer is None else "no query sees a key here: return None, so that the block is skipped."
    if answer is None:
        return "it returned None, but some query sees some key here."
    if not isinstance(answer, torch.Tensor) or answer.dtype != torch.bool:
        return f"it returned {short(answer)}: return a tensor of bools, or None."
    if list(answer.shape) != [len(queries), len(keys)]:
        return f"it has the shape {tuple(answer.shape)}: it should be {(len(queries), len(keys))}, a row for each query."
    for query, row, right in zip(queries, answer.tolist(), wanted):
        for key, found, should in zip(keys, row, right):
            if found != should:
                why = "is after it" if key > query else f"is in document {numbers[key]}, the query in {numbers[query]}"
                return f"position {query} {'sees' if found else 'does not see'} position {key}" + (
                    f", which {why}." if found else ", and it should: both are in one document."
                )
    return None


MASK_HINTS = (
    "Two conditions must hold: the key is not after the query, and both are in one document. Both are about *positions in the whole "
    "sequence*, not about places in the block. In which document is position 7, if the lengths are 5, 1 and 4?",
    "`torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))` has the document of each position.",
    "`mask = (queries[:, None] >= keys) & (document[queries][:, None] == document[keys])`, and `mask if mask.any() else None`.",
)


# ---------------------------------------------------------------- gradients that come home


SHAPES = [(2, 1, 1), (3, 2, 3), (1, 3, 2), (4, 2, 2), (5, 1, 3), (8, 2, 3), (6, 3, 1), (4, 3, 4)]  # ranks, positions, width


def attend_cases(shapes=SHAPES):
    for size, positions, width in shapes:
        dtype = torch.float64 if size % 2 else torch.float32
        given = tuple(tuple(fractions(positions, width, dtype=dtype) for _ in range(4)) for _ in range(size))
        holds = f"{count_text(positions, 'position')} of {count_text(width, 'number')} a rank"
        yield Case(given, harnesses.alone, holds=holds)


def _ring(case):
    """Keys and values p−1 hops twice, and their gradients p hops."""
    _, k, v, _ = case.given[0]
    return (3 * case.size - 2) * (k.nbytes + v.nbytes) * (case.size > 1)


ATTEND_LEVELS = (
    Level(
        "within the target",
        (limits.port_bytes(_ring), limits.rounds(lambda case: (3 * case.size - 2) * (case.size > 1))),
        "Keys and values make p−1 hops forward and p−1 backward, and their gradients p: one more, which brings them home. A gather "
        "that keeps everything sends less, but then each rank holds the whole sequence.",
    ),
)
ATTEND_HINTS = (
    "The forward pass: p times, add what your queries make of the keys and values that are here, and pass these on, p−1 times. In the "
    "backward pass they go round again. What your queries make of the gradients of the keys that are here belongs to another "
    "rank. How does it get there?",
    "Let a sum of gradients travel with its keys and values: each rank adds its part and passes all on. After p blocks the keys that "
    "are here are those of your right neighbor. So the sum needs one hop more.",
    "With `scores = q @ k.T` and `weights = scores.relu()`: `to_scores = (gradient @ v.T) * (scores > 0)`. Then `to_scores @ k` is "
    "added to the gradient of q, `to_scores.T @ q` to that of the keys that are here, and `weights.T @ gradient` to that of the "
    "values. Send and receive in one `dist.batch_isend_irecv`, and skip it on one rank.",
)


EXERCISES = {
    "merge": Answer(merge_questions, MERGE_HINTS),
    "positions": Answer(
        positions_questions,
        POSITIONS_HINTS,
        (
            Level(
                "at the bound",
                why="With lengths that 2p does not divide, some ranks have a position more. The busiest is less than one position's "
                "scores above the mean.",
            ),
        ),
    ),
    "mask": Answer(mask_questions, MASK_HINTS),
    "attend": Program(attend_cases, ATTEND_HINTS, ATTEND_LEVELS, keeps=False, adds=False, harness=harnesses.there_and_back),
}
