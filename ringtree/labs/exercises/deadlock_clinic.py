"""The checks and hints of lab 1, "Deadlock clinic": five programs that hang or corrupt."""

import math

from ringtree.labs import Exercise, alike, flat, shape, show
from ringtree.units import count_text
from ringtree.waits import name_ranks

TITLE = "Deadlock clinic"
HEALTHY = "is healthy"
RANKS = 4


def _sizes(examine):
    """All ranks, then fewer: a repair that was made for four ranks alone is not healthy."""
    return [(examine.ranks.size, 1), (examine.ranks.size, 5), (3, 2), (2, 3)]


def _sent_right(trial, rank, count, wanted):
    """Complain unless `rank` sent `count` messages, all of them to the rank on its right."""
    right = (rank + 1) % trial.size
    peers = [each["peer"] for each in trial.sent(rank)]
    if peers == [right] * count:
        return
    sent = count_text(len(peers), "message") if peers else "nothing"
    if set(peers) - {right}:
        sent += f", to {name_ranks(sorted(set(peers)))}"
    trial.complain(f"the numbers are right, but rank {rank} sent {sent}: {wanted}, to rank {right}, was wanted")


# ---------------------------------------------------------------- shift


def check_shift(examine):
    for size, length in _sizes(examine):
        given = examine.numbers(size, length)
        trial = examine([(row,) for row in given])

        def left(rank, size=size):
            return (rank - 1) % size

        trial.expect([given[left(rank)] for rank in range(size)], giver=left)
        trial.tidy()
        for rank in range(size):
            if used := trial.collectives(rank):
                trial.complain(
                    f"the numbers are right, but rank {rank} used {used[0]}: "
                    f"one message, to rank {(rank + 1) % size}, is all that it has to send"
                )
            _sent_right(trial, rank, 1, "one message")


SHIFT_HINTS = (
    "Read the last line of the report: the ranks wait in a circle. On Gloo, `send` returns when the "
    "receiver has taken the message. Which rank reaches its `recv`?",
    "A circle is broken where one rank receives first. Or nobody waits: start both messages, then wait for both.",
    "works = dist.batch_isend_irecv([dist.P2POp(dist.isend, x, right), dist.P2POp(dist.irecv, got, left)]), "
    "and then work.wait() for each of them.",
)


# ---------------------------------------------------------------- hand_out


def check_hand_out(examine):
    for size, length in _sizes(examine):
        given = examine.numbers(size, length)
        trial = examine([(row,) for row in given])
        trial.expect([given[0]] * size, giver=lambda rank: 0)
        trial.tidy()


HAND_OUT_HINTS = (
    "The report names the ranks that wait and the rank that they wait for. What had that rank done by then?",
    "Every `recv` needs a `send` of its own. How many ranks receive, and how many messages does rank 0 send?",
    "Let rank 0 send in a loop, `for dst in range(1, size)`. Or use the collective made for it: "
    "`dist.broadcast(x, src=0)`, which every rank calls.",
)


# ---------------------------------------------------------------- average


def check_average(examine):
    size = examine.ranks.size
    nan, inf = math.nan, math.inf
    for ranks, length, bad in [
        (size, 1, {2: nan}),
        (size, 3, {}),
        (size, 3, {1: nan, 3: inf}),
        (size, 3, {0: -inf}),
        (3, 2, {rank: nan for rank in range(3)}),
        (2, 4, {1: nan}),
    ]:
        given = examine.numbers(ranks, length)
        for rank, value in bad.items():
            given[rank][examine.random.randrange(length)] = value
        good = [given[rank] for rank in range(ranks) if rank not in bad]
        mean = [sum(column) / len(good) for column in zip(*good, strict=True)] if good else [0.0] * length
        trial = examine([(row,) for row in given])
        _explain_average(trial, given, good, mean)
        trial.expect([mean] * ranks)
        trial.tidy()


def _explain_average(trial, given, good, mean):
    """Name the two usual slips: a bad rank's numbers let in, and a divisor that counts the bad ranks too."""
    bad = [rank for rank in range(trial.size) if given[rank] not in good]
    if not (good and bad):
        return
    for rank, answer in enumerate(trial.answers):
        if shape(answer) != shape(mean) or not trial.collectives(rank):
            continue
        wrong = f"rank {rank} has {show(answer)} where {show(mean)} was expected"
        if not all(map(math.isfinite, flat(answer))) and rank not in bad:
            trial.complain(f"{wrong}: what rank {bad[0]} was given got into the sum.")
        if alike(answer, [x * len(good) / trial.size for x in mean]) and not alike(answer, mean):
            trial.complain(f"{wrong}: the sum was divided by {trial.size}, but only {len(good)} gave something.")


AVERAGE_HINTS = (
    "Who is missing in the all_reduce, and which line kept it away? That rank had a reason; "
    "the others could not know it.",
    "Every rank has to take part in every collective. A rank with nothing to give can give zeros. "
    "But then by what should the sum be divided?",
    "Let `good` be 1.0 or 0.0. Reduce two things: the gradient (zeros where it is bad; nan * 0 is nan, "
    "so use torch.where or an `if`), and `good`. Divide the first sum by the second, which is at least 1.",
)


# ---------------------------------------------------------------- relay


def check_relay(examine):
    size = examine.ranks.size
    for ranks, count, length in [(size, 3, 1), (size, 3, 2), (size, 1, 4), (3, 5, 2), (2, 2, 3)]:
        rows = examine.numbers(ranks, count * length)
        given = [[row[i * length : (i + 1) * length] for i in range(count)] for row in rows]
        trial = examine([(blocks,) for blocks in given])

        def left(rank, ranks=ranks):
            return (rank - 1) % ranks

        trial.expect([given[left(rank)] for rank in range(ranks)], giver=left)
        trial.tidy()
        for rank in range(ranks):
            _sent_right(trial, rank, count, f"one for each of its {count} blocks")


RELAY_HINTS = (
    "Which block arrived, and how often? When was `box` written to, and until when did the message need it?",
    "A barrier says that all ranks have come this far. It says nothing of messages: only `wait()` on a "
    "message's own Work says that its tensor may be written to again.",
    "Waiting right after each `isend` brings the circle of `shift` back. So give every message a tensor "
    "of its own, which nobody writes to (here, the blocks themselves), and wait for all Works at the end.",
)


# ---------------------------------------------------------------- pipeline


def check_pipeline(examine):
    size = examine.ranks.size
    for ranks, count, length in [(size, 6, 1), (size, 7, 2), (size, 2, 1), (3, 5, 3), (2, 4, 1)]:
        batches = examine.numbers(ranks, count * length)
        batches = [[[x % 19 - 9 for x in row[i * length : (i + 1) * length]] for i in range(count)] for row in batches]
        weights = [[float(examine.random.choice([-3, -2, 2, 3])) for _ in range(length)] for _ in range(ranks)]
        trial = examine([(batches[rank], weights[rank]) for rank in range(ranks)])
        trial.expect([_gradient(batches[0], weights, rank) for rank in range(ranks)])
        trial.tidy()
        for rank in range(ranks - 1):
            _under_way(trial, rank, count)


def _gradient(batches, weights, rank):
    """Of half the sum of all squared outputs with respect to one stage's weight: Σ batch² · (all weights)² / weight."""
    squares = [sum(x * x for x in column) for column in zip(*batches, strict=True)]
    return [
        total * math.prod(weight[i] for weight in weights) ** 2 / weights[rank][i] for i, total in enumerate(squares)
    ]


def _under_way(trial, rank, count):
    """Complain unless `rank` had as many micro-batches out at once as one-forward-one-backward has."""
    after = rank + 1
    out = sorted(
        [(each["posted"], 1) for each in trial.sent(rank, after)]
        + [(each["done"], -1) for each in trial.received(rank, after)]
    )
    now = most = 0
    for _, step in out:
        now += step
        most = max(most, now)
    wanted = min(trial.size - rank, count)
    if most > wanted:
        trial.complain(
            f"the numbers are right, but rank {rank} had {most} micro-batches under way at once, and must keep the inputs "
            f"of all of them: one forward, one backward needs {wanted}"
        )
    if most < wanted:
        trial.complain(
            f"the numbers are right, but rank {rank} never had more than {most} "
            f"micro-batch{'' if most == 1 else 'es'} under way: with fewer than {wanted} the stages after it stand idle"
        )


PIPELINE_HINTS = (
    "The report shows a circle of two. What does each of the two want to give the other, and what would the "
    "other have to be doing to take it?",
    "An activation goes right while a gradient goes left, between the same two ranks. It is the circle of `shift` "
    "again, with both messages of a different kind. One direction need not be waited for at once.",
    "Send the gradients with isend, keep the Works in a list, and wait for all of them before you return. "
    "Nothing else has to change.",
)


EXERCISES = {
    "shift": Exercise(check_shift, SHIFT_HINTS),
    "hand_out": Exercise(check_hand_out, HAND_OUT_HINTS),
    "average": Exercise(check_average, AVERAGE_HINTS),
    "relay": Exercise(check_relay, RELAY_HINTS),
    "pipeline": Exercise(check_pipeline, PIPELINE_HINTS),
}
