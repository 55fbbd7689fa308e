"""Lab of chapter 13, "All-to-all": a matrix transposed without jams, blocks of unknown length, tokens to experts and back."""

import torch

from ringtree.cost import Link
from ringtree.labs import limits
from ringtree.labs.exercise import Case, Level, Limit, Program
from ringtree.labs.inputs import drawn, easy, whole_numbers
from ringtree.theory import cost_of
from ringtree.units import bytes_text, count_text, seconds_text

TITLE = "All-to-all"
CHAPTER = 13
COUNT = 8  # bytes of a count


def _busiest_of(traffic):
    """Bytes through the busier port of the busiest rank; traffic[i][j]: from rank i to rank j."""
    size = len(traffic)
    out = [sum(row) - row[rank] for rank, row in enumerate(traffic)]
    into = [sum(row[rank] for row in traffic) - traffic[rank][rank] for rank in range(size)]
    return max(out + into)


# ---------------------------------------------------------------- a matrix transposed

LINK = Link.of(5e-6, bandwidth=10e9)
SHAPES = [  # ranks, rows and columns of a block
    (2, 1, 1),
    (3, 1, 2),
    (1, 2, 3),
    (4, 2, 3),
    (5, 2, 1),
    (6, 1, 1),
    (7, 3, 2),
    (4, 0, 2),
    (8, 64, 64),
    (4, 2, 2),
]


def transpose_cases(shapes=SHAPES):
    for size, high, wide in shapes:
        dtype = torch.float64 if (size, high) == (4, 2) else torch.float32
        count = size * high * wide
        rows = easy(size, count, dtype) if size == 2 else drawn(size, count, dtype)
        given = tuple((row.view(high, size * wide),) for row in rows)
        yield Case(given, _transposed, machine=LINK, says=f"{high} × {size * wide} each, α 5 µs, 10 GB/s")


def _transposed(given):
    return list(torch.cat([rows for (rows,) in given]).T.tensor_split(len(given)))


def coming_at_once(run):
    """The most messages that were under way to one rank at the same time."""
    most = 0
    for rank in range(run.case.size):
        coming = [each for each in run.trace if each.dst == rank]
        for each in coming:
            most = max(most, sum(other.send_posted <= each.send_posted < other.end for other in coming))
    return most


def _time(part):
    def most(case):
        return part * cost_of("pairwise_all_to_all", case.size, case.nbytes, LINK).time

    return Limit("from the first start to the last end", lambda run: run.makespan, most, seconds_text)


TRANSPOSE_LEVELS = (
    Level("within the target", (_time(2),)),
    Level(
        "at the bound",
        (
            Limit("messages on their way to one rank at once", coming_at_once, lambda case: 1),
            _time(1.001),
        ),
        "(p−1)(α + n/p·β): each port takes in p−1 blocks, one after the other, and never waits.",
    ),
)
TRANSPOSE_HINTS = (
    "Which numbers of yours does rank j need? Those in its columns, `x[:, j * wide : (j + 1) * wide]`. Where do they belong in "
    "its answer?",
    "A message needs one piece of memory: send `x[:, …].contiguous()`. In step s = 1 … p − 1 rank r sends to rank r + s, modulo "
    "p, and receives from rank r − s: then no two ranks send to the same rank.",
    "What comes from rank i is a block of `high × wide`; its transposed one, `block.T`, belongs in the columns `i * high` to "
    "`(i + 1) * high` of your answer, a tensor of `wide × size · high`. Your own block goes there without a message.",
)


# ---------------------------------------------------------------- blocks of unknown length


def exchange_cases():
    for size, most in [(2, 2), (3, 3), (1, 4), (4, 5), (5, 4), (6, 9), (7, 3), (8, 6), (4, 0), (3, 5), (4, 7)]:
        dtype = torch.int64 if (size, most) == (3, 5) else torch.float32
        counts = [whole_numbers(size, 0, most) for _ in range(size)]
        if size == 2:
            counts = [[1, 2], [2, 0]]
        if size == 8:
            counts = [[0] * 8 for _ in range(7)] + [[5, 0, 5, 0, 5, 0, 5, 0]]
        longest = max(map(sum, counts))
        rows = easy(size, longest, dtype) if size == 2 else drawn(size, longest, dtype)
        says = "only rank 7 sends" if size == 8 else "nobody sends" if most == 0 else ""
        yield Case(tuple((row[: sum(count)].clone(), count) for row, count in zip(rows, counts)), _arrived, says=says)


def _arrived(given):
    blocks = [tokens.split(counts) for tokens, counts in given]
    return [torch.cat([each[rank] for each in blocks]) for rank in range(len(given))]


def _traffic(case):
    return [[count * tokens.element_size() for count in counts] for tokens, counts in case.given]


def _counted(extra):
    return lambda case: _busiest_of(_traffic(case)) + extra * (case.size - 1)


EXCHANGE_LEVELS = (
    Level("within the target", (limits.port_bytes(_counted(8 * COUNT)),)),
    Level(
        "at the bound",
        (
            limits.port_bytes(_counted(COUNT)),
            limits.rounds(lambda case: 2 * (case.size - 1)),
        ),
        "Every number travels once, and beside it one count of 8 bytes for each pair of ranks.",
    ),
)
EXCHANGE_HINTS = (
    "A receiver has to give a tensor of the right length before the message comes. Who knows that length, and how does the "
    "receiver learn it?",
    "Two times the same loop: in step s = 1 … p − 1 send to rank r + s and receive from rank r − s. First one number, the "
    "count; then the block. Your own block needs no message.",
    "`counts_in = [torch.empty(1, dtype=torch.int64) for _ in range(size)]`, send `torch.tensor([counts[to]])`. Then "
    "`came = [tokens.new_empty(int(count)) for count in counts_in]`, send `blocks[to]` of `blocks = tokens.split(counts)`, "
    "and return `torch.cat(came)`.",
)


# ---------------------------------------------------------------- tokens to experts


def expert_cases():
    for size, most in [(2, 2), (3, 3), (4, 1), (4, 6), (5, 4), (7, 5), (8, 9), (4, 8)]:
        numbers = [2] * size if size == 2 else whole_numbers(size, 0, most)
        if (size, most) == (4, 6):
            numbers = [0, 5, 1, 3]
        rows = [row + 1 for row in easy(2, 2)] if size == 2 else drawn(size, max(*numbers, 1))
        factors = [2.0, 10.0] if size == 2 else drawn(1, size)[0].tolist()
        given = []
        for rank, number in enumerate(numbers):
            firsts = torch.tensor(whole_numbers(number, 0, size - 1), dtype=torch.int64)
            seconds = (firsts + 1 + torch.tensor(whole_numbers(number, 0, size - 2), dtype=torch.int64)) % size
            weights = torch.tensor(whole_numbers(number, 1, 3)).view(-1, 1) / 4
            tokens = rows[rank][:number].clone()
            experts = torch.stack([firsts, seconds], 1)
            given.append((tokens, experts, torch.cat([weights, 1 - weights], 1), factors[rank]))
        yield _expert_case(given, says="rank 0 has no tokens" if numbers[0] == 0 else "")


def _expert_case(given, **more):
    counts = sorted({len(tokens) for tokens, *_ in given})
    holds = count_text(counts[0], "token") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} tokens"
    return Case(tuple(given), _weighted, holds=f"{holds} each", **more)


def _weighted(given):
    factors = torch.tensor([factor for *_, factor in given])
    return [tokens * (weights * factors[experts]).sum(1) for tokens, experts, weights, _ in given]


def what_is_wanted(run, rank, token):
    """Of which token, with which weights and factors: the numbers alone would tell nobody what went wrong."""
    tokens, experts, weights, _ = run.case.given[rank]
    value = tokens[token].item()
    parts = [
        f"{weight:g} · {run.case.given[expert][3]:g} · {value:g} by rank {expert}"
        for weight, expert in zip(weights[token].tolist(), experts[token].tolist())
    ]
    return f"its token {token} is {value:g} and should be {' and '.join(parts)}"


def _there_and_back(extra):
    def most(case):
        pairs = [torch.bincount(experts.view(-1), minlength=case.size).tolist() for _, experts, _, _ in case.given]
        both = [[4 * (pairs[i][j] + pairs[j][i]) for j in range(case.size)] for i in range(case.size)]
        return _busiest_of(both) + extra * COUNT * (case.size - 1)

    return most


def tokens_travel(run):
    """Complains where less comes to a rank than the tokens for its expert, and one answer for each token of its own."""
    for rank, came in enumerate(run.trace.bytes_received):
        own = run.case.given[rank][0]
        visiting = sum(int((experts == rank).sum()) for other, (_, experts, *_) in enumerate(run.case.given) if other != rank)
        if run.case.size > 1 and came < own.element_size() * (visiting + len(own)):
            guests = f"{count_text(visiting, 'token')} of other ranks for its expert, to be multiplied there"
            return (
                f"the sums are right, but rank {rank} received {bytes_text(came)}: it should receive {guests}, "
                f"and the answers to its own {len(own)}"
            )
    return None


EXPERT_LEVELS = (
    Level("within the target", (limits.port_bytes(_there_and_back(8)),)),
    Level(
        "at the bound",
        (limits.port_bytes(_there_and_back(1)),),
        "Every token goes once to each of its experts and comes once back; the counts are exchanged once.",
    ),
)
EXPERT_HINTS = (
    "A token with two experts is two tokens with one expert each: `tokens.repeat_interleave(2)` beside `experts.view(-1)`. "
    "Sort them by expert, and remember the order.",
    "`order = goals.argsort(stable=True)` and `sends = torch.bincount(goals, minlength=size)`. Exchange the counts with "
    "dist.all_to_all_single, then the tokens, with the counts as lists. Multiply the tokens that you received by your factor. Send it back: "
    "the same call with the two lists of counts swapped.",
    "What comes back is in the sorted order: `result[order] = back` undoes it (`order.argsort()` would do, too; `back[order]` "
    "sorts once more). Then `(result.view(-1, 2) * weights).sum(1)`.",
)


EXERCISES = {
    "transpose": Program(transpose_cases, TRANSPOSE_HINTS, TRANSPOSE_LEVELS),
    "exchange": Program(exchange_cases, EXCHANGE_HINTS, EXCHANGE_LEVELS),
    "to_experts": Program(
        expert_cases, EXPERT_HINTS, EXPERT_LEVELS, builtin=True, adds=False, tells=what_is_wanted, also=tokens_travel
    ),
}
