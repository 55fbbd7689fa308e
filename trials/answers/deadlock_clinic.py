"""Answers to the lab "Deadlock clinic": right ones of other structure, and wrong ones with what the check has to say."""

from . import with_a_barrier, writing_on_what_it_was_given

SHIFT = """
def shift(x, dist):
    rank, size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    got = torch.empty_like(x)
"""
BATCH = (
    SHIFT
    + """
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, right), dist.P2POp(dist.irecv, got, left)]):
        work.wait()
    return got
"""
)
RELAY = SHIFT.replace("shift(x,", "relay(blocks,").replace("(x)", "(blocks)")
ONE_BATCH = (
    RELAY
    + """
    operations = [dist.P2POp(dist.isend, block, right) for block in blocks] + [dist.P2POp(dist.irecv, each, left) for each in got]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return got
"""
)
MEAN = """
def average(gradient, dist):
    good = gradient.isfinite().all()
    total = gradient.clone() if good else torch.zeros_like(gradient)
    count = good.float()
"""
STAGE = """
def pipeline(batches, weight, dist):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    kept, gradient, count = [], torch.zeros_like(weight), len(batches)

    def arrive(number):
        if number >= count or rank == 0:
            return batches[number] if number < count else None
        x = torch.empty_like(weight)
        dist.recv(x, src=rank - 1)
        return x

    def forward(x):
        kept.append(x)
        if rank < last:
            dist.send(weight * x, dst=rank + 1)

    def backward():
        x = kept.pop(0)
        g = weight * x
        if rank < last:
            dist.recv(g, src=rank + 1)
        gradient.add_(g * x)
        return weight * g

    def home(g):
        if rank > 0:
            dist.send(g, dst=rank - 1)
"""
SCHEDULE = """
    ahead = min(last - rank, count)
    for number in range(ahead):
        forward(arrive(number))
    x = arrive(ahead)
    for number in range(ahead, count):
        forward(x)
        g = backward()
        x = arrive(number + 1)
        home(g)
    for _ in range(ahead):
        home(backward())
    return gradient
"""

RIGHT = {
    "shift": {
        "rank 0 receives first": SHIFT
        + """
    if rank == 0:
        dist.recv(got, left)
    dist.send(x, right)
    if rank > 0:
        dist.recv(got, left)
    return got
""",
        "even ranks send first": SHIFT
        + """
    for turn in (0, 1):
        if rank % 2 == turn:
            dist.send(x, dst=right)
        else:
            dist.recv(got, src=left)
    return got
""",
    },
    "hand_out": {
        "a loop of sends": """
def hand_out(x, dist):
    if dist.get_rank() == 0:
        for dst in range(1, dist.get_world_size()):
            dist.send(x, dst=dst)
    else:
        dist.recv(x, src=0)
    return x
""",
    },
    "average": {
        "the bad ones are gathered and left out": """
def average(gradient, dist):
    everyone = [torch.empty_like(gradient) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, gradient)
    good = [each for each in everyone if each.isfinite().all()]
    return sum(good, torch.zeros_like(gradient)) / max(1, len(good))
""",
    },
    "relay": {
        "a box a message": RELAY
        + """
    boxes, works = [block.clone() for block in blocks], []
    for box, each in zip(boxes, got):
        works += dist.batch_isend_irecv([dist.P2POp(dist.isend, box, right), dist.P2POp(dist.irecv, each, left)])
    for work in works:
        work.wait()
    return got
""",
    },
    "pipeline": {
        "one generator for a stage": """
def pipeline(batches, weight, dist):
    rank, last, count = dist.get_rank(), dist.get_world_size() - 1, len(batches)
    inputs, gradient = [], torch.zeros_like(weight)

    def receive(src):
        x = torch.empty_like(weight)
        dist.recv(x, src=src)
        return x

    ahead = min(last - rank, count)
    steps = ["F"] * ahead + ["F", "B"] * (count - ahead) + ["B"] * ahead
    coming, late = list(batches) if rank == 0 else [None] * count, None
    for place, step in enumerate(steps):
        if step == "F":
            x = coming.pop(0)
            x = receive(rank - 1) if x is None else x
            if late is not None:
                dist.send(late, dst=rank - 1)
                late = None
            inputs.append(x)
            if rank < last:
                dist.send(weight * x, dst=rank + 1)
        else:
            x = inputs.pop(0)
            g = receive(rank + 1) if rank < last else weight * x
            gradient += g * x
            if rank > 0 and "F" in steps[place + 1 :]:
                late = weight * g
            elif rank > 0:
                dist.send(weight * g, dst=rank - 1)
    return gradient
""",
    },
}

WRONG = {
    "shift": {
        "catches everything, for ever": (
            "def shift(x, dist):\n    while True:\n        try:\n            x = x + 1\n        except:\n            pass",
            "had not ended",
        ),
        "writes on what it was given": (writing_on_what_it_was_given(BATCH, "shift"), "has changed what it was given"),
        "the first work alone": (
            BATCH.replace("    for work in dist.batch", "    works = dist.batch").replace(
                "):\n        work.wait()", ")\n    works[0].wait()"
            ),
            "on 3 ranks, .*run once more: rank 0 never waited for its irecv from rank 2",
        ),
        "torch's own P2POp": (
            "from torch.distributed import P2POp\n" + BATCH.replace("dist.P2POp", "P2POp"),
            "it calls torch.distributed itself: take all from the `dist` that it is given",
        ),
        "no communication": (
            "def shift(x, dist):\n    return x.clone()",
            r"rank . returned \[0\] and should return \[10\]: .*rank 1 is missing",
        ),
        "the wrong way round": (
            BATCH.replace("isend, x, right", "isend, x, left").replace("irecv, got, left", "irecv, got, right"),
            r"on 3 ranks, .*rank . returned",
        ),
        "right on two ranks": (BATCH.replace("right)", "rank ^ 1)").replace("left)", "rank ^ 1)"), r"on 3 ranks, "),
        "right on four ranks": (BATCH.replace("% size", "% 4"), r"on 2 ranks, "),
        "right for rank 0 alone": (
            SHIFT + "    dist.broadcast(got.copy_(x), src=size - 1)\n    return got\n",
            "it calls a collective of torch's",
        ),
        "right for one number": (
            BATCH.replace("x, right", "x[:1], right").replace("got = torch.empty_like(x)", "got = torch.empty_like(x[:1])"),
            r"returned a tensor of shape \(1,\) and should return \(2,\)",
        ),
        "the first answer, learnt by heart": (
            """
def shift(x, dist):
    rank, size = dist.get_rank(), dist.get_world_size()
    return torch.tensor([10.0 * ((rank - 1) % size) + i for i in range(len(x))])
""",
            "the numbers are right, but rank 0 sent nothing: one message, to rank 1, was wanted",
        ),
        "nobody waits": (BATCH.replace("work.wait()", "pass"), r"rank 0 never waited for its isend to rank 1"),
        "isend, then a blocking recv": (
            SHIFT
            + """
    work = dist.isend(x, right)
    dist.recv(got, left)
    work.wait()
    return got
""",
            r"rank 0 runs isend to rank 1  .*, and rank 1's receive  \[shift, line 7.*\] waits in the queue behind its own isend to rank 0",
        ),
        "isend and irecv, not batched": (
            SHIFT
            + """
    for work in [dist.isend(x, right), dist.irecv(got, left)]:
        work.wait()
    return got
""",
            "deadlock by NCCL's rules",
        ),
        "one tensor for both": (
            BATCH.replace("irecv, got", "irecv, x").replace("return got", "return x"),
            "rank 0 changes the buffer that it is sending to rank 1",
        ),
        "both ways round": (
            SHIFT
            + """
    other = torch.empty_like(x)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, right), dist.P2POp(dist.isend, x, left),
                                        dist.P2POp(dist.irecv, got, left), dist.P2POp(dist.irecv, other, right)]):
        work.wait()
    return got
""",
            "rank 0 sent 2 messages.*one message, to rank 1, was wanted",
        ),
        "nothing is returned": (
            BATCH.replace("return got", ""),
            r"rank 0 returned nothing and should return a tensor of shape \(1,\)",
        ),
        "one message too many": (
            BATCH.replace("    return got", "    if rank == 1:\n        dist.isend(x, 0)\n    return got"),
            "never received them|NCCL's rules|never waited",
        ),
        "all hang": (
            SHIFT + "    dist.send(x, dst=right)\n    dist.recv(got, src=left)\n    return got\n",
            "they wait in a circle",
        ),
        "a loop": ("def shift(x, dist):\n    while True:\n        pass", "had not ended after"),
        "an error": (
            SHIFT + "    return got + missing",
            r"NameError: name 'missing' is not defined  \[shift, line \d+: return got \+ missing\]",
        ),
    },
    "hand_out": {
        "nothing is returned": (
            "def hand_out(x, dist):\n    dist.broadcast(x, src=0)",
            "rank 0 returned nothing and should return a tensor",
        ),
        "no communication": ("def hand_out(x, dist):\n    return x", r"rank . returned \[10\] and should return \[0\]"),
        "a sum": (
            "def hand_out(x, dist):\n    dist.all_reduce(x)\n    return x",
            r"rank . returned \[10\] and should return \[0\]",
        ),
        "the wrong root": ("def hand_out(x, dist):\n    dist.broadcast(x, src=1)\n    return x", r"rank . returned \[10\]"),
        "three guests, always": (
            """
def hand_out(x, dist):
    if dist.get_rank() == 0:
        for dst in (1, 2, 3):
            dist.send(x, dst=dst)
    else:
        dist.recv(x, src=0)
    return x
""",
            r"hand_out, on 2 ranks, .*rank 2",
        ),
        "only rank 1": (
            """
def hand_out(x, dist):
    if dist.get_rank() == 0:
        dist.send(x, dst=1)
    elif dist.get_rank() == 1:
        dist.recv(x, src=0)
    return x
""",
            r"on 3 ranks, .*rank . returned",
        ),
    },
    "average": {
        "everyone, bad ones too": (
            """
def average(gradient, dist):
    total = gradient.clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()
""",
            r"rank . returned \[.*nan.*\] and should return",
        ),
        "divided by all": (
            MEAN + "    dist.all_reduce(total)\n    return total / dist.get_world_size()\n",
            r"on 2 ranks, .*nan or infinity on rank 1: rank . returned .*everything is half of what it should be; there are 2 ranks",
        ),
        "the count is not summed": (
            MEAN + "    dist.all_reduce(total)\n    return total / count.clamp(min=1)\n",
            r"rank . returned",
        ),
        "nothing for nobody": (
            MEAN + "    dist.all_reduce(total)\n    dist.all_reduce(count)\n    return total / count\n",
            r"on 3 ranks, .*rank . returned \[nan, nan\]",
        ),
        "the bad rank keeps its own": (
            MEAN
            + """
    dist.all_reduce(total)
    dist.all_reduce(count)
    return total / count.clamp(min=1) if good else gradient
""",
            r"rank . returned \[.*nan.*\]",
        ),
        "the bad rank stays away": (
            """
def average(gradient, dist):
    if gradient.isfinite().all():
        dist.all_reduce(gradient)
        gradient /= dist.get_world_size()
    return gradient
""",
            "rank 1, which has finished",
        ),
    },
    "relay": {
        "writes on what it was given": (writing_on_what_it_was_given(ONE_BATCH, "relay"), "has changed what it was given"),
        "with a barrier": (with_a_barrier(ONE_BATCH, "relay"), "it calls a collective of torch's"),
        "the last work alone": (
            ONE_BATCH.replace("    for work in dist.batch", "    works = dist.batch").replace(
                ":\n        work.wait()", "\n    works[-1].wait()"
            ),
            "run once more: rank 0 never waited for its isend",
        ),
        "wait after each isend": (
            RELAY
            + """
    for block, each in zip(blocks, got):
        dist.isend(block, dst=right).wait()
        dist.recv(each, src=left)
    return got
""",
            "they wait in a circle",
        ),
        "a box that is used twice": (
            RELAY
            + """
    box, works = torch.empty_like(blocks[0]), []
    for block, each in zip(blocks, got):
        box.copy_(block)
        works += dist.batch_isend_irecv([dist.P2POp(dist.isend, box, right), dist.P2POp(dist.irecv, each, left)])
    for work in works:
        work.wait()
    return got
""",
            r"changes the buffer that it is sending",
        ),
        "no communication": (
            "def relay(blocks, dist):\n    return blocks",
            "rank . returned .* and should return .* is missing",
        ),
        "read before the wait": (
            ONE_BATCH
            .replace("for work in dist", "works = dist")
            .replace(
                "(operations):\n        work.wait()",
                """(operations)
    copy = got.clone()
    for work in works:
        work.wait()""",
            )
            .replace("return got", "return copy"),
            r"reads the buffer for a message from rank",
        ),
        "in one message": (
            RELAY
            + """
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, blocks, right), dist.P2POp(dist.irecv, got, left)]):
        work.wait()
    return got
""",
            "rank 0 sent 1 message: one for each of its 2 blocks, to rank 1, was wanted",
        ),
        "the first block alone": (
            ONE_BATCH.replace("in blocks]", "in blocks[:1]]").replace("in got]", "in got[:1]]"),
            r"rank . returned \[.*nan",
        ),
        "separate isend and irecv": (
            RELAY
            + """
    works = [dist.irecv(each, src=left) for each in got] + [dist.isend(block, dst=right) for block in blocks]
    for work in works:
        work.wait()
    return got
""",
            "deadlock by NCCL's rules",
        ),
        "by tags, in another order": (
            RELAY
            + """
    works = [dist.isend(block, dst=right, tag=i) for i, block in enumerate(blocks)]
    for i, each in reversed(list(enumerate(got))):
        dist.recv(each, src=left, tag=i)
    for work in works:
        work.wait()
    return got
""",
            "NCCL's rules",
        ),
    },
    "pipeline": {
        "writes on what it was given": (
            writing_on_what_it_was_given(RIGHT["pipeline"]["one generator for a stage"], "pipeline"),
            "has changed what it was given",
        ),
        "with a barrier": (
            with_a_barrier(RIGHT["pipeline"]["one generator for a stage"], "pipeline"),
            "it calls a collective of torch's",
        ),
        "no communication": (
            "def pipeline(batches, weight, dist):\n    return batches.sum(0)",
            "rank [0-3] returned .* and should return",
        ),
        "all forwards first": (
            STAGE + SCHEDULE.replace("min(last - rank, count)", "count"),
            "rank 0 had 4 micro-batches under way at once, .* one forward, one backward needs 2",
        ),
        "one batch at a time": (
            STAGE
            + """
    for number in range(count):
        forward(arrive(number))
        home(backward())
    return gradient
""",
            "rank 0 never had more than 1 micro-batch under way",
        ),
        "the gradient before the next activation": (
            STAGE
            + SCHEDULE.replace(
                "        x = arrive(number + 1)\n        home(g)", "        home(g)\n        x = arrive(number + 1)"
            ),
            "they wait in a circle",
        ),
        "an isend for the gradient": (
            STAGE.replace(
                "            dist.send(g, dst=rank - 1)", "            works.append(dist.isend(g, dst=rank - 1))"
            ).replace("kept, gradient, count = [],", "works, kept, gradient, count = [], [],")
            + SCHEDULE.replace(
                "        x = arrive(number + 1)\n        home(g)", "        home(g)\n        x = arrive(number + 1)"
            ).replace("    return", "    for work in works:\n        work.wait()\n    return"),
            "deadlock by NCCL's rules",
        ),
        "gradients stay at home": (
            STAGE.replace("            dist.send(g, dst=rank - 1)", "            pass").replace(
                "            dist.recv(g, src=rank + 1)", "            pass"
            )
            + SCHEDULE,
            "rank . returned",
        ),
        "the activations are dropped": (
            STAGE.replace("            dist.send(weight * x, dst=rank + 1)", "            pass") + SCHEDULE,
            "rank 1 waits to receive from rank 0",
        ),
        "a sum of the wrong batch": (STAGE.replace("kept.pop(0)", "kept.pop()") + SCHEDULE, "rank . returned"),
    },
}
