"""Answers to the lab "Sharded"."""

from . import writing_on_what_it_was_given

ZERO1 = """
def zero1(parameters, optimizer, dist):
    rank, size = dist.get_rank(), dist.get_world_size()
    lengths = [each.numel() for each in parameters]

    def one_vector(tensors):
        flat = torch.cat([each.flatten() for each in tensors])
        return torch.cat([flat, flat.new_zeros(-len(flat) % size)])

    shard = one_vector([each.detach() for each in parameters]).chunk(size)[rank].clone()
    shard.grad = torch.zeros_like(shard)
    adam = optimizer([shard])

    def step():
        dist.reduce_scatter_single(shard.grad, one_vector([each.grad for each in parameters]))
        shard.grad /= size
        adam.step()
        whole = torch.empty(size * len(shard), dtype=shard.dtype)
        dist.all_gather_single(whole, shard)
        with torch.no_grad():
            for parameter, part in zip(parameters, whole[: sum(lengths)].split(lengths)):
                parameter.copy_(part.view_as(parameter))

    return step
"""
VIEWS = '''
class Sharded:
    """Parameters and gradients are views of two vectors from the start, and the shard is a view too."""

    def __init__(self, parameters, optimizer, dist):
        self.dist, self.size = dist, dist.get_world_size()
        count = sum(each.numel() for each in parameters)
        self.whole = torch.zeros(-(-count // self.size) * self.size, dtype=parameters[0].dtype)
        self.gradients = torch.zeros_like(self.whole)
        at = 0
        for each in parameters:
            place = slice(at, at + each.numel())
            self.whole[place] = each.detach().reshape(-1)
            each.data = self.whole[place].view(each.shape)
            each.grad = self.gradients[place].view(each.shape)
            at += each.numel()
        self.mine = self.whole.tensor_split(self.size)[dist.get_rank()]
        self.optimizer = optimizer([self.mine])

    def step(self):
        parts = list(self.gradients.tensor_split(self.size))
        mean = torch.empty_like(self.mine)
        self.dist.reduce_scatter(mean, parts)
        self.mine.grad = mean / self.size
        self.optimizer.step()
        self.dist.all_gather(list(self.whole.tensor_split(self.size)), self.mine.clone())

def zero1(parameters, optimizer, dist):
    return Sharded(parameters, optimizer, dist).step
'''
TENSORS = '''
def zero1(parameters, optimizer, dist):
    """Whole tensors to ranks: an all-reduce, and each rank broadcasts its own."""
    rank, size = dist.get_rank(), dist.get_world_size()
    owned, owner = [0] * size, {}
    for each in sorted(parameters, key=lambda each: -each.numel()):
        owner[each] = owned.index(min(owned))
        owned[owner[each]] += each.numel()
    mine = [each for each in parameters if owner[each] == rank]
    data = [each.detach() for each in mine]
    adam = optimizer(data)
    def step():
        for each in parameters:
            dist.all_reduce(each.grad)
            each.grad /= size
        for one, each in zip(data, mine):
            one.grad = each.grad
        adam.step()
        for each in parameters:
            dist.broadcast(each.detach(), src=owner[each])
    return step
'''
PLAIN = '''
def zero1(parameters, optimizer, dist):
    """Data parallel: no shards at all."""
    adam = optimizer(parameters)
    def step():
        for each in parameters:
            dist.all_reduce(each.grad)
            each.grad /= dist.get_world_size()
        adam.step()
    return step
'''
EACH = '''
def zero1(parameters, optimizer, dist):
    """Every tensor in shards of its own: each is padded."""
    rank, size = dist.get_rank(), dist.get_world_size()
    def padded(tensor):
        return torch.cat([tensor.flatten(), tensor.new_zeros(-tensor.numel() % size)])
    shards = [padded(each.detach()).chunk(size)[rank].clone() for each in parameters]
    adam = optimizer(shards)
    def step():
        for each, shard in zip(parameters, shards):
            shard.grad = torch.zeros_like(shard)
            dist.reduce_scatter_single(shard.grad, padded(each.grad))
            shard.grad /= size
        adam.step()
        for each, shard in zip(parameters, shards):
            whole = torch.empty(size * len(shard), dtype=shard.dtype)
            dist.all_gather_single(whole, shard)
            each.data = whole[: each.numel()].view_as(each)
    return step
'''
CLIP = """
def clip(shard, most, dist):
    squares = shard.square().sum().reshape(1)
    dist.all_reduce(squares)
    return shard * (most / squares.sqrt()).clamp(max=1)
"""
CLIP_DOUBLE = '''
def clip(shard, most, dist):
    """The norm of the ranks' norms."""
    mine = torch.linalg.vector_norm(shard).view(1) ** 2
    work = dist.all_reduce(mine, async_op=True)
    work.wait()
    norm = mine.item() ** 0.5
    return shard.clone() if norm <= most else shard / norm * most
'''
PLAN = """
def plan(parameters, ranks, memory, activations, rows):
    best = None
    for stage in range(4):
        for parts in range(1, rows + 1):
            if rows % parts:
                continue
            each = 2 / (ranks if stage >= 3 else 1) + 2 / (ranks if stage >= 2 else 1) + 12 / (ranks if stage >= 1 else 1)
            sends = (2, 2, 1 + parts, 3 * parts)[stage]
            if each * parameters + activations / parts <= memory and (best is None or (sends, parts, stage) < best):
                best = sends, parts, stage
    return best and (best[2], best[1])
"""
PLAN_SORTED = '''
def holds(stage, ranks):
    return [16, 4 + 12 / ranks, 2 + 14 / ranks, 16 / ranks][stage]

def plan(parameters, ranks, memory, activations, rows):
    """Parts first: what is sent grows with them in stages 2 and 3."""
    fits = [
        (stage, parts)
        for parts in range(1, rows + 1) if rows % parts == 0
        for stage in range(4) if holds(stage, ranks) * parameters + activations / parts <= memory
    ]
    return min(fits, key=lambda each: {0: 2, 1: 2, 2: 1 + each[1], 3: 3 * each[1]}[each[0]], default=None)
'''

RIGHT = {
    "zero1": {"views of two vectors": VIEWS},
    "clip": {"a plain number": CLIP_DOUBLE},
    "plan": {"fits first, then the least": PLAN_SORTED},
}

WRONG = {
    "zero1": {
        "the sum for the mean": (
            ZERO1.replace("        shard.grad /= size\n", ""),
            "rank 0 has the weight of layer 0 after step 1",
        ),
        "data parallel": (PLAIN, "Not yet within the target: .*of optimizer's state"),
        "whole tensors": (TENSORS, "Not yet at the bound: .*of optimizer's state"),
        "every tensor in shards": (EACH, "Not yet at the bound: "),
        "two all-reduces": (
            ZERO1.replace(
                "dist.reduce_scatter_single(shard.grad, one_vector([each.grad for each in parameters]))",
                "whole = one_vector([each.grad for each in parameters])\n        dist.all_reduce(whole)\n        shard.grad.copy_(whole.chunk(size)[rank])",
            ).replace(
                "        dist.all_gather_single(whole, shard)\n",
                "        whole.zero_()\n        whole.chunk(size)[rank].copy_(shard)\n        dist.all_reduce(whole)\n",
            ),
            "Not yet (within the target|at the bound): .*through the busier port",
        ),
        "everything to everybody": (
            ZERO1.replace(
                "dist.reduce_scatter_single(shard.grad, one_vector([each.grad for each in parameters]))",
                "whole = one_vector([each.grad for each in parameters])\n        every = [torch.empty_like(whole) for _ in range(size)]\n        dist.all_gather(every, whole)\n        shard.grad.copy_(sum(every).chunk(size)[rank])",
            ),
            "Not yet within the target: .*through the busier port",
        ),
        "an all-reduce and a gather": (
            ZERO1.replace(
                "dist.reduce_scatter_single(shard.grad, one_vector([each.grad for each in parameters]))",
                "whole = one_vector([each.grad for each in parameters])\n        dist.all_reduce(whole)\n        shard.grad.copy_(whole.chunk(size)[rank])",
            ),
            "Not yet at the bound: .*through the busier port",
        ),
        "own gradients": (
            ZERO1.replace(
                "dist.reduce_scatter_single(shard.grad, one_vector([each.grad for each in parameters]))",
                "shard.grad.copy_(one_vector([each.grad for each in parameters]).chunk(size)[rank] * size)",
            ),
            "rank 0 has the weight of layer 0 after step 1",
        ),
        "no gather": (
            ZERO1.replace(
                "        dist.all_gather_single(whole, shard)\n",
                "        whole.copy_(one_vector([each.detach() for each in parameters]))\n        whole.chunk(size)[rank].copy_(shard)\n",
            ),
            "has the weight of layer",
        ),
        "gathers the gradients": (
            ZERO1.replace("all_gather_single(whole, shard)", "all_gather_single(whole, shard.grad)"),
            "has the weight of layer 0 after step 1",
        ),
        "not padded": (
            ZERO1.replace("        return torch.cat([flat, flat.new_zeros(-len(flat) % size)])", "        return flat"),
            "on 3 ranks|on 2 ranks|on 5 ranks",
        ),
        "the last numbers are lost": (
            ZERO1
            .replace("flat.new_zeros(-len(flat) % size)", "flat.new_zeros(0)")
            .replace("        return torch.cat([flat, flat.new_zeros(0)])", "        return flat[: len(flat) // size * size]")
            .replace(
                "for parameter, part in zip(parameters, whole[: sum(lengths)].split(lengths)):",
                "old = torch.cat([each.detach().flatten() for each in parameters])\n            old[: len(whole)] = whole\n            for parameter, part in zip(parameters, old.split(lengths)):",
            ),
            "has the weight of layer",
        ),
        "another's shard": (
            ZERO1.replace(".chunk(size)[rank].clone()", ".chunk(size)[rank - 1].clone()"),
            "rank 0 has the weight of layer 0 after step 1",
        ),
        "right for powers of two": (
            ZERO1.replace("-len(flat) % size", "-len(flat) % (1 << (size - 1).bit_length())"),
            "on 3 ranks|on 5 ranks",
        ),
        "a new optimizer each time": (
            ZERO1.replace("        adam.step()", "        optimizer([shard]).step()"),
            "after step 2",
        ),
        "another dtype": (
            ZERO1.replace(
                "flat = torch.cat([each.flatten() for each in tensors])",
                "flat = torch.cat([each.flatten() for each in tensors]).float().to(tensors[0].dtype)",
            ),
            "right to only six digits",
        ),
        "only the first step": (
            ZERO1.replace(
                "    def step():",
                "    done = []\n    def step():\n        if done:\n            return\n        done.append(1)",
            ),
            "after step 2",
        ),
        "a missing wait": (
            ZERO1.replace("all_gather_single(whole, shard)", "all_gather_single(whole, shard, async_op=True)"),
            "may still be running",
        ),
        "its own Adam": (
            ZERO1.replace("optimizer([shard])", "type(optimizer([]))([shard])"),
            "leave every update to .optimizer.",
        ),
        "steps without a gradient": (
            ZERO1.replace("    adam = optimizer([shard])", "    shard.grad = None\n    adam = optimizer([shard])").replace(
                "        dist.reduce_scatter_single(shard.grad, one_vector([each.grad for each in parameters]))\n        shard.grad /= size\n",
                "",
            ),
            "without a gradient: put it into its .grad.",
        ),
        "nothing to step": (ZERO1.replace("    return step", ""), "return a function that takes no arguments"),
        "rank 0 is left out": (
            ZERO1.replace("        adam.step()", "        if not rank:\n            return\n        adam.step()"),
            "all ranks of a group must call the same",
        ),
        "rank 0 waits for more": (
            ZERO1.replace(
                "        adam.step()",
                "        if not rank:\n            dist.recv(torch.empty(1), 1 % size)\n        adam.step()",
            ),
            "deadlock.*they wait in a circle",
        ),
        "loops": (
            ZERO1.replace("    def step():", "    def step():\n        while True:\n            pass"),
            "had not ended after",
        ),
    },
    "clip": {
        "the norm of one's own": (
            "def clip(shard, most, dist):\n    return shard * (most / shard.norm()).clamp(max=1)",
            "rank 0 returned",
        ),
        "the sum of the norms": (
            CLIP.replace("shard.square().sum().reshape(1)", "shard.norm().reshape(1)").replace("squares.sqrt()", "squares"),
            "rank 0 returned",
        ),
        "the squares' sum": (CLIP.replace("squares.sqrt()", "squares"), "rank 0 returned"),
        "the mean of the squares": (
            CLIP.replace("squares.sqrt()", "(squares / dist.get_world_size()).sqrt()"),
            "rank 0 returned",
        ),
        "always scales": (CLIP.replace(".clamp(max=1)", ""), "rank 0 returned"),
        "clips each number": (
            CLIP.replace("return shard * (most / squares.sqrt()).clamp(max=1)", "return shard.clamp(-most, most)"),
            "rank . returned",
        ),
        "at the place": (writing_on_what_it_was_given(CLIP, "clip"), "has changed what it was given"),
        "scales what it was given": (
            CLIP
            .replace("return shard * (", "return shard.mul_(")
            .replace("clamp(max=1)", "clamp(max=1))")
            .replace("mul_(most / squares.sqrt()).clamp(max=1))", "mul_((most / squares.sqrt()).clamp(max=1))"),
            "has changed what it was given",
        ),
        "everything to everybody": (
            CLIP.replace(
                "    squares = shard.square().sum().reshape(1)\n    dist.all_reduce(squares)\n",
                "    lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]\n    dist.all_gather(lengths, torch.tensor([len(shard)]))\n    room = torch.zeros(64, dtype=shard.dtype)\n    room[: len(shard)] = shard.square()\n    dist.all_reduce(room)\n    squares = room.sum()\n",
            ),
            "Not yet within the target: .*through the busier port",
        ),
        "all squares by a gather": (
            CLIP.replace(
                "    dist.all_reduce(squares)\n",
                "    every = [torch.empty_like(squares) for _ in range(dist.get_world_size())]\n    dist.all_gather(every, squares)\n    squares = sum(every)\n",
            ),
            "Not yet at the bound: .*through the busier port",
        ),
        "rank 0 alone": (CLIP.replace("dist.all_reduce(squares)", "dist.reduce(squares, dst=0)"), "rank 1 returned"),
        "another dtype": (
            CLIP.replace("shard.square()", "shard.float().square()").replace(
                "squares.sqrt()", "squares.sqrt().to(shard.dtype)"
            ),
            "right to only six digits|returned numbers",
        ),
        "as a float32": (
            CLIP.replace(
                "return shard * (most / squares.sqrt()).clamp(max=1)",
                "return (shard * (most / squares.sqrt()).clamp(max=1)).float()",
            ),
            "returned numbers of torch.float32",
        ),
        "only with numbers": (
            CLIP.replace("    dist.all_reduce", "    if not len(shard):\n        return shard\n    dist.all_reduce"),
            "rank 1 with no numbers",
        ),
        "a missing wait": (CLIP.replace("all_reduce(squares)", "all_reduce(squares, async_op=True)"), "may still be running"),
        "state between calls": (
            CLIP.replace("def clip", "seen = {}\ndef clip").replace(
                "squares.sqrt()", "seen.setdefault(dist.get_rank(), squares).sqrt()"
            ),
            "rank 0 returned",
        ),
        "loops": (CLIP.replace("    squares =", "    while True:\n        pass\n    squares ="), "had not ended after"),
    },
    "plan": {
        "without activations": (PLAN.replace(" + activations / parts", ""), "which needs"),
        "activations whole": (
            PLAN.replace("activations / parts", "activations"),
            "another that fits|nothing fits, and|fewer|sends",
        ),
        "the lowest stage": (PLAN.replace("(sends, parts, stage) < best", "False"), "sends"),
        "the highest stage": (PLAN.replace("(sends, parts, stage) < best", "True"), "another that fits sends"),
        "gradients reduced once": (PLAN.replace("1 + parts", "2"), "another that fits sends"),
        "gathers once": (PLAN.replace("3 * parts", "3"), "another that fits sends"),
        "any number of parts": (
            PLAN.replace("            if rows % parts:\n                continue\n", ""),
            "that divides them",
        ),
        "the most parts": (
            PLAN.replace("(sends, parts, stage) < best", "(sends, -parts, stage) < (best[0], -best[1], best[2])"),
            "sends no more than another that fits with",
        ),
        "stage before parts": (
            PLAN.replace("(sends, parts, stage) < best", "(sends, stage, parts) < (best[0], best[2], best[1])"),
            "sends no more than another that fits with",
        ),
        "the highest of equals": (
            PLAN.replace("(sends, parts, stage) < best", "(sends, parts, -stage) < (best[0], best[1], -best[2])"),
            "a lower stage fits too",
        ),
        "ZeRO-1 shards gradients": (PLAN.replace("stage >= 2", "stage >= 1"), "which needs"),
        "ZeRO-2 shards parameters": (PLAN.replace("stage >= 3", "stage >= 2"), "which needs"),
        "eight bytes of optimizer": (PLAN.replace("12 /", "8 /"), "which needs"),
        "always something": (
            PLAN.replace("return best and (best[2], best[1])", "return (best[2], best[1]) if best else (3, rows)"),
            "and nothing fits: return None",
        ),
        "never": (
            "def plan(parameters, ranks, memory, activations, rows):\n    return None",
            "says that nothing fits, and something does",
        ),
        "a name": (
            PLAN.replace("return best and (best[2], best[1])", "return best and f'ZeRO-{best[2]}'"),
            "return .stage, parts.",
        ),
        "stage 4": (
            PLAN.replace("return best and (best[2], best[1])", "return best and (best[2] + 4, best[1])"),
            "give 0 for data parallel",
        ),
        "the sends": (
            PLAN.replace("return best and (best[2], best[1])", "return best and (best[2], float(best[1]))"),
            "two whole numbers",
        ),
        "loops": (PLAN.replace("    best = None", "    while True:\n        pass"), "had not ended|loop"),
    },
}
