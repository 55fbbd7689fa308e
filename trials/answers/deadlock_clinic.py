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
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, left), dist.P2POp(dist.irecv, got, right)]):
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
RIGHT = {
    "shift": {
        "rank 0 receives first": SHIFT
        + """
    if rank == 0:
        dist.recv(got, right)
    dist.send(x, left)
    if rank > 0:
        dist.recv(got, right)
    return got
""",
        "even ranks send first": SHIFT
        + """
    for turn in (0, 1):
        if rank % 2 == turn:
            dist.send(x, dst=left)
        else:
            dist.recv(got, src=right)
    return got
""",
    },
    "hand_out": {
        "a loop of sends": """
def hand_out(x, dist):
    last = dist.get_world_size() - 1
    if dist.get_rank() == last:
        for dst in range(last):
            dist.send(x, dst=dst)
    else:
        dist.recv(x, src=last)
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
}

WRONG = {
    "shift": {
        "catches everything, forever": (
            "def shift(x, dist):\n    while True:\n        try:\n            x = x + 1\n        except:\n            pass",
            "had not ended",
        ),
        "writes on what it was given": (writing_on_what_it_was_given(BATCH, "shift"), "has changed what it was given"),
        "the first work alone": (
            BATCH.replace("    for work in dist.batch", "    works = dist.batch").replace(
                "):\n        work.wait()", ")\n    works[0].wait()"
            ),
            "on 3 ranks, .*run once more: rank 0 never waited for its irecv from rank 1",
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
            BATCH.replace("isend, x, left", "isend, x, right").replace("irecv, got, right", "irecv, got, left"),
            r"on 3 ranks, .*rank . returned",
        ),
        "right on two ranks": (BATCH.replace("right)", "rank ^ 1)").replace("left)", "rank ^ 1)"), r"on 3 ranks, "),
        "right on four ranks": (BATCH.replace("% size", "% 4"), r"on 2 ranks, "),
        "right for rank 0 alone": (
            SHIFT + "    dist.broadcast(got.copy_(x), src=size - 1)\n    return got\n",
            "it calls a collective of torch's",
        ),
        "right for one number": (
            BATCH.replace("x, left", "x[:1], left").replace("got = torch.empty_like(x)", "got = torch.empty_like(x[:1])"),
            r"returned a tensor of shape \(1,\) and should return \(2,\)",
        ),
        "the first answer, learnt by heart": (
            """
def shift(x, dist):
    rank, size = dist.get_rank(), dist.get_world_size()
    return torch.tensor([10.0 * ((rank - 1) % size) + i for i in range(len(x))])
""",
            "the numbers are right, but rank 0 sent nothing: send one message, to rank 1",
        ),
        "nobody waits": (BATCH.replace("work.wait()", "pass"), r"rank 0 never waited for its isend to rank 1"),
        "isend, then a blocking recv": (
            SHIFT
            + """
    work = dist.isend(x, left)
    dist.recv(got, right)
    work.wait()
    return got
""",
            r"rank 0 runs isend to rank 1  .*, and rank 1's receive  \[shift, line 7.*\] waits in the queue behind its own isend to rank 0",
        ),
        "isend and irecv, not batched": (
            SHIFT
            + """
    for work in [dist.isend(x, left), dist.irecv(got, right)]:
        work.wait()
    return got
""",
            "deadlock under NCCL's rules",
        ),
        "one tensor for both": (
            BATCH.replace("irecv, got", "irecv, x").replace("return got", "return x"),
            "rank 0 sends from and receives into the same memory in one batch",
        ),
        "both ways round": (
            SHIFT
            + """
    other = torch.empty_like(x)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, left), dist.P2POp(dist.isend, x, right),
                                        dist.P2POp(dist.irecv, got, right), dist.P2POp(dist.irecv, other, left)]):
        work.wait()
    return got
""",
            "rank 0 sent 2 messages.*send one message, to rank 1",
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
            SHIFT + "    dist.send(x, dst=left)\n    dist.recv(got, src=right)\n    return got\n",
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
            "def hand_out(x, dist):\n    dist.broadcast(x, src=dist.get_world_size() - 1)",
            "rank 0 returned nothing and should return a tensor",
        ),
        "no communication": ("def hand_out(x, dist):\n    return x", r"rank . returned \[.*0\] and should return \[10\]"),
        "a sum": (
            "def hand_out(x, dist):\n    dist.all_reduce(x)\n    return x",
            "on . ranks, .*rank . returned",
        ),
        "the wrong root": (
            "def hand_out(x, dist):\n    dist.broadcast(x, src=0)\n    return x",
            r"rank . returned \[0\] and should return \[10\]",
        ),
        "three guests, always": (
            """
def hand_out(x, dist):
    last = dist.get_world_size() - 1
    if dist.get_rank() == last:
        for dst in (0, 1, 2):
            dist.send(x, dst=dst)
    else:
        dist.recv(x, src=last)
    return x
""",
            r"hand_out, on 2 ranks, .*rank 1 wants to send to itself",
        ),
        "only rank 0": (
            """
def hand_out(x, dist):
    last = dist.get_world_size() - 1
    if dist.get_rank() == last:
        dist.send(x, dst=0)
    elif dist.get_rank() == 0:
        dist.recv(x, src=last)
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
            "rank 0 sent 1 message: send one for each of its 2 blocks, to rank 1",
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
            "deadlock under NCCL's rules",
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
}
