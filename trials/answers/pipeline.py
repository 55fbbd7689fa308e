"""Answers to the lab "Pipeline"."""

from . import with_a_barrier, writing_on_what_it_was_given

CUT = """
def cut(milliseconds, size):
    sums = sorted({sum(milliseconds[i:j]) for i in range(len(milliseconds)) for j in range(i + 1, len(milliseconds) + 1)})
    for most in sums:
        counts, room = [], 0
        for number, each in enumerate(milliseconds):
            if each > room or len(milliseconds) - number == size - len(counts):
                counts.append(0)
                room = most
            counts[-1] += 1
            room -= each
        if len(counts) == size and max(milliseconds) <= most:
            return counts
"""
CUT_BY_TABLE = '''
from functools import cache

def cut(milliseconds, size):
    """The least slowest stage of the first `end` layers in `stages` stages, and how the last of them is cut."""
    @cache
    def best(end, stages):
        if stages == 1:
            return sum(milliseconds[:end]), (end,)
        found = []
        for last in range(1, end - stages + 2):
            slowest, counts = best(end - last, stages - 1)
            found.append((max(slowest, sum(milliseconds[end - last : end])), (*counts, last)))
        return min(found)
    return list(best(len(milliseconds), size)[1])
'''
EVEN = """
def cut(milliseconds, size):
    count = len(milliseconds)
    return [count * (n + 1) // size - count * n // size for n in range(size)]
"""
GREEDY = '''
def cut(milliseconds, size):
    """Each stage up to its even share of the time."""
    counts, share, so_far = [0], sum(milliseconds) / size, 0
    for number, each in enumerate(milliseconds):
        must = len(milliseconds) - number == size - len(counts)
        if counts[-1] and len(counts) < size and (must or so_far + each / 2 > share * len(counts)):
            counts.append(0)
        counts[-1] += 1
        so_far += each
    return counts
'''
NEARLY = (
    CUT.replace("def cut", "def best_cut")
    + '''
def cut(milliseconds, size):
    """The best cut, but for a layer that lies a stage too far where that costs less than a third."""
    best = best_cut(milliseconds, size)
    for stage in range(size - 1):
        for way in (1, -1):
            other = list(best)
            other[stage] += way
            other[stage + 1] -= way
            if min(other) > 0 and slowest(milliseconds, best) < slowest(milliseconds, other) <= 1.3 * slowest(milliseconds, best):
                return other
    return best

def slowest(milliseconds, counts):
    return max(sum(milliseconds[sum(counts[:n]) : sum(counts[: n + 1])]) for n in range(len(counts)))
'''
)
ORDERS = """
def orders(size, count):
    return [order(rank, size, count) for rank in range(size)]

def order(rank, size, count):
    ahead = min(size - 1 - rank, count)
    texts = [f"F{i}" for i in range(ahead)]
    for i in range(count - ahead):
        texts += [f"F{ahead + i}", f"B{i}"]
    return texts + [f"B{i}" for i in range(count - ahead, count)]
"""
ORDERS_BY_TURNS = '''
def orders(size, count):
    """By what is held: forward as long as it may, else backward."""
    found = []
    for rank in range(size):
        forward = backward = 0
        texts = []
        while backward < count:
            if forward < count and forward - backward < size - rank:
                texts.append(f"F{forward}")
                forward += 1
            else:
                texts.append(f"B{backward}")
                backward += 1
        found.append(tuple(texts))
    return tuple(found)
'''
GPIPE = """
def orders(size, count):
    return [[f"{kind}{i}" for kind in "FB" for i in range(count)] for rank in range(size)]
"""
ONE_BY_ONE = """
def orders(size, count):
    return [[f"{kind}{i}" for i in range(count) for kind in "FB"] for rank in range(size)]
"""
STEP = """
def train_step(stage, count, inputs, loss_of, like, dist):
    rank, size = dist.get_rank(), dist.get_world_size()
    ahead = min(size - 1 - rank, count)
    order = [("F", i) for i in range(ahead)]
    for i in range(count - ahead):
        order += [("F", ahead + i), ("B", i)]
    order += [("B", i) for i in range(count - ahead, count)]
    held, losses = {}, []

    def exchange(out, kind, then):
        batch, got = [], None
        to = rank + 1 if kind == "F" else rank - 1
        if out is not None and 0 <= to < size:
            batch.append(dist.P2POp(dist.isend, out, to))
        if then:
            source = rank - 1 if then[0] == "F" else rank + 1
            if 0 <= source < size:
                got = torch.empty_like(like)
                batch.append(dist.P2POp(dist.irecv, got, source))
        for work in dist.batch_isend_irecv(batch) if batch else ():
            work.wait()
        return got

    got = exchange(None, "F", order[0])
    for (kind, i), then in zip(order, [*order[1:], None]):
        if kind == "F":
            x = inputs[i] if rank == 0 else got.requires_grad_()
            y = stage(x)
            if rank == size - 1:
                y = loss_of(y, i) / count
                losses.append(y.detach())
            held[i] = x, y
            out = y.detach()
        else:
            x, y = held.pop(i)
            y.backward(got if rank < size - 1 else None)
            out = x.grad
        got = exchange(out, kind, then)
    return sum(losses) if losses else None
"""
STEP_BY_PHASES = '''
from collections import deque

class Stage:
    """Warm-up, middle and end each in a loop of their own; what is held is a queue."""

    def __init__(self, stage, count, inputs, loss_of, like, dist):
        self.stage, self.count, self.inputs, self.loss_of, self.like, self.dist = stage, count, deque(inputs), loss_of, like, dist
        self.rank, self.last = dist.get_rank(), dist.get_world_size() - 1
        self.kept, self.done, self.loss = deque(), 0, 0.0

    def swap(self, *messages):
        """messages: (tensor or None to receive, rank); returns what came."""
        got, batch = None, []
        for tensor, peer in messages:
            if 0 <= peer <= self.last:
                if tensor is None:
                    got = tensor = torch.empty_like(self.like)
                    batch.append(self.dist.P2POp(self.dist.irecv, tensor, peer))
                else:
                    batch.append(self.dist.P2POp(self.dist.isend, tensor, peer))
        if batch:
            [work.wait() for work in self.dist.batch_isend_irecv(batch)]
        return got

    def forward(self, x):
        x = self.inputs.popleft() if self.rank == 0 else x.requires_grad_()
        y = self.stage(x)
        if self.rank == self.last:
            y = self.loss_of(y, self.done) / self.count
            self.loss = self.loss + y.detach()
        self.done += 1
        self.kept.append((x, y))
        return y.detach()

    def backward(self, gradient):
        x, y = self.kept.popleft()
        torch.autograd.backward(y, gradient)
        return x.grad

    def run(self):
        before, behind = self.rank - 1, self.rank + 1
        ahead = min(self.last - self.rank, self.count)
        x = self.swap((None, before))
        for _ in range(ahead):
            y = self.forward(x)
            last = self.done == self.count
            x = self.swap((y, behind), (None, behind if last else before))
        gradient = x
        for i in range(ahead, self.count):
            gradient = self.swap((self.forward(x), behind), (None, behind))
            back = self.backward(gradient)
            if i + 1 < self.count:
                x = self.swap((back, before), (None, before))
            else:
                gradient = self.swap((back, before), (None, behind)) if ahead else self.swap((back, before))
        for left in reversed(range(ahead)):
            back = self.backward(gradient)
            gradient = self.swap((back, before), (None, behind)) if left else self.swap((back, before))
        return self.loss

def train_step(*given):
    return Stage(*given).run()
'''
GPIPE_STEP = STEP.replace("    ahead = min(size - 1 - rank, count)\n", "    ahead = count\n")
WAITING = '''
def train_step(stage, count, inputs, loss_of, like, dist):
    """All forward, all backward, message by message; lower ranks of a pair send first."""
    rank, size = dist.get_rank(), dist.get_world_size()
    held, total = [], 0
    for i in range(count):
        x = inputs[i] if rank == 0 else torch.empty_like(like)
        if rank:
            dist.recv(x, rank - 1)
        y = stage(x.requires_grad_())
        if rank < size - 1:
            dist.send(y.detach(), rank + 1)
        else:
            y = loss_of(y, i) / count
            total = total + y.detach()
        held.append((x, y))
    for x, y in held:
        gradient = None
        if rank < size - 1:
            gradient = torch.empty_like(like)
            dist.recv(gradient, rank + 1)
        y.backward(gradient)
        if rank:
            dist.send(x.grad, rank - 1)
    return total
'''

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

FEWEST = """
import math

def fewest(size, most):
    return max(1, math.ceil((size - 1) * (1 - most) / most))
"""

RIGHT = {
    "fewest": {"by a formula": FEWEST},
    "cut": {"a table of the best": CUT_BY_TABLE},
    "orders": {"by what is held": ORDERS_BY_TURNS},
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
    "train_step": {"warm-up, middle and end": STEP_BY_PHASES},
}

WRONG = {
    "fewest": {
        "rounded down": (
            FEWEST.replace("math.ceil", "math.floor"),
            "4 ranks, idle for 0.4 at most: with 4 micro-batches .* 0.4286",
        ),
        "one more": (
            FEWEST.replace("max(1, ", "1 + max(0, "),
            "2 ranks, idle for 0.5 at most: returned 2, and 1 micro-batch will do",
        ),
        "no least": (FEWEST.replace("max(1, ", "max(0, "), "1 rank, idle for 0.1 at most: returned 0: return a whole number"),
        "p for p − 1": (FEWEST.replace("(size - 1)", "size"), "2 ranks, idle for 0.5 at most: returned 2, and"),
        "beside the work, not the step": (
            FEWEST.replace("* (1 - most) / most", "/ most"),
            "2 ranks, idle for 0.5 at most: returned 2, and",
        ),
        "a fraction": (
            FEWEST.replace("math.ceil", "float"),
            r"returned \d.\d+: return a whole number",
        ),
        "four a rank": (
            "def fewest(size, most):\n    return 4 * size",
            "2 ranks, idle for 0.5 at most: returned 8, and 7 micro-batches will do",
        ),
        "nothing": ("def fewest(size, most):\n    pass", "returned None: return a whole number"),
    },
    "cut": {
        "as many layers each": (
            EVEN,
            "Not yet within the target: layers of .* ms in . stages: with .* the slowest stage takes . ms, and . ms are possible",
        ),
        "an even share": (GREEDY, "Not yet (within the target|at the bound): .*the slowest stage takes"),
        "nearly": (NEARLY, "Not yet at the bound: .*the slowest stage takes"),
        "an empty stage": (
            "def cut(milliseconds, size):\n    return [len(milliseconds)] + [0] * (size - 1)",
            "a stage has one layer at least",
        ),
        "all the longest first": (
            CUT.replace("    sums", "    milliseconds = sorted(milliseconds, reverse=True)\n    sums"),
            "the slowest stage takes",
        ),
        "where to cut": (
            CUT.replace("            return counts", "            return [sum(counts[:n]) for n in range(1, size + 1)]"),
            "give 2 numbers, 2 layers in all",
        ),
        "the layers of each": (
            CUT.replace("            return counts", "            return [[1] * each for each in counts]"),
            "return a list of whole numbers",
        ),
        "fractions": (
            "def cut(milliseconds, size):\n    return [len(milliseconds) / size] * size",
            "return a list of whole numbers",
        ),
        "one stage too many": (
            CUT.replace("def cut(milliseconds, size):", "def cut(milliseconds, size):\n    size += 1"),
            "give 2 numbers|it had|TypeError|returned None",
        ),
        "forgets that every stage needs a layer": (
            CUT.replace(" or len(milliseconds) - number == size - len(counts)", ""),
            "returned None",
        ),
        "loops": ("def cut(milliseconds, size):\n    while True:\n        pass", "had not ended"),
    },
    "orders": {
        "GPipe": (
            GPIPE,
            "Not yet within the target: 2 ranks, 2 micro-batches: rank 1 holds 2 micro-batches at once, and 1 will do",
        ),
        "one at a time": (
            ONE_BY_ONE,
            "Not yet at the bound: 2 ranks, 2 micro-batches: the step takes as long as 12 forward passes, and 9 are possible",
        ),
        "one ahead too few": (
            ORDERS.replace("size - 1 - rank", "max(0, size - 2 - rank)"),
            "Not yet at the bound: .*the step takes as long as",
        ),
        "one ahead too many": (ORDERS.replace("size - 1 - rank", "size - rank"), "Not yet within the target: .*rank . holds"),
        "all alike": (ORDERS.replace("size - 1 - rank", "size - 1"), "Not yet within the target: .*rank 1 holds"),
        "with the ranks counted from behind": (
            ORDERS.replace("size - 1 - rank", "rank"),
            "rank 0 and rank 1 do not fit together|Not yet within the target",
        ),
        "few micro-batches forgotten": (
            ORDERS.replace("min(size - 1 - rank, count)", "size - 1 - rank"),
            "give F or B|passes once",
        ),
        "the last one first": (
            ORDERS.replace(
                """[f"B{i}" for i in range(count - ahead, count)]""",
                """[f"B{i}" for i in reversed(range(count - ahead, count))]""",
            ),
            "do not fit together|Not yet at the bound",
        ),
        "each rank with an order of its own": (
            """
def orders(size, count):
    forward = [f"F{i}" for i in range(count)]
    return [forward + [f"B{i}" for i in range(count)][:: 1 if rank % 2 else -1] for rank in range(size)]
""",
            "Not yet|do not fit together",
        ),
        "the last rank backwards": (
            GPIPE.replace(
                "for rank in range(size)]",
                'for rank in range(size - 1)] + [[f"{kind}{i}" for i in range(count) for kind in "BF"]]',
            ),
            "has B0 before F0",
        ),
        "receives in another order": (
            GPIPE.replace("for i in range(count)]", "for i in (range(count) if rank % 2 == 0 else range(count - 1, -1, -1))]"),
            "Not yet within the target: .*holds",
        ),
        "waits for one another": (
            """
def orders(size, count):
    if size == 1 or count == 1:
        return [[f"{kind}{i}" for kind in "FB" for i in range(count)]] * size
    good = [[f"{kind}{i}" for i in range(count) for kind in "FB"] for rank in range(size)]
    good[1] = ["F1", "B1", "F0", "B0"] + good[1][4:]
    return good
""",
            "rank 0 and rank 1 do not fit together: each waits for an action that comes later in the other.s list",
        ),
        "of one rank alone": (
            "def orders(size, count):\n    return [f'F{i}' for i in range(count)] + [f'B{i}' for i in range(count)]",
            "return 1 list, one for each rank|return 2 lists",
        ),
        "tuples": (ORDERS.replace('f"F{i}"', '("F", i)'), "give F or B and the number of a micro-batch"),
        "stages before": (ORDERS.replace('f"F{i}"', 'f"{rank}F{i}"'), "give F or B and the number of a micro-batch"),
        "from 1 on": (
            ORDERS.replace("F{", "F{1 + ").replace("B{", "B{1 + "),
            "rank 0 takes \\[1\\] forward: each of 1 micro-batch passes once",
        ),
        "no way back": (
            "def orders(size, count):\n    return [[f'F{i}' for i in range(count)]] * size",
            "rank 0 takes \\[\\] backward: each of 1 micro-batch passes once",
        ),
        "loops": ("def orders(size, count):\n    while True:\n        pass", "had not ended"),
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
            "deadlock under NCCL's rules",
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
    "train_step": {
        "GPipe": (
            GPIPE_STEP,
            "Not yet at the bound: on 2 ranks, .*3 micro-batches: [12] micro-batch(es)? more than p − r on a rank|Not yet at the bound: .*more than p − r on a rank, where 0 are enough",
        ),
        "all forward, message by message": (WAITING, "Not yet"),
        "one at a time": (
            STEP.replace("    ahead = min(size - 1 - rank, count)\n", "    ahead = 0\n"),
            "Not yet within the target: .*from the first start to the last end",
        ),
        "one ahead too few": (
            STEP.replace("min(size - 1 - rank, count)", "min(max(0, size - 2 - rank), count)"),
            "Not yet (within the target|at the bound): .*from the first start to the last end",
        ),
        "losses added": (STEP.replace(" / count", ""), "3 micro-batches: rank 0 has the gradient"),
        "the loss of the last": (STEP.replace("sum(losses)", "losses[-1] * count"), "rank 1 has the loss"),
        "the loss a number": (STEP.replace("sum(losses)", "float(sum(losses))"), "it returned float on the last rank"),
        "no loss": (STEP.replace("    return sum(losses) if losses else None\n", ""), "it returned NoneType on the last rank"),
        "no gradient for what came": (STEP.replace("got.requires_grad_()", "got"), "AttributeError|NoneType|rank . "),
        "the first loss again": (STEP.replace("loss_of(y, i)", "loss_of(y, 0)"), "3 micro-batches: rank 0 has the gradient"),
        "backward in the other order": (STEP.replace("held.pop(i)", "held.pop(max(held))"), "rank 0 has the gradient"),
        "the first rank alone right": (
            STEP.replace("got.requires_grad_()", "torch.ones_like(got).requires_grad_()"),
            "has the gradient",
        ),
        "send, then receive": (
            STEP.replace(
                """        for work in dist.batch_isend_irecv(batch) if batch else ():
            work.wait()
""",
                """        if out is not None and 0 <= to < size:
            dist.send(out, to)
        if got is not None:
            dist.recv(got, source)
""",
            ),
            "deadlock",
        ),
        "isend, then receive": (
            STEP.replace(
                """        for work in dist.batch_isend_irecv(batch) if batch else ():
            work.wait()
""",
                """        works = []
        if out is not None and 0 <= to < size:
            works.append(dist.isend(out, to))
        if got is not None:
            works.append(dist.irecv(got, source))
        for work in works:
            work.wait()
""",
            ),
            "deadlock under NCCL's rules",
        ),
        "one message after the other": (
            STEP.replace(
                """        for work in dist.batch_isend_irecv(batch) if batch else ():
            work.wait()
""",
                """        calls = []
        if out is not None and 0 <= to < size:
            calls.append((kind, dist.send, out, to))
        if got is not None:
            calls.append((then[0], dist.recv, got, source))
        for _, call, tensor, peer in sorted(calls, key=lambda each: each[0] == "B"):
            call(tensor, peer)
""",
            ),
            "Not yet at the bound: .*from the first start to the last end",
        ),
        "a missing wait": (STEP.replace("            work.wait()\n", "            pass\n"), "may not have arrived"),
        "whole batches": (
            STEP
            .replace(
                "def train_step(stage, count, inputs, loss_of, like, dist):",
                "def train_step(stage, count, inputs, loss_of, like, dist):\n    rows = like.shape[0]\n    like = torch.cat([like] * 2)",
            )
            .replace("out = y.detach()", "out = torch.cat([y.detach()] * 2) if y.dim() == 2 else None")
            .replace("got.requires_grad_()", "got[:rows].clone().requires_grad_()")
            .replace("y.backward(got if", "y.backward(got[:rows] if")
            .replace("out = x.grad", "out = torch.cat([x.grad] * 2)"),
            "Not yet within the target: .*through the busier port",
        ),
        "another dtype": (
            STEP.replace("            out = y.detach()", "            out = y.detach().float().double()"),
            "has the (gradient|loss)",
        ),
        "everything one rank too far": (
            STEP.replace("to = rank + 1 if", "to = rank + 2 if"),
            "can never finish|deadlock|waits",
        ),
        "a barrier in every turn": (
            STEP.replace("    got = exchange(None", "    dist.barrier()\n    got = exchange(None"),
            "calls a collective of torch's",
        ),
        "state between calls": (
            STEP.replace("def train_step", "losses = []\ndef train_step").replace("held, losses = {}, []", "held = {}"),
            "has the loss",
        ),
        "the chapter's": (
            """
from ringtree.parallel import pipeline
def train_step(stage, count, inputs, loss_of, like, dist):
    rank, size = dist.get_rank(), dist.get_world_size()
    rounds = pipeline.one_f_one_b(rank, size, count)
    losses = pipeline.step(rounds, {rank: stage}, size, inputs if rank == 0 else [None] * count, loss_of, like, dist)
    return sum(losses) / count if losses else None
""",
            "here you write it yourself",
        ),
        "the time taken away": (
            STEP.replace("def train_step", "def with_time")
            + """
from ringtree import compute
from ringtree.labs.harnesses import nets
def train_step(*given):
    nets.compute = lambda *given: None
    try:
        return with_time(*given)
    finally:
        nets.compute = compute
""",
            "leave alone what the layers do there",
        ),
        "rank 0 does not come": (
            STEP.replace("    got = exchange(None", "    if rank == 0:\n        return\n    got = exchange(None"),
            "has the gradient|can never finish|deadlock",
        ),
        "loops": (STEP.replace("    held, losses", "    while True:\n        pass\n    held, losses"), "had not ended after"),
    },
}
