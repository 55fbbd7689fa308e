"""Answers to the lab "Experts"."""

from . import idling, with_a_barrier, writing_on_what_it_was_given

EXCHANGE = """
class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, gets, sends, dist):
        ctx.way_back = sends, gets, dist
        arrived = rows.new_empty(sum(gets), *rows.shape[1:])
        dist.all_to_all_single(arrived, rows.contiguous(), gets, sends)
        return arrived

    @staticmethod
    def backward(ctx, gradient):
        return Exchange.apply(gradient.contiguous(), *ctx.way_back), None, None, None

def exchange(rows, gets, sends, dist):
    return Exchange.apply(rows, gets, sends, dist)
"""
BY_MESSAGES = '''
def moved(rows, gets, sends, dist):
    """Pairwise, by messages."""
    rank, size = dist.get_rank(), dist.get_world_size()
    out, came = list(rows.detach().split(sends)), [rows.new_empty(count, *rows.shape[1:]) for count in gets]
    came[rank].copy_(out[rank])
    for step in range(1, size):
        to, source = (rank + step) % size, (rank - step) % size
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, out[to].contiguous(), to), dist.P2POp(dist.irecv, came[source], source)]):
            work.wait()
    return torch.cat(came)

class There(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, how):
        ctx.how = how
        return how(rows)

    @staticmethod
    def backward(ctx, gradient):
        gets, sends, dist = ctx.how.keywords["gets"], ctx.how.keywords["sends"], ctx.how.keywords["dist"]
        return moved(gradient, sends, gets, dist), None

def exchange(rows, gets, sends, dist):
    from functools import partial
    return There.apply(rows, partial(moved, gets=gets, sends=sends, dist=dist))
'''
PADDED = EXCHANGE.replace(
    "        dist.all_to_all_single(arrived, rows.contiguous(), gets, sends)\n        return arrived",
    """        size, most = dist.get_world_size(), 20
        out, into = (rows.new_zeros(size, most, *rows.shape[1:]) for _ in range(2))
        for room, block in zip(out, rows.split(sends)):
            room[: len(block)] = block
        dist.all_to_all_single(into, out)
        return torch.cat([room[:count] for room, count in zip(into, gets)])""",
)
PLAIN = """
def exchange(rows, gets, sends, dist):
    arrived = rows.new_empty(sum(gets), *rows.shape[1:])
    dist.all_to_all_single(arrived, rows.detach(), gets, sends)
    return arrived
"""
KEEP = """
def keep(chosen, experts, capacity, dist):
    rank, size = dist.get_rank(), dist.get_world_size()
    own = torch.bincount(chosen, minlength=experts)
    total, distance = own.clone(), 1
    while distance < size:
        came, batch = torch.zeros_like(total), []
        if rank + distance < size:
            batch.append(dist.P2POp(dist.isend, total.clone(), rank + distance))
        if rank >= distance:
            batch.append(dist.P2POp(dist.irecv, came, rank - distance))
        for work in dist.batch_isend_irecv(batch) if batch else ():
            work.wait()
        total += came
        distance *= 2
    taken, kept = (total - own).tolist(), []
    for expert in chosen.tolist():
        taken[expert] += 1
        kept.append(taken[expert] <= capacity)
    return torch.tensor(kept, dtype=torch.bool)
"""
KEEP_AT_ONCE = '''
def keep(chosen, experts, capacity, dist):
    """Without a loop over tokens, and each rank keeps what comes before its own."""
    rank, size = dist.get_rank(), dist.get_world_size()
    wanted = torch.nn.functional.one_hot(chosen, experts)
    before, step = torch.zeros(experts, dtype=torch.int64), 1
    while step < size:
        mine = before + wanted.sum(0)
        came = torch.zeros_like(before)
        batch = [dist.P2POp(dist.irecv, came, rank - step)] * (rank >= step)
        batch += [dist.P2POp(dist.isend, mine, rank + step)] * (rank + step < size)
        for work in batch and dist.batch_isend_irecv(batch):
            work.wait()
        before = before + came
        step += step
    return ((before + wanted.cumsum(0)) * wanted).sum(1) <= capacity
'''
GATHERED = """
def keep(chosen, experts, capacity, dist):
    rank, size = dist.get_rank(), dist.get_world_size()
    own = torch.bincount(chosen, minlength=experts)
    counts = torch.empty(size * experts, dtype=torch.int64)
    dist.all_gather_into_tensor(counts, own)
    taken, kept = counts.view(size, experts)[:rank].sum(0).tolist(), []
    for expert in chosen.tolist():
        taken[expert] += 1
        kept.append(taken[expert] <= capacity)
    return torch.tensor(kept, dtype=torch.bool)
"""
DOUBLED = '''
def keep(chosen, experts, capacity, dist):
    """In each step all counts that are known: an all-gather."""
    rank, size = dist.get_rank(), dist.get_world_size()
    known, distance = torch.bincount(chosen, minlength=experts).view(1, -1), 1
    while distance < size:
        came, batch = known.new_zeros(max(0, min(distance, rank - distance + 1)), experts), []
        if rank + distance < size:
            batch.append(dist.P2POp(dist.isend, known, rank + distance))
        if rank >= distance:
            batch.append(dist.P2POp(dist.irecv, came, rank - distance))
        for work in dist.batch_isend_irecv(batch) if batch else ():
            work.wait()
        known, distance = torch.cat([came, known]), 2 * distance
    wanted = torch.nn.functional.one_hot(chosen, experts)
    return ((known[:-1].sum(0) + wanted.cumsum(0)) * wanted).sum(1) <= capacity
'''
LAYER = (
    EXCHANGE
    + """
def layer(tokens, chosen, weights, kept, expert, dist):
    token, choice = kept.nonzero(as_tuple=True)
    order = chosen[token, choice].argsort(stable=True)
    token, choice = token[order], choice[order]
    to_each = torch.bincount(chosen[token, choice], minlength=dist.get_world_size())
    from_each = torch.empty_like(to_each)
    dist.all_to_all_single(from_each, to_each)
    sends, gets = to_each.tolist(), from_each.tolist()
    back = exchange(expert(exchange(tokens[token], gets, sends, dist)), sends, gets, dist)
    return torch.zeros_like(tokens).index_add(0, token, back * weights[token, choice].unsqueeze(1))
"""
)
LAYER_BY_CHOICE = (
    EXCHANGE
    + '''
def layer(tokens, chosen, weights, kept, expert, dist):
    """One list of rows, the first choices in front; dropped ones have no rank, and come last."""
    count, best = chosen.shape
    size = dist.get_world_size()
    goals = torch.where(kept, chosen, size).T.flatten()
    places = goals.argsort(stable=True)[: int(kept.sum())]
    sends = [int((goals == rank).sum()) for rank in range(size)]
    table = torch.tensor(sends)
    incoming = torch.zeros_like(table)
    dist.all_to_all_single(incoming, table)
    gets = incoming.tolist()
    done = expert(exchange(tokens.repeat(best, 1)[places], gets, sends, dist))
    rows = tokens.new_zeros(best * count, tokens.shape[1]).index_copy(0, places, exchange(done, sends, gets, dist))
    return (rows.view(best, *tokens.shape) * weights.T.unsqueeze(2)).sum(0)
'''
)

ROUTE = """
def route(chosen, ranks, each):
    return chosen.argsort(stable=True), torch.bincount(chosen // each, minlength=ranks)
"""

RIGHT = {
    "route": {
        "lists": """
def route(chosen, ranks, each):
    chosen = chosen.tolist()
    order = [token for expert in range(ranks * each) for token, one in enumerate(chosen) if one == expert]
    return order, [sum(one // each == rank for one in chosen) for rank in range(ranks)]
""",
    },
    "exchange": {"by messages": BY_MESSAGES},
    "keep": {"without a loop": KEEP_AT_ONCE},
    "layer": {"first choices in front": LAYER_BY_CHOICE},
}

WRONG = {
    "route": {
        "by experts, not by ranks": (
            ROUTE.replace("chosen // each, minlength=ranks", "chosen, minlength=ranks * each"),
            r"its counts are \[1, 1, 1\] and should be \[3\]",
        ),
        "ranks dealt out": (ROUTE.replace("chosen // each", "chosen % ranks"), "its counts are"),
        "ranks without tokens left out": (
            ROUTE.replace(", minlength=ranks", ""),
            r"its counts are \[0, 0, 4\]|its counts are \[\] ",
        ),
        "not sorted": (
            ROUTE.replace("chosen.argsort(stable=True)", "torch.arange(len(chosen))"),
            r"order is \[0, 1, 2\] and should be \[1, 0, 2\]: the experts are then \[1, 0, 1\]",
        ),
        "the last first": (
            ROUTE.replace("chosen.argsort(stable=True)", "len(chosen) - 1 - chosen.flip(0).argsort(stable=True)"),
            "tokens of one expert should keep their order",
        ),
        "by rank alone": (
            ROUTE.replace("chosen.argsort(stable=True)", "(chosen // each).argsort(stable=True)"),
            "the experts are then",
        ),
        "the sorted experts": (
            ROUTE.replace("chosen.argsort(stable=True)", "chosen.sort().values"),
            "it should have the place of each of the 3 tokens once",
        ),
        "counts as fractions": (
            ROUTE.replace("minlength=ranks)", "minlength=ranks).float()"),
            "return a tensor or a list of whole numbers",
        ),
        "the counts alone": ("def route(chosen, ranks, each):\n    return [1]", "return two things"),
        "nothing": ("def route(chosen, ranks, each):\n    pass", "return two things"),
    },
    "exchange": {
        "writes on its rows": (
            EXCHANGE.replace(
                "return Exchange.apply(rows, gets, sends, dist)\n", "return Exchange.apply(rows.mul_(3), gets, sends, dist)\n"
            ),
            "rank 0 has the rows that came",
        ),
        "without a gradient": (PLAIN, "no gradient flows"),
        "a gradient that stays here": (
            EXCHANGE.replace("return Exchange.apply(gradient.contiguous(), *ctx.way_back), None", "return gradient, None"),
            "invalid gradient at index 0",
        ),
        "no gradient flows": (
            EXCHANGE.replace(
                "return Exchange.apply(gradient.contiguous(), *ctx.way_back), None",
                "return gradient.new_zeros(sum(ctx.way_back[0]), *gradient.shape[1:]), None",
            ),
            "has the gradient of the rows",
        ),
        "the lists not swapped": (
            EXCHANGE.replace("ctx.way_back = sends, gets, dist", "ctx.way_back = gets, sends, dist"),
            "split sizes|invalid gradient|which expects",
        ),
        "with gaps": (
            EXCHANGE.replace("gradient.contiguous()", "gradient").replace("rows.contiguous()", "rows"),
            "gaps in memory",
        ),
        "swapped forward": (
            EXCHANGE.replace(
                "return Exchange.apply(rows, gets, sends, dist)\n", "return Exchange.apply(rows, sends, gets, dist)\n"
            ),
            "split sizes|which expects",
        ),
        "the average": (
            EXCHANGE.replace("None, None, None", "None, None, None").replace(
                "return Exchange.apply(gradient.contiguous(), *ctx.way_back)",
                "return Exchange.apply(gradient.contiguous(), *ctx.way_back) / ctx.way_back[2].get_world_size()",
            ),
            "has the gradient of the rows",
        ),
        "another dtype": (
            EXCHANGE.replace(
                "return Exchange.apply(rows, gets, sends, dist)\n", "return Exchange.apply(rows.float(), gets, sends, dist)\n"
            ),
            "numbers of torch.float32|float64",
        ),
        "flat": (
            EXCHANGE.replace(
                "return Exchange.apply(rows, gets, sends, dist)\n", "return Exchange.apply(rows, gets, sends, dist).flatten()\n"
            ),
            r"of shape \(\d+,\): return one of shape \(rows, tokens, width\)",
        ),
        "for rows that are one vector": (
            EXCHANGE.replace("*rows.shape[1:]", "rows.shape[1]"),
            "rank 0",
        ),
        "padded": (PADDED, "Not yet within the target: .*through the busier port"),
        "the counts once more": (
            EXCHANGE.replace(
                "        arrived =",
                "        counts = torch.tensor(sends)\n        dist.all_to_all_single(torch.empty_like(counts), counts)\n        arrived =",
            ),
            "Not yet at the bound: .*through the busier port",
        ),
        "a barrier": (with_a_barrier(EXCHANGE, "exchange"), "Not yet at the bound: .*rounds, where"),
        "nobody without rows": (
            EXCHANGE.replace(
                "        dist.all_to_all_single", "        if sum(gets) + sum(sends):\n            dist.all_to_all_single"
            ),
            "deadlock|can never finish|which has finished",
        ),
        "state between calls": (
            EXCHANGE.replace("class Exchange", "kept = {}\nclass Exchange").replace(
                "ctx.way_back = sends, gets, dist",
                "kept[dist.get_rank()] = ctx.way_back = kept.get(dist.get_rank(), (sends, gets, dist))",
            ),
            "split sizes|invalid gradient|which expects|rank . ",
        ),
        "right for powers of two": (
            BY_MESSAGES.replace("to, source = (rank + step) % size, (rank - step) % size", "to = source = rank ^ step"),
            "on 3 ranks, .*IndexError",
        ),
        "a missing wait": (
            EXCHANGE.replace("gets, sends)\n        return arrived", "gets, sends, async_op=True)\n        return arrived"),
            "may not have arrived|may still be running",
        ),
        "off by one": (
            BY_MESSAGES.replace("(rank - step) % size\n", "(rank - step + 1) % size\n"),
            "wants to receive from itself",
        ),
        "in the order of arrival": (
            BY_MESSAGES.replace("return torch.cat(came)", "return torch.cat(came[rank:] + came[:rank])"),
            "rank . has the rows that",
        ),
        "loops": (
            EXCHANGE.replace("        arrived =", "        while True:\n            pass\n        arrived ="),
            "had not ended",
        ),
    },
    "keep": {
        "writes on what it was given": (writing_on_what_it_was_given(KEEP, "keep"), "has changed what it was given"),
        "each rank for itself": (
            KEEP.replace("while distance < size", "while False"),
            r"rank 1 returned .*its token 1 wants expert 0, which takes 2, and 2 tokens before it want the same",
        ),
        "each rank its share": (
            KEEP.replace("while distance < size", "while False").replace(
                "taken[expert] <= capacity", "taken[expert] <= capacity // size"
            ),
            "rank 0 returned",
        ),
        "one too many": (KEEP.replace("<= capacity", "<= capacity + 1"), "rank . returned"),
        "one too few": (KEEP.replace("<= capacity", "< capacity"), "rank 0 returned"),
        "my own counted twice": (KEEP.replace("(total - own).tolist()", "total.tolist()"), "rank 0 returned"),
        "later ranks first": (GATHERED.replace("[:rank]", "[rank + 1:]"), "rank 0 returned"),
        "the expert is full for all ranks": (GATHERED.replace("[:rank]", ""), "rank 0 returned"),
        "numbers": (
            KEEP.replace("return torch.tensor(kept, dtype=torch.bool)", "return torch.tensor(kept, dtype=torch.int64)"),
            "returned numbers of torch.int64",
        ),
        "a list": (
            KEEP.replace("return torch.tensor(kept, dtype=torch.bool)", "return kept"),
            "returned a list of .*should return a tensor",
        ),
        "an expert that nobody wants": (KEEP.replace(", minlength=experts", ""), "which expects|must match|IndexError|index"),
        "right for powers of two": (
            KEEP.replace(
                "        if rank + distance < size:",
                "        if rank + distance < size and (rank + distance) % 2 == 1 or size in (2, 4, 8) and rank + distance < size:",
            ),
            "on 3 ranks|never|finish",
        ),
        "all gathered": (GATHERED, "Not yet at the bound: .* rounds, where"),
        "in a chain": (
            KEEP.replace(
                "    while distance < size:\n",
                "    if rank:\n        dist.recv(came := torch.zeros_like(own), rank - 1)\n        total += came\n    if rank + 1 < size:\n        dist.send(total, rank + 1)\n    while False:\n",
            ),
            "Not yet at the bound: .* rounds, where",
        ),
        "all tokens to everybody": (
            """
def keep(chosen, experts, capacity, dist):
    rank, size = dist.get_rank(), dist.get_world_size()
    room = torch.full((20,), -1)
    room[: len(chosen)] = chosen
    table = torch.empty(20 * size, dtype=torch.int64)
    dist.all_gather_into_tensor(table, room)
    before, kept = [each for each in table[: 20 * rank].tolist() if each >= 0], []
    for expert in chosen.tolist():
        kept.append(before.count(expert) < capacity)
        before.append(expert)
    return torch.tensor(kept, dtype=torch.bool)
""",
            "Not yet within the target: .*through the busier port",
        ),
        "all counts, in few rounds": (DOUBLED, "Not yet at the bound: .*through the busier port"),
        "twice as many counts": (
            KEEP.replace("minlength=experts)", "minlength=2 * experts)"),
            "Not yet within the target: .*through the busier port",
        ),
        "a round too many": (idling(KEEP, "keep", 1), "Not yet at the bound: .*rounds, where"),
        "sends what it is adding to": (
            KEEP
            .replace("total.clone(), rank + distance", "total, rank + distance")
            .replace("            work.wait()\n", "            pass\n")
            .replace("        total += came\n", "        total += came\n"),
            "may not have arrived|changes the buffer|never waited|before",
        ),
        "state between calls": (
            KEEP.replace("def keep", "takens = {}\ndef keep").replace(
                "taken, kept = (total - own).tolist(), []", "taken, kept = takens.setdefault(rank, (total - own).tolist()), []"
            ),
            "rank . returned|IndexError",
        ),
        "only with tokens": (
            KEEP.replace("    own =", "    if len(chosen) == 0:\n        return chosen.bool()\n    own ="),
            "can never finish|which has finished|deadlock|waits",
        ),
        "loops": (KEEP.replace("        distance *= 2", "        while True:\n            pass"), "had not ended"),
    },
    "layer": {
        "writes on what it was given": (
            LAYER.replace("    back =", "    kept.zero_()\n    back ="),
            "has changed what it was given",
        ),
        "drops nothing": (LAYER.replace("kept.nonzero", "(kept | True).nonzero"), "rank 0 has the results"),
        "drops after it has sent": (
            LAYER.replace("kept.nonzero", "(kept | True).nonzero").replace(
                "weights[token, choice].unsqueeze(1)", "(weights * kept)[token, choice].unsqueeze(1)"
            ),
            "rank . has the rows for the expert here",
        ),
        "drops all of a token or nothing": (
            LAYER.replace("kept.nonzero", "(kept & kept.all(1, keepdim=True)).nonzero"),
            "rank . has the results",
        ),
        "dropped tokens go on": (
            LAYER.replace(
                "torch.zeros_like(tokens).index_add", "torch.where(kept.any(1, keepdim=True), 0 * tokens, tokens).index_add"
            ),
            "rank . has the results",
        ),
        "without weights": (
            LAYER.replace(" * weights[token, choice].unsqueeze(1)", " + 0 * weights[token, choice].unsqueeze(1)"),
            "rank 0 has the results",
        ),
        "weights that do not learn": (
            LAYER.replace("weights[token, choice].unsqueeze", "weights.detach()[token, choice].unsqueeze"),
            "has the gradient of the weights",
        ),
        "tokens that do not learn": (
            LAYER.replace("exchange(tokens[token]", "exchange(tokens.detach()[token]"),
            "has the gradient of the tokens",
        ),
        "experts that do not learn": (
            LAYER.replace(
                "back = exchange(expert(exchange(tokens[token], gets, sends, dist)), sends, gets, dist)",
                "back = exchange(expert(exchange(tokens[token], gets, sends, dist)).detach() + 0 * exchange(tokens[token], gets, sends, dist), sends, gets, dist)",
            ),
            "has the gradient of",
        ),
        "the order is lost": (
            LAYER.replace("    token, choice = token[order], choice[order]\n", ""),
            "rank . has the|which expects",
        ),
        "one row a token": (
            LAYER.replace("torch.zeros_like(tokens).index_add(0, token, ", "torch.zeros_like(tokens).index_copy(0, token, "),
            "has the results",
        ),
        "its own expert for all": (
            LAYER.replace(
                "expert(exchange(tokens[token], gets, sends, dist))", "exchange(tokens[token], gets, sends, dist)"
            ).replace("back * weights", "expert(back) * weights"),
            "rank 0 has the results",
        ),
        "sums of ones own": (
            LAYER.replace(
                "back * weights[token, choice].unsqueeze(1))",
                "back * weights[token, choice].unsqueeze(1)) / dist.get_world_size()",
            ),
            "rank 0 has the results",
        ),
        "an expert that nobody wants": (
            LAYER.replace(", minlength=dist.get_world_size()", ""),
            "all_to_all_single was given|which takes 0 numbers from it",
        ),
        "another dtype": (
            LAYER.replace(
                "return torch.zeros_like(tokens).index_add(0, token, back * weights[token, choice].unsqueeze(1))",
                "return torch.zeros_like(tokens).index_add(0, token, back * weights[token, choice].unsqueeze(1)).float()",
            ),
            "numbers of torch.float32",
        ),
        "flat": (
            LAYER.replace("unsqueeze(1))", "unsqueeze(1)).flatten()"),
            r"of shape \(\d+,\): return one of shape \(rows, width\)",
        ),
        "the built-in has no gradient": (PLAIN + LAYER[len(EXCHANGE) :], "no gradient flows|has the gradient of the"),
        "all tokens to all": (
            EXCHANGE
            + '''
def layer(tokens, chosen, weights, kept, expert, dist):
    """Every expert is given every token."""
    size, rank = dist.get_world_size(), dist.get_rank()
    counts = [torch.zeros(1, dtype=torch.int64) for _ in range(size)]
    dist.all_gather(counts, torch.tensor([len(tokens)]))
    gets, sends = [int(each) for each in counts], [len(tokens)] * size
    done = expert(exchange(tokens.repeat(size, 1), gets, sends, dist))
    back = exchange(done, sends, gets, dist).view(size, len(tokens), -1)
    shares = torch.stack([(weights * ((chosen == each) & kept)).sum(1) for each in range(size)])
    return (back * shares.unsqueeze(2)).sum(0)
''',
            "has the rows for the expert here",
        ),
        "the counts on the way back too": (
            LAYER.replace("    back =", "    dist.all_to_all_single(torch.empty_like(to_each), from_each)\n    back ="),
            "Not yet at the bound: .*through the busier port",
        ),
        "counts for all": (
            LAYER.replace(
                "    back =",
                "    table = torch.empty(20 * len(to_each), dtype=torch.int64)\n    dist.all_to_all_single(table, table.clone().zero_())\n    back =",
            ),
            "Not yet within the target: .*through the busier port",
        ),
        "only with tokens": (
            LAYER.replace(
                "    token, choice =", "    if len(tokens) == 0:\n        return tokens.clone()\n    token, choice =", 1
            ),
            "can never finish|which has finished|deadlock|waits",
        ),
        "state between calls": (
            LAYER.replace("def layer", "counts = {}\ndef layer").replace(
                "    from_each =",
                "    to_each = counts.setdefault((dist.get_rank(), dist.get_world_size()), to_each)\n    from_each =",
            ),
            "split sizes|which expects|given",
        ),
        "loops": (
            LAYER.replace("    token, choice =", "    while True:\n        pass\n    token, choice =", 1),
            "had not ended",
        ),
    },
}
