"""Lab of chapter 24, "Experts": who sends how much to whom, rows and their gradients, who is dropped, and the whole layer."""

import torch

from ringtree.labs import limits
from ringtree.labs.comparing import is_whole, short
from ringtree.labs.exercise import Answer, Case, Level, Program, Question
from ringtree.labs.harnesses import experts as harnesses
from ringtree.labs.inputs import drawn, whole_numbers
from ringtree.units import count_text

TITLE = "Experts"
CHAPTER = 24
COUNT = 8  # bytes of a count


def busiest_of(traffic):
    """Bytes through the busier port of the busiest rank; traffic[i][j]: from rank i to rank j."""
    size = len(traffic)
    out = [sum(row) - row[rank] for rank, row in enumerate(traffic)]
    into = [sum(row[rank] for row in traffic) - traffic[rank][rank] for rank in range(size)]
    return max(out + into)


def fractions(count, width, dtype=torch.float64):
    """(count, width) numbers from −1 to 1, drawn at random: no two alike, and none is 0."""
    numbers = 2 * drawn(1, max(1, count) * width, torch.float64)[0] + 1
    return (numbers / numbers.abs().max()).view(-1, width)[:count].to(dtype)


# ---------------------------------------------------------------- to whom


ROUTES = [  # experts that the tokens chose, ranks, experts of each
    ([1, 0, 1], 2, 1),
    ([0, 1, 2], 1, 3),
    ([3, 1, 3, 0], 2, 2),
    ([2, 2, 2, 2], 3, 1),
    ([], 2, 2),
    ([5, 0, 5, 1, 0, 4], 3, 2),
    ([0], 4, 2),
    ([7, 3, 7, 6, 2, 7, 3, 1, 0, 5, 7], 2, 4),
]


def route_questions(routes=ROUTES):
    for chosen, ranks, each in routes:
        told = f"tokens that chose {chosen}, {count_text(ranks, 'rank')} with {count_text(each, 'expert')} each"
        asked = torch.tensor(chosen, dtype=torch.int64), ranks, each
        yield Question(asked, lambda answer, asked=(chosen, ranks, each): _wrong_route(answer, *asked), told)


def _wrong_route(answer, chosen, ranks, each):
    if not isinstance(answer, list | tuple) or len(answer) != 2:
        return f"returned {short(answer)}: return two things, the order of the tokens and how many go to each rank."
    order, sends = (one.tolist() if isinstance(one, torch.Tensor) else one for one in answer)
    for name, numbers in ("order", order), ("counts", sends):
        if not isinstance(numbers, list | tuple) or not all(map(is_whole, numbers)):
            return f"its {name} are {short(numbers)}: return a tensor or a list of whole numbers."
    wanted = sorted(range(len(chosen)), key=lambda token: chosen[token])
    if sorted(order) != list(range(len(chosen))):
        return f"its order is {short(order)}: it should have the place of each of the {count_text(len(chosen), 'token')} once."
    if list(order) != wanted:
        experts = [chosen[token] for token in order]
        why = (
            "tokens of one expert should keep their order" if experts == sorted(experts) else f"the experts are then {experts}"
        )
        return f"its order is {short(list(order))} and should be {wanted}: {why}."
    counts = [sum(expert // each == rank for expert in chosen) for rank in range(ranks)]
    if list(sends) != counts:
        return f"its counts are {short(list(sends))} and should be {counts}, one for each rank."
    return None


ROUTE_HINTS = (
    "On which rank is expert 5, if each rank has two? And what must stand in the counts for a rank that no token goes to?",
    "`chosen.argsort(stable=True)` is the order: stable means that equal ones stay as they were. `torch.bincount` counts how "
    "often each number comes, but only up to the largest that does.",
    "`torch.bincount(chosen // each, minlength=ranks)` are the counts.",
)


# ---------------------------------------------------------------- rows and their gradients


def exchange_cases():
    for size, most in [(2, 2), (3, 3), (1, 2), (4, 4), (5, 3), (8, 4), (4, 0), (3, 6), (4, 5)]:
        yield exchange_case(size, most, torch.float64 if size == 3 else torch.float32)


def exchange_case(size, most, dtype=torch.float32):
    sends = [whole_numbers(size, 0, most) for _ in range(size)]
    if size == 2:
        sends = [[1, 2], [1, 1]]
    if size == 8:  # rank 0 has no rows and gets none
        sends = [[0] * 8] + [[0, *row[1:]] for row in sends[1:]]
    given = []
    for rank in range(size):
        gets = [row[rank] for row in sends]
        factors, (ends,) = _tables(sum(gets), dtype), _tables(1, dtype)
        given.append((_tables(sum(sends[rank]), dtype), gets, sends[rank], factors, ends))
    counts = sorted(sum(row) for row in sends)
    return Case(tuple(given), harnesses.there_and_back_alone, holds=f"{counts[0]} to {counts[-1]} rows each")


def _tables(count, dtype):
    """`count` rows, each of 2 tokens with 3 numbers."""
    return fractions(count, 6, dtype).view(-1, 2, 3)


def _four_ways(extra):
    """Rows there and back, and in the backward pass their gradients; extra: bytes for each other rank."""

    def most(case):
        sends = [entry[2] for entry in case.given]
        row = case.given[0][4].nbytes
        both = [[2 * row * (sends[i][j] + sends[j][i]) for j in range(case.size)] for i in range(case.size)]
        return busiest_of(both) + extra * (case.size - 1)

    return most


EXCHANGE_LEVELS = (
    Level("within the target", (limits.port_bytes(_four_ways(64)),)),
    Level(
        "at the bound",
        (limits.port_bytes(_four_ways(0)), limits.rounds(lambda case: 4 * (case.size - 1))),
        "Each row crosses once where it is sent, and its gradient crosses once on the way back. No rank needs a count: both "
        "lists were given. Each port takes in p−1 blocks, four times.",
    ),
)
EXCHANGE_HINTS = (
    "Forward, dist.all_to_all_single(arrived, rows, gets, sends) is all. But it writes into a tensor that you made, and so "
    "autograd does not know where its numbers came from. `torch.autograd.Function` is for this: a forward and a backward.",
    "In `forward(ctx, rows, gets, sends, dist)` keep what the way back needs: `ctx.way_back = sends, gets, dist`. The gradient of "
    "a row is wanted where the row came from. So `backward(ctx, gradient)` makes the same call with the lists swapped, and returns "
    "one value for each argument of forward: the gradient, and None for the rest.",
    "`gradient` may have gaps in memory, or be one number seen many times: give `gradient.contiguous()` to the call. The way back has "
    "rows of the same shape, `rows.shape[1:]`. Return `Exchange.apply(rows, gets, sends, dist)`.",
)


# ---------------------------------------------------------------- who is dropped


def keep_cases():
    for size, most, experts, capacity in [
        (2, 3, 2, 2),
        (3, 4, 2, 3),
        (1, 5, 3, 1),
        (4, 6, 4, 4),
        (5, 3, 2, 4),
        (7, 6, 3, 9),
        (8, 5, 8, 3),
        (4, 3, 2, 0),
        (4, 0, 3, 2),
        (4, 7, 3, 5),
    ]:
        yield keep_case(size, most, experts, capacity)


def keep_case(size, most, experts, capacity):
    numbers = [3, 6, 0, 4] if (size, most) == (4, 6) else whole_numbers(size, 0, most)
    chosen = [torch.tensor(whole_numbers(number, 0, experts - 1), dtype=torch.int64) for number in numbers]
    if size == 2:
        chosen = [torch.tensor([0, 1, 0]), torch.tensor([1, 0, 1])]
    given = tuple((each, experts, capacity) for each in chosen)
    counts = sorted(len(each) for each in chosen)
    tokens = count_text(counts[0], "token") if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]} tokens"
    return Case(given, _first_come, holds=f"{tokens} each", says=f"{count_text(experts, 'expert')} that each take {capacity}")


def _first_come(given):
    taken, kept = [0] * given[0][1], []
    for chosen, _, capacity in given:
        mine = []
        for expert in chosen.tolist():
            taken[expert] += 1
            mine.append(taken[expert] <= capacity)
        kept.append(torch.tensor(mine, dtype=torch.bool))
    return kept


def who_came_before(run, rank, token):
    """Return which expert the token wants, and how many wanted it before."""
    chosen, _, capacity = run.case.given[rank]
    expert = chosen[token].item()
    before = sum(int((each == expert).sum()) for each, *_ in run.case.given[:rank]) + int((chosen[:token] == expert).sum())
    return f"its token {token} wants expert {expert}, which takes {capacity}, and {count_text(before, 'token')} before it {'wants' if before == 1 else 'want'} the same"


def _steps(case):
    """⌈lg p⌉"""
    return (case.size - 1).bit_length()


KEEP_LEVELS = (
    Level("within the target", (limits.port_bytes(lambda case: (case.size - 1) * case.given[0][1] * COUNT),)),
    Level(
        "at the bound",
        (limits.rounds(_steps), limits.port_bytes(lambda case: _steps(case) * case.given[0][1] * COUNT)),
        "The last rank needs a count of every rank. In one round what a rank knows of can at most double: ⌈lg p⌉ rounds.",
    ),
)
KEEP_HINTS = (
    "What must a rank know of the ranks before it? Not their tokens: for each expert one number, how many of them want it.",
    "`counts = torch.bincount(chosen, minlength=experts)`. With the sum of these over all ranks before you, `before`, a token is kept if "
    "`before[expert]`, and the tokens for that expert before it on your own rank, are fewer than the capacity. An all-gather of the "
    "counts is within the target.",
    "For the bound each rank keeps a sum, at first its own counts. In steps of distance d = 1, 2, 4, … it sends its sum to rank "
    "r + d and adds what comes from rank r − d, where there is such a rank. Afterwards it has the counts of itself and all before "
    "it: take away its own. Send a copy, and add only when both messages are done.",
)


# ---------------------------------------------------------------- the whole layer


def layer_cases():
    for size, most in [(2, 2), (3, 3), (1, 3), (4, 5), (5, 2), (8, 4), (4, 0), (3, 4), (4, 6)]:
        yield layer_case(size, most, torch.float64 if size == 3 else torch.float32)


def layer_case(size, most, dtype=torch.float32, width=2):
    best, given = min(2, size), []
    numbers = [2, 2] if size == 2 else [3, 0, 5, 2] if (size, most) == (4, 5) else whole_numbers(size, 0, most)
    for number in numbers:
        experts = size - (size == 8)  # on 8 ranks nobody wants the last expert
        chosen = torch.tensor([_two_of(experts)[:best] for _ in range(number)], dtype=torch.int64).view(-1, best)
        kept = torch.tensor(whole_numbers(number * best, 0, 3)).view(-1, best) > 0
        if size == 2:
            chosen = torch.tensor([[0, 1], [1, 0]])
            kept = torch.tensor([[[True, True], [True, False]], [[False, True], [False, False]]])[len(given)]
        tensors = [fractions(number, width, dtype), chosen, fractions(number, best, dtype), kept]
        given.append((*tensors, fractions(width, width, dtype), fractions(number, width, dtype)))
    fewest, most = min(numbers), max(numbers)
    tokens = count_text(fewest, "token") if fewest == most else f"{fewest} to {most} tokens"
    return Case(tuple(given), harnesses.through_experts_alone, holds=f"{tokens} of {width} numbers each")


def _two_of(experts):
    """Two of them, in any order; of one, that one twice."""
    (first,) = whole_numbers(1, 0, experts - 1)
    return [first, (first + 1 + whole_numbers(1, 0, max(0, experts - 2))[0]) % experts]


def _kept_rows(extra):
    """extra: counts of 8 bytes for each other rank."""

    def most(case):
        size, row = case.size, case.given[0][4][0].nbytes
        sends = [torch.bincount(chosen[kept], minlength=size).tolist() for _, chosen, _, kept, *_ in case.given]
        both = [[2 * row * (sends[i][j] + sends[j][i]) for j in range(size)] for i in range(size)]
        return busiest_of(both) + extra * COUNT * (size - 1)

    return most


LAYER_LEVELS = (
    Level("within the target", (limits.port_bytes(_kept_rows(8)),)),
    Level(
        "at the bound",
        (limits.port_bytes(_kept_rows(1)),),
        "Each kept row goes there and back, so does its gradient, and a count for each pair of ranks goes first, once.",
    ),
)
LAYER_HINTS = (
    "First forget about ranks: which rows go out, in which order? `token, choice = kept.nonzero(as_tuple=True)` are the kept ones. Sort "
    "them by `chosen[token, choice]`, and remember to which token each row belongs.",
    "Exchange the counts by the plain call, which needs no gradient, then `tokens[token]` by your `exchange`. What the expert makes of "
    "the rows that came goes back by `exchange` with the lists swapped. The rest is arithmetic that autograd knows.",
    "`back * weights[token, choice].unsqueeze(1)` are the weighted rows, in sorted order. `torch.zeros_like(tokens).index_add(0, token, "
    "rows)` adds each to its token; one whose rows were all dropped keeps 0. Call the expert for no rows, too, and let a rank without "
    "tokens make every call.",
)


EXERCISES = {
    "route": Answer(route_questions, ROUTE_HINTS),
    "exchange": Program(
        exchange_cases, EXCHANGE_HINTS, EXCHANGE_LEVELS, builtin=True, keeps=False, adds=False, harness=harnesses.there_and_back
    ),
    "keep": Program(keep_cases, KEEP_HINTS, KEEP_LEVELS, builtin=True, adds=False, tells=who_came_before),
    "layer": Program(layer_cases, LAYER_HINTS, LAYER_LEVELS, builtin=True, adds=False, harness=harnesses.through_experts),
}
