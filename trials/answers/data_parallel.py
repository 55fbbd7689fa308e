"""Answers to the lab "Data parallel"."""

from . import with_a_barrier, writing_on_what_it_was_given

CUT = """
def buckets_of(tensors, nbytes):
    buckets, room = [], 0
    for tensor in reversed(tensors):
        if tensor.nbytes > room:
            buckets.append([])
            room = nbytes
        buckets[-1].append(tensor)
        room -= tensor.nbytes
    return buckets
"""
AVERAGE = (
    CUT
    + """
def average(gradients, nbytes, dist):
    means = []
    for bucket in buckets_of(gradients, nbytes):
        flat = torch.cat([each.flatten() for each in bucket])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        parts = flat.split([each.numel() for each in bucket])
        means += [part.view_as(each) for part, each in zip(parts, bucket)]
    return means[::-1]
"""
)
AVERAGE_AT_ONCE = '''
def average(gradients, nbytes, dist):
    """One vector with everything in it, of which buckets are views; all are started before any is waited for."""
    whole = torch.cat([each.reshape(-1) for each in gradients[::-1]]) / dist.get_world_size()
    ends, at, began = [], 0, 0
    for each in gradients[::-1]:
        if at > began and (at + each.numel() - began) * each.element_size() > nbytes:
            ends.append((began, at))
            began = at
        at += each.numel()
    works = [dist.all_reduce(whole[first:last], async_op=True) for first, last in [*ends, (began, at)]]
    for work in works:
        work.wait()
    cut = whole.split([each.numel() for each in gradients[::-1]])
    return [part.reshape(each.shape) for part, each in zip(cut[::-1], gradients)]
'''
OVERLAPPED = (
    CUT
    + """
def overlapped(parameters, nbytes, parts, dist):
    buckets = buckets_of(parameters, nbytes)
    number = {parameter: k for k, bucket in enumerate(buckets) for parameter in bucket}
    missing, under_way = [], []

    def begin():
        missing[:] = [parts * len(bucket) for bucket in buckets]
        under_way.clear()

    def filled(parameter):
        missing[number[parameter]] -= 1
        while len(under_way) < len(buckets) and missing[len(under_way)] == 0:
            bucket = buckets[len(under_way)]
            flat = torch.cat([each.grad.flatten() for each in bucket])
            under_way.append((flat, dist.all_reduce(flat, async_op=True)))

    def finish():
        for bucket, (flat, work) in zip(buckets, under_way):
            work.wait()
            flat /= dist.get_world_size()
            for each, part in zip(bucket, flat.split([each.numel() for each in bucket])):
                each.grad.copy_(part.view_as(each))
        begin()

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(filled)
    begin()
    return finish
"""
)
VIEWS = '''
class Averaging:
    """The gradients are views of the buckets from the start, as DDP's can be: nothing is copied."""

    def __init__(self, parameters, nbytes, parts, dist):
        self.dist, self.parts, self.flats, self.places = dist, parts, [], {}
        bucket = []
        for parameter in parameters[::-1]:
            if bucket and sum(each.nbytes for each in bucket) + parameter.nbytes > nbytes:
                self.close(bucket)
                bucket = []
            bucket.append(parameter)
        self.close(bucket)
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(self.came)
        self.ready()

    def close(self, bucket):
        flat = torch.zeros(sum(each.numel() for each in bucket), dtype=bucket[0].dtype)
        for each, view in zip(bucket, flat.split([each.numel() for each in bucket])):
            each.grad = view.view_as(each)
            self.places[each] = len(self.flats)
        self.flats.append(flat)

    def ready(self):
        self.works = []
        self.missing = [0] * len(self.flats)
        for place in self.places.values():
            self.missing[place] += self.parts

    def came(self, parameter):
        self.missing[self.places[parameter]] -= 1
        for flat, missing in list(zip(self.flats, self.missing))[len(self.works):]:
            if missing:
                return
            self.works.append(self.dist.all_reduce(flat, async_op=True))

    def finish(self):
        for work in self.works:
            work.wait()
        for flat in self.flats:
            flat /= self.dist.get_world_size()
        self.ready()

def overlapped(parameters, nbytes, parts, dist):
    return Averaging(parameters, nbytes, parts, dist).finish
'''
AFTER = (
    CUT
    + """
def overlapped(parameters, nbytes, parts, dist):
    def finish():
        for bucket in buckets_of(parameters, nbytes):
            flat = torch.cat([each.grad.flatten() for each in bucket])
            dist.all_reduce(flat)
            flat /= dist.get_world_size()
            for each, part in zip(bucket, flat.split([each.numel() for each in bucket])):
                each.grad.copy_(part.view_as(each))
    return finish
"""
)
EACH = '''
def overlapped(parameters, nbytes, parts, dist):
    """An all-reduce for each gradient, in the parameters' order from the last."""
    came, works = [], []
    def filled(parameter):
        came.append(id(parameter))
        for each in parameters[::-1][len(works):]:
            if came.count(id(each)) < parts:
                break
            works.append((each, dist.all_reduce(each.grad, async_op=True)))
    def finish():
        for each, work in works:
            work.wait()
            each.grad /= dist.get_world_size()
        came.clear(), works.clear()
    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(filled)
    return finish
'''
EVERY_PASS = (
    AFTER.replace("def overlapped", "def after_one_pass").replace("    return finish", "    return finish\n")
    + """
def overlapped(parameters, nbytes, parts, dist):
    average, came = after_one_pass(parameters, nbytes, parts, dist), []
    def filled(parameter):
        came.append(parameter)
        if len(came) % len(parameters) == 0:
            average()
    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(filled)
    return lambda: None
"""
)
FAIR = """
def fair_loss(losses, dist):
    count = torch.tensor([len(losses)])
    dist.all_reduce(count)
    return losses.sum() * dist.get_world_size() / count
"""
FAIR_WEIGHT = '''
def fair_loss(losses, dist):
    """A mean, with this rank's share of the rows as its weight."""
    rows = torch.full((), float(len(losses)), dtype=losses.dtype)
    dist.all_reduce(rows)
    share = len(losses) * dist.get_world_size() / rows
    return losses.mean() * share if len(losses) else losses.sum()
'''

RIGHT = {
    "average": {"all at once, in views of one vector": AVERAGE_AT_ONCE},
    "overlapped": {"gradients that are views of the buckets": VIEWS},
    "fair_loss": {
        "a weighted mean": FAIR_WEIGHT,
        "a count with fractions, in one dimension": FAIR.replace("[len(losses)]", "[float(len(losses))]"),
        "a count with twice the digits": FAIR.replace("[len(losses)]", "float(len(losses)), dtype=torch.float64"),
    },
}

WRONG = {
    "average": {
        "writes on what it was given": (writing_on_what_it_was_given(AVERAGE, "average"), "has changed what it was given"),
        "all-reduces what it was given": (
            AVERAGE.replace(
                "torch.cat([each.flatten() for each in bucket])",
                "torch.cat([each.flatten() for each in bucket]) if len(bucket) > 1 else bucket[0].view(-1)",
            ),
            "has changed what it was given",
        ),
        "the sum for the mean": (
            AVERAGE.replace("        flat /= dist.get_world_size()\n", ""),
            "everything is twice what it should be; there are 2 ranks, so perhaps you multiply",
        ),
        "divided by one too many": (
            AVERAGE.replace("dist.get_world_size()", "(dist.get_world_size() + 1)"),
            "on 2 ranks, .*rank 0 in place 0 of its list returned",
        ),
        "in the order of the buckets": (
            AVERAGE.replace("means[::-1]", "means"),
            "in place 0 of its list returned a tensor of shape",
        ),
        "flat": (AVERAGE.replace("part.view_as(each)", "part"), "on 3 ranks, .*returned a tensor of shape"),
        "another dtype": (
            AVERAGE.replace("flat = torch.cat", "flat = torch.Tensor.float(torch.cat").replace(
                "for each in bucket])\n        dist", "for each in bucket]))\n        dist"
            ),
            "returned numbers of torch.float32",
        ),
        "rank 0 alone": (
            AVERAGE.replace("dist.all_reduce(flat)", "dist.reduce(flat, dst=0)"),
            "rank 1 in place 0 of its list returned",
        ),
        "right for powers of two": (
            AVERAGE.replace(
                "        dist.all_reduce(flat)\n",
                """        step = 1
        while step < dist.get_world_size():
            other, partner = torch.empty_like(flat), dist.get_rank() ^ step
            for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, flat, partner), dist.P2POp(dist.irecv, other, partner)]):
                work.wait()
            flat, step = flat + other, 2 * step
""",
            ),
            "on 3 ranks, .*gives? ranks? 0 to 2|on 3 ranks, .*rank 3",
        ),
        "everything to everybody": (
            AVERAGE.replace(
                "        dist.all_reduce(flat)\n",
                """        all_of_them = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
        dist.all_gather(all_of_them, flat)
        flat = sum(all_of_them)
""",
            ),
            "all_gather was called for 16 B, and a bucket has 8 B at most",
        ),
        "twice, to be sure": (
            AVERAGE.replace(
                "        parts =", "        dist.all_reduce(flat)\n        flat /= dist.get_world_size()\n        parts ="
            ),
            "Not yet within the target: .*through the busier port",
        ),
        "from the front": (
            AVERAGE.replace("in reversed(tensors)", "in tensors").replace("means[::-1]", "means"),
            "on 4 ranks, .*the means are right, but the buckets begin with the first gradient: begin with the last",
        ),
        "one for each": (
            AVERAGE.replace("buckets_of(gradients, nbytes)", "[[each] for each in reversed(gradients)]"),
            "Not yet at the bound: .*rounds, where",
        ),
        "one for all": (
            AVERAGE.replace("buckets_of(gradients, nbytes)", "[gradients[::-1]]"),
            "all_reduce was called for 12 B, and a bucket has 8 B at most",
        ),
        "numbers for bytes": (AVERAGE.replace("tensor.nbytes", "tensor.numel()"), "and a bucket has .* at most"),
        "never quite full": (
            AVERAGE.replace("tensor.nbytes > room", "tensor.nbytes >= room"),
            "Not yet at the bound: .*rounds, where",
        ),
        "a barrier": (with_a_barrier(AVERAGE, "average"), "Not yet at the bound: .*rounds, where"),
        "a missing wait": (
            AVERAGE.replace("dist.all_reduce(flat)", "dist.all_reduce(flat, async_op=True)"),
            "may still be running",
        ),
        "state between calls": (
            AVERAGE.replace("def average", "kept = {}\ndef average").replace(
                "buckets_of(gradients, nbytes)", "kept.setdefault(dist.get_rank(), buckets_of(gradients, nbytes))"
            ),
            "buckets of .*(returned|should return)",
        ),
        "an empty one is left out": (
            AVERAGE.replace("    means = []", "    means = []\n    gradients = [each for each in gradients if each.numel()]"),
            "returned 4 tensors and should return 5",
        ),
        "rank 0 has enough": (
            AVERAGE.replace(
                "        dist.all_reduce(flat)",
                "        if flat.sum() != 0 or dist.get_rank():\n            dist.all_reduce(flat)",
            ).replace("flat.sum() != 0", "False"),
            "deadlock|can never finish",
        ),
        "loops": (AVERAGE.replace("    means = []", "    means = []\n    while True:\n        pass"), "had not ended after"),
    },
    "overlapped": {
        "the sum for the mean": (
            OVERLAPPED.replace("            flat /= dist.get_world_size()\n", ""),
            "rank 0 has the gradient of layer 0 in step 1 .*: this is twice what it should be; there are 2 ranks, so perhaps you multiply",
        ),
        "after the backward pass": (AFTER, "Not yet within the target: .*from the first start to the last end"),
        "waits in the hook": (
            OVERLAPPED.replace("async_op=True)))", "async_op=True)))\n            under_way[-1][1].wait()"),
            "Not yet within the target: .*from the first start to the last end",
        ),
        "one for each": (EACH, "Not yet within the target: .*from the first start to the last end"),
        "at every pass": (EVERY_PASS, "Not yet within the target: .*through the busier port"),
        "the first pass alone": (
            OVERLAPPED.replace("parts * len(bucket)", "len(bucket)"),
            "2 backward passes a step: rank 0 has the gradient",
        ),
        "as they get full": (
            OVERLAPPED
            .replace(
                """        while len(under_way) < len(buckets) and missing[len(under_way)] == 0:
            bucket = buckets[len(under_way)]
""",
                """        if missing[number[parameter]] == 0:
            bucket = buckets[number[parameter]]
""",
            )
            .replace("under_way.append((flat,", "under_way.append((bucket, flat,")
            .replace("for bucket, (flat, work) in zip(buckets, under_way)", "for bucket, flat, work in under_way"),
            "side by side: rank . has the gradient .*rank 0's 1st all-reduce of a step was the bucket of layer 3, and rank 1's that of",
        ),
        "from the front": (
            OVERLAPPED.replace("in reversed(tensors)", "in tensors").replace(
                "= buckets_of(parameters, nbytes)", "= buckets_of(parameters, nbytes)[::-1]"
            ),
            "Not yet at the bound: .*3 layers.*from the first start to the last end",
        ),
        "from the front, and sent so": (
            OVERLAPPED.replace("in reversed(tensors)", "in tensors"),
            "Not yet within the target: .*from the first start to the last end",
        ),
        "one for all": (OVERLAPPED.replace("buckets_of(parameters, nbytes)", "[parameters]"), "and a bucket has .* at most"),
        "a missing wait": (OVERLAPPED.replace("            work.wait()\n", ""), "may still be running"),
        "divides what is under way": (
            OVERLAPPED.replace("async_op=True)))", "async_op=True)))\n            flat /= dist.get_world_size()").replace(
                "            work.wait()\n            flat /= dist.get_world_size()", "            work.wait()"
            ),
            "may still be running",
        ),
        "state between steps": (
            OVERLAPPED.replace(
                "                each.grad.copy_(part.view_as(each))\n        begin()",
                "                each.grad.copy_(part.view_as(each))\n        under_way.clear()",
            ),
            "in step 2",
        ),
        "another dtype": (
            OVERLAPPED.replace(
                "for each in bucket])\n            under_way", "for each in bucket]).float()\n            under_way"
            ),
            "right to only six digits",
        ),
        "a barrier at the end": (
            OVERLAPPED.replace("        begin()\n\n    for", "        begin()\n        dist.barrier()\n\n    for"),
            "Not yet (within the target|at the bound): .*from the first start to the last end",
        ),
        "nothing to finish": (OVERLAPPED.replace("    return finish", ""), "return a function without arguments"),
        "takes the gradients away": (
            OVERLAPPED.replace("        begin()\n\n    for", "        begin()\n        parameters[0].grad = None\n\n    for"),
            "layer 0 has no gradient any more after step 1",
        ),
        "takes the time away": (
            OVERLAPPED.replace(
                "    begin()\n    return finish",
                """    begin()
    from ringtree import compute
    from ringtree.labs.harnesses import nets
    nets.compute = lambda seconds, label="": None
    def done():
        finish()
        nets.compute = compute
    return done""",
            ),
            "took no time",
        ),
        "rank 0 is left out": (
            OVERLAPPED.replace(
                "    for parameter in parameters:", "    for parameter in parameters if dist.get_rank() else ():"
            ),
            "can never finish",
        ),
        "loops": (
            OVERLAPPED.replace("    def finish():", "    def finish():\n        while True:\n            pass"),
            "had not ended after",
        ),
    },
    "fair_loss": {
        "the mean of one's own": (
            "def fair_loss(losses, dist):\n    return losses.mean()",
            "with 1, 3 rows: rank 0 has the gradient .*a row counts 1/2 on rank 0, 1/6 on rank 1, and should count 1/4 everywhere",
        ),
        "the share of the sum": (FAIR.replace(" * dist.get_world_size()", ""), "with 1, 3 rows: .*everything is half of"),
        "the mean of nothing": (
            FAIR_WEIGHT.replace(" if len(losses) else losses.sum()", ""),
            "rank 0 has the loss .nan. and should have .*that memory was never written, 0 was divided by 0",
        ),
        "the most rows": (
            FAIR.replace("all_reduce(count)", "all_reduce(count, dist.ReduceOp.MAX)"),
            "with 1, 3 rows: rank 0 has the gradient",
        ),
        "rank 0's rows": (
            FAIR.replace("dist.all_reduce(count)", "dist.broadcast(count, src=0)"),
            "with 1, 3 rows: rank 0 has the gradient",
        ),
        "a whole share": (
            FAIR.replace("losses.sum() * dist.get_world_size() / count", "losses.sum() * (dist.get_world_size() // count)"),
            "rank 0 has the gradient",
        ),
        "all counts": (
            FAIR.replace(
                "    dist.all_reduce(count)\n",
                "    counts = [torch.zeros_like(count) for _ in range(dist.get_world_size())]\n    dist.all_gather(counts, count)\n    count = sum(counts)\n",
            ),
            "Not yet at the bound: .*with 5, 1, 1, 1 rows: .*through the busier port|Not yet at the bound: .*through the busier port",
        ),
        "everybody's losses": (
            FAIR.replace(
                "    dist.all_reduce(count)\n",
                "    room = torch.zeros(64, dtype=torch.int64)\n    room[: len(losses)] = 1\n    dist.all_reduce(room)\n    count = room.sum()\n",
            ),
            "Not yet within the target: .*through the busier port",
        ),
        "a number": (
            FAIR.replace("losses.sum()", "losses.sum().item()"),
            "no gradient flows from what it returned to the losses",
        ),
        "Python's number": (
            FAIR.replace(
                "losses.sum() * dist.get_world_size() / count", "float(losses.detach().sum() * dist.get_world_size() / count)"
            ),
            "it returned float: return the loss, a tensor with one number",
        ),
        "all losses": (FAIR.replace("losses.sum()", "losses"), "return the loss, a tensor with one number"),
        "only with rows": (
            FAIR.replace(
                "    dist.all_reduce(count)", "    if not len(losses):\n        return losses.sum()\n    dist.all_reduce(count)"
            ),
            "all_reduce has 1 number .int64. on ranks 0 and 1 and 9 numbers .float32. on rank 2|which expects",
        ),
        "a missing wait": (FAIR.replace("all_reduce(count)", "all_reduce(count, async_op=True)"), "may still be running"),
        "state between calls": (
            FAIR.replace("def fair", "seen = {}\ndef fair").replace("/ count", "/ seen.setdefault(dist.get_rank(), count)"),
            "with 2, 1, 0 rows: rank 0 has the gradient",
        ),
        "loops": (FAIR.replace("    count =", "    while True:\n        pass\n    count ="), "had not ended after"),
    },
}
