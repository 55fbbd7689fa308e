"""Answers to the lab "A first evening": a ring with its three blanks filled, rightly and wrongly."""

from . import ring_all_reduce as ring

FILLED = """
def ring_all_reduce(x, dist):
    total = x.clone()
    rank, size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    chunks = total.tensor_split(size)

    for step in range(size - 1):
        out = chunks[(rank - step) % size]
        mine = chunks[(rank - step - 1) % size]
        got = torch.empty_like(mine)
        for work in dist.batch_isend_irecv([
            dist.P2POp(dist.isend, out, right),
            dist.P2POp(dist.irecv, got, left),
        ]):
            work.wait()
        mine.add_(got)

    for step in range(size - 1):
        out, mine = chunks[(rank + 1 - step) % size], chunks[(rank - step) % size]
        for work in dist.batch_isend_irecv([
            dist.P2POp(dist.isend, out, right),
            dist.P2POp(dist.irecv, mine, left),
        ]):
            work.wait()
    return total
"""

MEAN = """
def mean_loss(loss, dist):
    total = loss.clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()
"""
GATHERED = """
def mean_loss(loss, dist):
    rows = [torch.empty_like(loss) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, loss)
    return torch.stack(rows).sum(0) / dist.get_world_size()
"""
CALL, DIVIDE = "    dist.all_reduce(total)\n", "total / dist.get_world_size()"

RIGHT = {
    "mean_loss": {"by all_gather": GATHERED},
    "ring_all_reduce": {"with add_": FILLED, "as walks over rings": ring.RINGS},
}

FIRST, OUT = "mine = chunks[(rank - step - 1) % size]", "chunks[(rank + 1 - step) % size], chunks[(rank - step) % size]"
WRONG = {
    "mean_loss": {
        "rank 0 alone calls": (
            MEAN.replace(CALL, "    if dist.get_rank() == 0:\n        dist.all_reduce(total)\n"),
            r"rank 0 waits .*dist\.all_reduce",
        ),
        "all but rank 0 call": (
            MEAN.replace(CALL, "    if dist.get_rank() > 0:\n        dist.all_reduce(total)\n"),
            r"rank 1 waits .*dist\.all_reduce",
        ),
        "nobody calls": (MEAN.replace(CALL, ""), "the part of rank|returned"),
        "the sum": (MEAN.replace(DIVIDE, "total"), "returned"),
        "the largest": (MEAN.replace("all_reduce(total)", "all_reduce(total, op=dist.ReduceOp.MAX)"), "returned"),
        "divided by four": (MEAN.replace(DIVIDE, "total / 4"), "on 2 ranks"),
        "in place": (MEAN.replace("loss.clone()", "loss"), "rank 0 has changed what it was given"),
        "a number": (MEAN.replace(DIVIDE, f"({DIVIDE}).item()"), "returned"),
        "reduced to rank 0 alone": (MEAN.replace("all_reduce(total)", "reduce(total, dst=0)"), "returned|counts"),
    },
    "ring_all_reduce": {
        "adds to the chunk that it sent": (
            FILLED.replace("mine.add_(got)", "out.add_(got)"),
            "the part of rank|counts 2 times",
        ),
        "overwrites where it should add": (FILLED.replace("mine.add_(got)", "mine.copy_(got)"), "the part of rank"),
        "does nothing with what came": (FILLED.replace("mine.add_(got)", "pass"), "the part of rank"),
        "adds a copy": (FILLED.replace("mine.add_(got)", "mine = mine + got"), "the part of rank"),
        "receives the chunk that it sends": (FILLED.replace(FIRST, "mine = chunks[(rank - step) % size]"), "returned|numbers"),
        "receives the next chunk": (FILLED.replace(FIRST, "mine = chunks[(rank - step + 1) % size]"), "returned|numbers"),
        "hands out its own chunk first": (
            FILLED.replace(OUT, "chunks[(rank - step) % size], chunks[(rank - step - 1) % size]"),
            "the part of rank",
        ),
        "hands out in the other order": (
            FILLED.replace(OUT, "chunks[(rank - step) % size], chunks[(rank + 1 - step) % size]"),
            "the part of rank|returned|numbers",
        ),
        "forgets the modulo": (FILLED.replace("chunks[(rank + 1 - step) % size]", "chunks[rank + 1 - step]"), "IndexError"),
        "whole tensors round the ring": (ring.GATHER, "Not yet within the target"),
    },
}
