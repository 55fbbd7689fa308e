"""Answers to the lab "Tensor parallel"."""

from . import with_a_barrier

PAIR = """
from torch.nn import functional as F

class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, dist):
        ctx.dist = dist
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        total = gradient.clone(memory_format=torch.contiguous_format)
        ctx.dist.all_reduce(total)
        return total, None

class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, dist):
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None
"""
WHOLE = (
    PAIR
    + """
def feed_forward(x, up, up_bias, down, bias, dist):
    hidden = F.gelu(F.linear(Enter.apply(x, dist), up, up_bias))
    return Leave.apply(F.linear(hidden, down), dist) + bias
"""
)
BY_HOOKS = '''
def feed_forward(x, up, up_bias, down, bias, dist):
    """The gradient is summed by a hook on the tensor, and the result where autograd does not look."""
    def summed(gradient):
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient)
        return gradient
    x = x.view_as(x)
    x.register_hook(summed)
    part = torch.nn.functional.gelu(x @ up.T + up_bias) @ down.T
    total = part.detach().clone()
    dist.all_reduce(total)
    return part + (total - part.detach()) + bias
'''
BY_MESSAGES = (
    WHOLE.replace("ctx.dist.all_reduce(total)", "total = around(total, ctx.dist)").replace(
        "dist.all_reduce(total)", "total = around(total, dist)"
    )
    + '''
def around(x, dist):
    """In a ring, whole tensors, each rank adding what comes: right, with too many bytes."""
    rank, size = dist.get_rank(), dist.get_world_size()
    total, goes = x.clone(), x.clone()
    for _ in range(size - 1):
        came = torch.empty_like(goes)
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, goes, (rank + 1) % size), dist.P2POp(dist.irecv, came, (rank - 1) % size)]):
            work.wait()
        total, goes = total + came, came
    return total
'''
)
HALVES = (
    PAIR
    + """
def gathered(x, dist):
    everything = x.new_empty(dist.get_world_size() * len(x), x.shape[1])
    dist.all_gather_single(everything, x.contiguous())
    return everything

def scattered(x, dist):
    mine = x.new_empty(len(x) // dist.get_world_size(), x.shape[1])
    dist.reduce_scatter_single(mine, x.contiguous())
    return mine

class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, dist):
        ctx.dist = dist
        return gathered(x, dist)

    @staticmethod
    def backward(ctx, gradient):
        return scattered(gradient, ctx.dist), None

class Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, dist):
        ctx.dist = dist
        return scattered(x, dist)

    @staticmethod
    def backward(ctx, gradient):
        return gathered(gradient, ctx.dist), None
"""
)
POSITIONS = (
    HALVES
    + """
def by_positions(x, scale, shift, up, up_bias, down, bias, dist):
    scale, shift, bias = Enter.apply(torch.cat([scale, shift, bias]), dist).chunk(3)
    rest = F.layer_norm(x, x.shape[1:], scale, shift)
    hidden = F.gelu(F.linear(Gather.apply(rest, dist), up, up_bias))
    return Scatter.apply(F.linear(hidden, down), dist) + bias
"""
)
ONE_FUNCTION = '''
from torch.nn import functional as F

class Layer(torch.autograd.Function):
    """The whole layer as one function, whose way back runs the forward pass once more."""

    @staticmethod
    def forward(ctx, dist, *given):
        ctx.dist = dist
        ctx.save_for_backward(*given)
        x, scale, shift, up, up_bias, down, bias = given
        ctx.everything = Layer.gathered(F.layer_norm(x, x.shape[1:], scale, shift), dist)
        part = F.linear(F.gelu(F.linear(ctx.everything, up, up_bias)), down)
        return Layer.scattered(part, dist) + bias

    @staticmethod
    def gathered(x, dist):
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts)

    @staticmethod
    def scattered(x, dist):
        parts = [each.contiguous() for each in x.chunk(dist.get_world_size())]
        mine = torch.empty_like(parts[0])
        dist.reduce_scatter(mine, parts)
        return mine

    @staticmethod
    def backward(ctx, gradient):
        x, scale, shift, up, up_bias, down, bias = (each.detach().requires_grad_() for each in ctx.saved_tensors)
        with torch.enable_grad():
            everything = ctx.everything.detach().requires_grad_()
            part = F.linear(F.gelu(F.linear(everything, up, up_bias)), down)
            part.backward(Layer.gathered(gradient, ctx.dist))
            F.layer_norm(x, x.shape[1:], scale, shift).backward(Layer.scattered(everything.grad, ctx.dist))
        sums = torch.stack([scale.grad, shift.grad, gradient.sum(0)])
        ctx.dist.all_reduce(sums)
        return None, x.grad, sums[0], sums[1], up.grad, up_bias.grad, down.grad, sums[2]

def by_positions(*given):
    return Layer.apply(given[-1], *given[:-1])
'''
LOSS = (
    PAIR
    + """
def loss_of(scores, first, targets, dist):
    largest = scores.detach().amax(1)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    place = targets - first
    mine = (place >= 0) & (place < scores.shape[1])
    target = scores.gather(1, place.clamp(0, scores.shape[1] - 1)[:, None])[:, 0] * mine
    powers = (scores - largest[:, None]).exp().sum(1)
    powers, target = Leave.apply(torch.stack([powers, target]), dist)
    return (powers.log() + largest - target).mean()
"""
)
LOSS_AND_GRADIENT = '''
class Loss(torch.autograd.Function):
    """Its gradient is written down: the probabilities, less 1 at the target, over the number of tokens."""

    @staticmethod
    def forward(ctx, scores, first, targets, dist):
        tokens = torch.arange(len(targets), device=scores.device)
        here = (targets >= first) & (targets < first + scores.shape[1])
        one = torch.zeros_like(scores)
        one[tokens[here], targets[here] - first] = 1
        largest = scores.max(1).values
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        powers = torch.exp(scores - largest.unsqueeze(1))
        total, target = powers.sum(1), (one * scores).sum(1)
        works = [dist.all_reduce(total, async_op=True), dist.all_reduce(target, async_op=True)]
        for work in works:
            work.wait()
        ctx.save_for_backward((powers / total.unsqueeze(1) - one) / len(targets))
        return (total.log() + largest - target).mean()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0], None, None, None

def loss_of(scores, first, targets, dist):
    return Loss.apply(scores, first, targets, dist)
'''

LINEAR = """
from torch.nn import functional as F

def linear(x, weight, bias, dist):
    total = F.linear(x, weight)
    dist.all_reduce(total)
    return total + bias
"""

RIGHT = {
    "linear": {
        "a part of the bias on each rank": """
def linear(x, weight, bias, dist):
    total = x @ weight.T + (bias if dist.get_rank() == 0 else 0)
    dist.all_reduce(total)
    return total
""",
    },
    "feed_forward": {"by hooks": BY_HOOKS},
    "by_positions": {"one function": ONE_FUNCTION},
    "loss_of": {"with its gradient": LOSS_AND_GRADIENT},
}

RESULT = "rank {} has the result"
POWERS = """step = 1
        while step < {dist}.get_world_size():
            other, partner = torch.empty_like(total), {dist}.get_rank() ^ step
            for work in {dist}.batch_isend_irecv([{dist}.P2POp({dist}.isend, total, partner), {dist}.P2POp({dist}.irecv, other, partner)]):
                work.wait()
            total, step = total + other, 2 * step"""
WRONG = {
    "linear": {
        "no sum": (LINEAR.replace("    dist.all_reduce(total)\n", ""), "on 2 ranks, .*rank 0 returned"),
        "the bias on every rank": (
            LINEAR.replace("F.linear(x, weight)", "F.linear(x, weight, bias)").replace("total + bias", "total"),
            "on 2 ranks, .*rank 0 returned",
        ),
        "no bias": (LINEAR.replace("total + bias", "total"), "on 2 ranks, .*rank 0 returned"),
        "the mean": (LINEAR.replace("total + bias", "total / dist.get_world_size() + bias"), "on 2 ranks, .*rank 0 returned"),
        "the bias summed too": (
            LINEAR.replace("    return", "    dist.all_reduce(bias)\n    return"),
            "on 2 ranks, .*rank 0 returned",
        ),
        "rows taken for columns": (LINEAR.replace("F.linear(x, weight)", "F.linear(x.T, weight.T)"), "on . ranks, .*"),
        "not waited for": (LINEAR.replace("(total)", "(total, async_op=True)"), "which may still be running"),
        "in float32": (
            LINEAR.replace("return total", "return total.float()"),
            "were they float32 on the way|float32 and was",
        ),
        "the bias in place": (
            LINEAR.replace("return total + bias", "return bias.add_(total[0])"),
            "rank 0 returned a tensor of shape",
        ),
        "writes on what it was given": (
            LINEAR.replace("return total + bias", "result = total + bias\n    bias += 1\n    return result"),
            "has changed what it was given",
        ),
        "only to rank 0": (LINEAR.replace("dist.all_reduce(total)", "dist.reduce(total, dst=0)"), "rank [1-9] returned"),
        "summed, then handed out": (
            LINEAR.replace("dist.all_reduce(total)", "dist.reduce(total, dst=0)\n    dist.broadcast(total, src=0)"),
            "Not yet at the bound: ",
        ),
        "the matrices go round": (
            """
from torch.nn import functional as F

def linear(x, weight, bias, dist):
    size, count = dist.get_world_size(), torch.tensor([x.shape[1]])
    counts = [torch.zeros_like(count) for _ in range(size)]
    dist.all_gather(counts, count)
    most, total = int(max(counts)), 0
    mine = F.pad(torch.cat([x, weight]), (0, most - x.shape[1]))
    parts = [torch.empty_like(mine) for _ in range(size)]
    dist.all_gather(parts, mine)
    for part in parts:
        total = total + F.linear(part[: len(x)], part[len(x) :])
    return total + bias
""",
            "Not yet at the bound: ",
        ),
        "a barrier": (with_a_barrier(LINEAR, "linear"), "Not yet at the bound: .*rounds, where"),
    },
    "feed_forward": {
        "no sum": (WHOLE.replace("Leave.apply(F.linear(hidden, down), dist)", "F.linear(hidden, down)"), RESULT.format(0)),
        "no sum on the way back": (WHOLE.replace("Enter.apply(x, dist)", "x"), "rank . has the gradient of x"),
        "the bias on every rank": (
            WHOLE.replace("F.linear(hidden, down), dist) + bias", "F.linear(hidden, down, bias), dist)"),
            RESULT.format(0),
        ),
        "the bias on rank 0": (
            WHOLE.replace(
                "F.linear(hidden, down), dist) + bias", "F.linear(hidden, down, bias if dist.get_rank() == 0 else None), dist)"
            ),
            "rank 1 has the gradient of the bias of down",
        ),
        "the sum summed once more": (
            WHOLE.replace(
                "        return gradient, None",
                "        gradient = gradient.contiguous().clone()\n        ctx.dist.all_reduce(gradient)\n        return gradient, None",
            ).replace("        total = x.clone()\n", "        ctx.dist = dist\n        total = x.clone()\n"),
            "rank 0 has the gradient of ",
        ),
        "the mean": (
            WHOLE.replace("        return total\n", "        return total / dist.get_world_size()\n"),
            RESULT.format(0),
        ),
        "the mean on the way back": (
            WHOLE.replace("return total, None", "return total / ctx.dist.get_world_size(), None"),
            "rank 0 has the gradient of x",
        ),
        "the wrong way round": (
            WHOLE.replace("Enter.apply(x", "Leave.apply(x").replace("Leave.apply(F", "Enter.apply(F"),
            RESULT.format(0),
        ),
        "no GELU": (
            WHOLE.replace("F.gelu(F.linear(Enter.apply(x, dist), up, up_bias))", "F.linear(Enter.apply(x, dist), up, up_bias)"),
            RESULT.format(0),
        ),
        "another GELU": (WHOLE.replace("up_bias))", 'up_bias), approximate="tanh")'), "rank 0 has the (result|gradient of )"),
        "no inner bias": (WHOLE.replace("up, up_bias)", "up)"), "rank 0 has the (result|gradient of the bias of up)"),
        "on rank 0 alone": (
            WHOLE.replace("        dist.all_reduce(total)", "        dist.reduce(total, dst=0)"),
            RESULT.format(1),
        ),
        "on rank 0 alone, on the way back": (
            WHOLE.replace("ctx.dist.all_reduce(total)", "ctx.dist.reduce(total, dst=0)"),
            "rank 1 has the gradient of x",
        ),
        "right for powers of two": (
            WHOLE.replace("        dist.all_reduce(total)", "        " + POWERS.format(dist="dist")),
            "on 3 ranks",
        ),
        "writes on what it was given": (
            WHOLE.replace("    return Leave", "    with torch.no_grad():\n        down.add_(1)\n    return Leave"),
            "modified by an inplace operation|rank 0 has the (result|gradient)",
        ),
        "without a gradient": (
            WHOLE.replace(
                "    return Leave.apply(F.linear(hidden, down), dist) + bias",
                "    return (Leave.apply(F.linear(hidden, down), dist) + bias).detach()",
            ),
            "no gradient flows",
        ),
        "its part of the result": (
            WHOLE.replace(" + bias\n", " + bias\n", 1).replace(
                "dist) + bias", "dist)[:, : max(1, down.shape[0] - 1)] + bias[: max(1, down.shape[0] - 1)]"
            ),
            "it returned a tensor of shape",
        ),
        "a list": (
            WHOLE.replace(
                "return Leave.apply(F.linear(hidden, down), dist) + bias",
                "return [Leave.apply(F.linear(hidden, down), dist) + bias]",
            ),
            "it returned list: return a tensor",
        ),
        "another dtype": (
            WHOLE
            .replace("dist) + bias", "dist).float() + bias")
            .replace("F.linear(Enter.apply(x, dist), up, up_bias)", "F.linear(Enter.apply(x, dist), up, up_bias).float()")
            .replace("F.linear(hidden, down)", "F.linear(hidden, down.float())"),
            "right to only six digits",
        ),
        "whole tensors round the ring": (BY_MESSAGES, "Not yet within the target: .*through the busier port"),
        "everything to everybody": (
            WHOLE.replace(
                "        dist.all_reduce(total)",
                "        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]\n        dist.all_gather(parts, total)\n        total = sum(parts)",
            ),
            "Not yet (within the target|at the bound): .*through the busier port",
        ),
        "once more, to be sure": (
            WHOLE.replace(
                "        return total\n", "        dist.all_reduce(total)\n        return total / dist.get_world_size()\n"
            ),
            "Not yet at the bound: .*through the busier port",
        ),
        "a barrier": (with_a_barrier(WHOLE, "feed_forward"), "Not yet at the bound: .*rounds, where"),
        "a missing wait": (
            WHOLE.replace("        dist.all_reduce(total)", "        dist.all_reduce(total, async_op=True)"),
            "may still be running",
        ),
        "state between calls": (
            WHOLE.replace("def feed_forward", "kept = {}\ndef feed_forward").replace(
                "+ bias\n", "+ kept.setdefault((dist.get_rank(), len(bias)), bias.detach()) + 0 * bias\n"
            ),
            "rank 0 has the (result|gradient of the bias of down)",
        ),
        "rank 0 has enough": (
            WHOLE.replace("        dist.all_reduce(total)", "        if dist.get_rank():\n            dist.all_reduce(total)"),
            "can never finish|deadlock",
        ),
        "loops": (WHOLE.replace("    hidden =", "    while True:\n        pass\n    hidden ="), "had not ended after"),
    },
    "by_positions": {
        "the norm's gradient in parts": (
            POSITIONS.replace(
                "Enter.apply(torch.cat([scale, shift, bias]), dist).chunk(3)", "torch.cat([scale, shift, bias]).chunk(3)"
            ),
            "rank 0 has the gradient of the scale",
        ),
        "the bias's gradient in parts": (
            POSITIONS.replace(
                "scale, shift, bias = Enter.apply(torch.cat([scale, shift, bias]), dist).chunk(3)",
                "scale, shift = Enter.apply(torch.cat([scale, shift]), dist).chunk(2)",
            ),
            "rank 0 has the gradient of the bias of down",
        ),
        "the mean of the norm's gradients": (
            POSITIONS.replace("return total, None", "return total / ctx.dist.get_world_size(), None"),
            "rank 0 has the gradient of the scale",
        ),
        "its own part on the way back": (
            POSITIONS.replace(
                "return scattered(gradient, ctx.dist), None",
                "return gradient.chunk(ctx.dist.get_world_size())[ctx.dist.get_rank()], None",
            ),
            "rank 0 has the gradient of ",
        ),
        "nothing gathered on the way back": (
            POSITIONS.replace(
                "return gathered(gradient, ctx.dist), None", "return gradient.repeat(ctx.dist.get_world_size(), 1), None"
            ),
            "rank . has the gradient of ",
        ),
        "its own positions alone": (
            POSITIONS.replace("Gather.apply(rest, dist)", "rest").replace(
                "Scatter.apply(F.linear(hidden, down), dist)", "F.linear(hidden, down)"
            ),
            RESULT.format(0),
        ),
        "no norm": (POSITIONS.replace("F.layer_norm(x, x.shape[1:], scale, shift)", "x * scale + shift"), RESULT.format(0)),
        "the norm of everything": (
            POSITIONS.replace("F.layer_norm(x, x.shape[1:], scale, shift)", "F.layer_norm(x, x.shape) * scale + shift"),
            "on 3 ranks",
        ),
        "the bias before the sum": (
            POSITIONS.replace("F.linear(hidden, down), dist) + bias", "F.linear(hidden, down, bias), dist)"),
            RESULT.format(0),
        ),
        "another rank's positions": (
            POSITIONS.replace(
                "return Scatter.apply(F.linear(hidden, down), dist)",
                "return Scatter.apply(F.linear(hidden, down).roll(len(x), 0), dist)",
            ),
            RESULT.format(0),
        ),
        "backwards": (
            POSITIONS.replace("F.linear(hidden, down), dist)", "F.linear(hidden, down).flip(0), dist)"),
            RESULT.format(0),
        ),
        "all-reduces, and takes its part": (
            POSITIONS.replace(
                "    mine = x.new_empty(len(x) // dist.get_world_size(), x.shape[1])\n    dist.reduce_scatter_single(mine, x.contiguous())\n    return mine",
                "    total = x.contiguous().clone()\n    dist.all_reduce(total)\n    return total.chunk(dist.get_world_size())[dist.get_rank()].clone()",
            ),
            "Not yet at the bound: .*through the busier port",
        ),
        "gathers by sums": (
            POSITIONS.replace(
                "    everything = x.new_empty(dist.get_world_size() * len(x), x.shape[1])\n    dist.all_gather_single(everything, x.contiguous())",
                "    everything = x.new_zeros(dist.get_world_size() * len(x), x.shape[1])\n    everything[dist.get_rank() * len(x) :][: len(x)] = x\n    dist.all_reduce(everything)",
            ).replace(
                "    mine = x.new_empty(len(x) // dist.get_world_size(), x.shape[1])\n    dist.reduce_scatter_single(mine, x.contiguous())\n    return mine",
                "    total = x.contiguous().clone()\n    dist.all_reduce(total)\n    dist.all_reduce(total)\n    return total.chunk(dist.get_world_size())[dist.get_rank()] / dist.get_world_size()",
            ),
            "Not yet within the target: .*through the busier port",
        ),
        "three sums": (
            POSITIONS.replace(
                "Enter.apply(torch.cat([scale, shift, bias]), dist).chunk(3)",
                "(Enter.apply(each, dist) for each in (scale, shift, bias))",
            ),
            "Not yet at the bound: .*(rounds, where|through the busier port)",
        ),
        "a barrier": (with_a_barrier(POSITIONS, "by_positions"), "Not yet at the bound: .*rounds, where"),
        "a missing wait": (
            POSITIONS.replace(
                "dist.all_gather_single(everything, x.contiguous())",
                "dist.all_gather_single(everything, x.contiguous(), async_op=True)",
            ),
            "may still be running",
        ),
        "with gaps": (
            POSITIONS.replace(
                "dist.reduce_scatter_single(mine, x.contiguous())", "dist.reduce_scatter_single(mine, x.T.contiguous().T)"
            ),
            "with gaps in memory",
        ),
        "another dtype": (
            POSITIONS.replace(
                "    return Scatter", "    hidden, down = hidden.float(), down.float()\n    return Scatter"
            ).replace("dist) + bias", "dist).to(x.dtype) + bias"),
            "right to only six digits",
        ),
        "state between calls": (
            POSITIONS.replace("def by_positions", "kept = {}\ndef by_positions").replace(
                "    rest =",
                "    shift = shift * 0 + kept.setdefault((dist.get_rank(), len(shift)), shift.detach())\n    rest =",
            ),
            "rank 0 has the (result|gradient of the shift)",
        ),
        "rank 0 has enough": (
            POSITIONS.replace(
                "        ctx.dist.all_reduce(total)", "        if ctx.dist.get_rank():\n            ctx.dist.all_reduce(total)"
            ),
            "can never finish|deadlock",
        ),
        "loops": (POSITIONS.replace("    rest =", "    while True:\n        pass\n    rest ="), "had not ended after"),
    },
    "loss_of": {
        "its own symbols": (
            "def loss_of(scores, first, targets, dist):\n    return torch.nn.functional.cross_entropy(scores, targets.clamp(first, first + scores.shape[1] - 1) - first)",
            "rank 0 has the loss",
        ),
        "no largest": (
            LOSS.replace("    dist.all_reduce(largest, dist.ReduceOp.MAX)", "    largest = torch.zeros_like(largest)"),
            "scores of 1000 and more: rank 0 has the loss .(nan|inf)",
        ),
        "its own largest": (LOSS.replace("    dist.all_reduce(largest, dist.ReduceOp.MAX)\n", ""), "rank 0 has the loss"),
        "the target on every rank": (LOSS.replace(" * mine", ""), "rank . has the (loss|gradient of the scores)"),
        "counted from 0": (LOSS.replace("targets - first", "targets"), "rank . has the loss"),
        "the sum for the mean": (LOSS.replace(".mean()", ".sum()"), "rank 0 has the loss"),
        "the sum summed on the way back": (
            LOSS.replace(
                "Leave.apply(torch.stack([powers, target]), dist)",
                "Enter.apply(Leave.apply(torch.stack([powers, target]), dist), dist)",
            ),
            "rank 0 has the gradient of the scores",
        ),
        "not differentiable": (
            LOSS.replace(
                "powers, target = Leave.apply(torch.stack([powers, target]), dist)",
                "both = torch.stack([powers, target]).detach()\n    dist.all_reduce(both)\n    powers, target = both",
            ),
            "no gradient flows",
        ),
        "a number": (LOSS.replace("- target).mean()", "- target).mean().item()"), "it returned float: return a tensor"),
        "a loss for each token": (LOSS.replace("- target).mean()", "- target)"), "it returned a tensor of shape"),
        "the gradient of the target alone": (
            LOSS.replace("powers = (scores -", "powers = (scores.detach() -"),
            "rank 0 has the gradient of the scores",
        ),
        "the base is 2": (
            LOSS.replace(".exp().sum(1)", ".exp2().sum(1)").replace("powers.log()", "powers.log2()"),
            "rank 0 has the loss",
        ),
        "the most powers": (
            LOSS.replace("dist.all_reduce(total)", "dist.all_reduce(total, dist.ReduceOp.MAX)"),
            "rank 0 has the loss",
        ),
        "on rank 0 alone": (
            LOSS.replace("        dist.all_reduce(total)", "        dist.reduce(total, dst=0)"),
            "rank 1 has the loss",
        ),
        "equal shares alone": (
            LOSS.replace("targets - first", "targets - dist.get_rank() * scores.shape[1]"),
            "rank . has the (loss|gradient)",
        ),
        "all scores": (
            PAIR
            + """
def loss_of(scores, first, targets, dist):
    counts = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, torch.tensor([scores.shape[1]]))
    everything = torch.cat([torch.zeros(len(scores), int(count), dtype=scores.dtype) for count in counts], 1)
    at = torch.zeros(scores.shape[1], everything.shape[1], dtype=scores.dtype)
    at[range(scores.shape[1]), range(first, first + scores.shape[1])] = 1
    return F.cross_entropy(Leave.apply(scores @ at, dist), targets)
""",
            "Not yet within the target: .*through the busier port",
        ),
        "each number twice": (
            LOSS.replace(
                "powers, target = Leave.apply(torch.stack([powers, target]), dist)",
                "powers, target = Leave.apply(torch.stack([powers, target, powers.detach(), target.detach()]), dist)[:2]",
            ),
            "Not yet within the target: .*through the busier port",
        ),
        "another dtype": (
            LOSS.replace("(powers.log()", "(powers.float().log()").replace(
                "largest - target", "largest.float() - target.float()"
            ),
            "rank 0 has the loss numbers of torch.float32",
        ),
        "a missing wait": (
            LOSS.replace(
                "dist.all_reduce(largest, dist.ReduceOp.MAX)", "dist.all_reduce(largest, dist.ReduceOp.MAX, async_op=True)"
            ),
            "may still be running",
        ),
        "state between calls": (
            LOSS.replace("def loss_of", "kept = {}\ndef loss_of").replace(
                "place = targets - first", "place = targets - kept.setdefault(dist.get_rank(), first)"
            ),
            "rank . has the (loss|gradient)",
        ),
        "rank 0 has enough": (
            LOSS.replace("        dist.all_reduce(total)", "        if dist.get_rank():\n            dist.all_reduce(total)"),
            "can never finish|deadlock",
        ),
        "loops": (LOSS.replace("    place =", "    while True:\n        pass\n    place ="), "had not ended after"),
    },
}
