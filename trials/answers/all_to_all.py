"""Answers to the lab "All-to-all"."""

from . import idling, on_a_board, writing_on_what_it_was_given

SWAP = """
def swap(dist, out, to, got, source):
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, out, to), dist.P2POp(dist.irecv, got, source)]):
        work.wait()
"""
EXCHANGE = (
    SWAP
    + """
def exchange(tokens, counts, dist):
    rank, size = dist.get_rank(), dist.get_world_size()
    blocks = tokens.split(counts)
    came = {rank: blocks[rank]}
    for step in range(1, size):
        to, source = (rank + step) % size, (rank - step) % size
        number = torch.empty(1, dtype=torch.int64)
        swap(dist, torch.tensor([counts[to]]), to, number, source)
        came[source] = torch.empty(number.item(), dtype=tokens.dtype)
        swap(dist, blocks[to], to, came[source], source)
    return torch.cat([came[source] for source in range(size)])
"""
)
AT_ONCE = '''
def exchange(tokens, counts, dist):
    """All counts in one batch, then all blocks in another."""
    rank, size = dist.get_rank(), dist.get_world_size()
    numbers = [torch.tensor([count]) for count in counts]
    def all_of(out, into):
        steps = [((rank + s) % size, (rank - s) % size) for s in range(1, size)]
        batch = [op for to, source in steps for op in (dist.P2POp(dist.isend, out[to], to), dist.P2POp(dist.irecv, into[source], source))]
        for work in dist.batch_isend_irecv(batch) if batch else ():
            work.wait()
        into[rank].copy_(out[rank])
    lengths = [torch.zeros(1, dtype=torch.int64) for _ in counts]
    all_of(numbers, lengths)
    came = [tokens.new_zeros(int(each)) for each in lengths]
    all_of(tokens.split(counts), came)
    return torch.cat(came)
'''
EXPERTS = """
def to_experts(tokens, experts, weights, factor, dist):
    size = dist.get_world_size()
    goals = torch.cat([experts[:, 0], experts[:, 1]])
    order = goals.argsort(stable=True)
    sends = torch.bincount(goals, minlength=size)
    gets = torch.empty_like(sends)
    dist.all_to_all_single(gets, sends)
    sends, gets = sends.tolist(), gets.tolist()
    arrived = tokens.new_empty(sum(gets))
    dist.all_to_all_single(arrived, torch.cat([tokens, tokens])[order], gets, sends)
    back = tokens.new_empty(sum(sends))
    dist.all_to_all_single(back, arrived * factor, sends, gets)
    first, second = back[order.argsort()].view(2, -1)
    return first * weights[:, 0] + second * weights[:, 1]
"""
WHOLE = """
def transpose(x, dist):
    blocks = [each.contiguous() for each in x.tensor_split(dist.get_world_size(), 1)]
    return torch.cat([each.T for each in without_jams(blocks, dist)], 1)
"""
PAIRWISE = (
    SWAP
    + WHOLE
    + """
def without_jams(blocks, dist):
    rank, size = dist.get_rank(), dist.get_world_size()
    came = {rank: blocks[rank].clone()}
    for step in range(1, size):
        source = (rank + step) % size
        came[source] = torch.empty_like(blocks[rank])
        swap(dist, blocks[(rank - step) % size], (rank - step) % size, came[source], source)
    return [came[source] for source in range(size)]
"""
)
IN_ORDER = (
    WHOLE
    + """
def without_jams(blocks, dist):
    rank, size = dist.get_rank(), dist.get_world_size()
    came = [torch.empty_like(block) for block in blocks]
    came[rank].copy_(blocks[rank])
    for goal in range(size):
        if rank != goal:
            dist.send(blocks[goal], goal)
            continue
        for source in range(size):
            if source != rank:
                dist.recv(came[source], source)
    return came
"""
)
ONE_BATCH = (
    WHOLE
    + """
def without_jams(blocks, dist):
    rank, size = dist.get_rank(), dist.get_world_size()
    came = [torch.empty_like(block) for block in blocks]
    came[rank].copy_(blocks[rank])
    others = [other for other in range(size) if other != rank]
    batch = [dist.P2POp(dist.isend, blocks[other], other) for other in others]
    batch += [dist.P2POp(dist.irecv, came[other], other) for other in others]
    for work in dist.batch_isend_irecv(batch) if batch else ():
        work.wait()
    return came
"""
)
PARTNERS = (
    PAIRWISE
    .replace("range(1, size)", "range(1, 2 ** (size - 1).bit_length())")
    .replace("source = (rank + step) % size", "source = rank ^ step")
    .replace("blocks[(rank - step) % size], (rank - step) % size", "blocks[source], source")
)

RIGHT = {
    "exchange": {"count and block in turn": EXCHANGE, "all counts at once, then all blocks": AT_ONCE},
    "to_experts": {"first choices, then second choices": EXPERTS},
    "transpose": {"to the left": PAIRWISE},
}

WRONG = {
    "exchange": {
        "on a board that all see": (
            on_a_board(
                "exchange",
                "tokens, counts",
                "torch.cat([blocks[dist.get_rank()] for blocks in put(tokens.split(counts), dist)])",
            ),
            "knows what others were given and has received no byte",
        ),
        "writes on what it was given": (writing_on_what_it_was_given(EXCHANGE, "exchange"), "has changed what it was given"),
        "my counts are everybody's": (EXCHANGE.replace("number.item()", "counts[source]"), "which expects"),
        "all blocks as long as my own": (EXCHANGE.replace("number.item()", "counts[rank]"), "which expects"),
        "padded to the longest": (
            EXCHANGE.replace("torch.empty(number.item(), dtype=tokens.dtype)", "torch.empty(40, dtype=tokens.dtype)").replace(
                "        swap(dist, blocks[to], to, came[source], source)",
                "        padded = torch.zeros(40, dtype=tokens.dtype)\n        padded[: len(blocks[to])] = blocks[to]\n        swap(dist, padded, to, came[source], source)\n        came[source] = came[source][: number.item()]",
            ),
            "Not yet within the target: on 2 ranks, .* through the busier port",
        ),
        "everything to everybody": (
            EXCHANGE.replace(
                "        swap(dist, torch.tensor([counts[to]]), to, number, source)\n",
                """        table = torch.empty(size + 1, dtype=torch.int64)
        swap(dist, torch.tensor([*counts, len(tokens)]), to, table, source)
        number, all_of_it = table[rank : rank + 1], torch.empty(int(table[size]), dtype=tokens.dtype)
        swap(dist, tokens, to, all_of_it, source)
""",
            ).replace(
                "        swap(dist, blocks[to], to, came[source], source)",
                "        came[source] = all_of_it.split(table[:size].tolist())[rank]",
            ),
            "Not yet (within the target|at the bound): .* through the busier port",
        ),
        "all counts to everybody": (
            EXCHANGE
            .replace("torch.tensor([counts[to]])", "torch.tensor(counts)")
            .replace("number = torch.empty(1,", "number = torch.empty(size,")
            .replace("number.item()", "number[rank].item()"),
            "Not yet (within the target|at the bound): .* through the busier port",
        ),
        "in the order of arrival": (
            EXCHANGE.replace("for source in range(size)])", "for source in came])"),
            "rank . returned .* and should return",
        ),
        "without one's own": (
            EXCHANGE.replace("for source in range(size)])", "for source in range(size) if source != rank])"),
            "rank . returned a tensor of shape|expected a non-empty list",
        ),
        "off by one in the source": (
            EXCHANGE.replace("(rank - step) % size", "(rank - step + 1) % size"),
            "wants to receive from itself",
        ),
        "another dtype": (
            EXCHANGE.replace("tokens.split", "tokens.float().split").replace("dtype=tokens.dtype", "dtype=torch.float32"),
            "numbers of torch.float32 and was given torch.int64",
        ),
        "an empty block is not sent": (
            EXCHANGE.replace(
                "        swap(dist, blocks[to], to", "        if counts[to]:\n            swap(dist, blocks[to], to"
            ),
            "waits to send to|which has finished|which expects",
        ),
        "right for powers of two": (
            EXCHANGE.replace("to, source = (rank + step) % size, (rank - step) % size", "to = source = rank ^ step"),
            "on 3 ranks, .*IndexError",
        ),
        "a missing wait": (EXCHANGE.replace("        work.wait()", "        pass"), "may not have arrived"),
        "the built-in": (
            "def exchange(tokens, counts, dist):\n    n = torch.tensor(counts)\n    m = torch.empty_like(n)\n    dist.all_to_all_single(m, n)\n    y = tokens.new_empty(int(m.sum()))\n    dist.all_to_all_single(y, tokens, m.tolist(), counts)\n    return y",
            "it calls a collective of torch's",
        ),
        "state between calls": (
            EXCHANGE
            .replace("def exchange", "came = {}\ndef exchange")
            .replace(
                "    came = {rank: blocks[rank]}",
                "    came.setdefault((rank, 0), []).append(blocks[rank])\n    mine = came[rank, 0]",
            )
            .replace("came[source]", "came[rank, 1, source]")
            .replace(
                "torch.cat([came[rank, 1, source] for source in range(size)])",
                "torch.cat([torch.cat(mine) if source == rank else came[rank, 1, source] for source in range(size)])",
            ),
            r"shape \(\d+,\) and should return",
        ),
    },
    "to_experts": {
        "writes on what it was given": (writing_on_what_it_was_given(EXPERTS, "to_experts"), "has changed what it was given"),
        "the order is not undone": (EXPERTS.replace("back[order.argsort()]", "back"), "rank . returned"),
        "sorted once more": (EXPERTS.replace("order.argsort()", "order"), "rank . returned"),
        "the counts are not swapped": (
            EXPERTS.replace("arrived * factor, sends, gets", "arrived * factor, gets, sends"),
            "split sizes|which expects|rank . returned",
        ),
        "every token to its first expert alone": (
            EXPERTS.replace("torch.cat([experts[:, 0], experts[:, 1]])", "torch.cat([experts[:, 0], experts[:, 0]])"),
            r"on 2 ranks, 2 tokens each: rank 0 returned .*: its token . is \d and should be 0.\d+ · \d+ · \d by rank . and 0.\d+ · \d+ · \d by rank ",
        ),
        "the weights the wrong way round": (
            EXPERTS.replace("weights[:, 0]", "weights[:, 2 - 1]", 1).replace(
                "second * weights[:, 1]", "second * weights[:, 0]"
            ),
            "rank . returned",
        ),
        "weighted as if both were equal": (
            EXPERTS.replace("* weights[:, 0]", "/ 2").replace("* weights[:, 1]", "/ 2"),
            "rank . returned",
        ),
        "my own factor for all": (
            EXPERTS.replace("arrived * factor", "arrived").replace(
                "return first", "first, second = first * factor, second * factor\n    return first"
            ),
            "rank . returned",
        ),
        "an expert without tokens": (
            EXPERTS.replace("torch.bincount(goals, minlength=size)", "torch.bincount(goals)"),
            "all_to_all_single was given|in all_to_all_single rank . gives",
        ),
        "the factors come home": (
            """
def to_experts(tokens, experts, weights, factor, dist):
    factors = [torch.zeros(1) for _ in range(dist.get_world_size())]
    dist.all_gather(factors, torch.tensor([float(factor)]))
    return tokens * (weights * torch.cat(factors)[experts]).sum(1)
""",
            "the sums are right, but rank 0 received 4 B: it should receive 2 tokens of other ranks",
        ),
        "everything to everybody": (
            """
def to_experts(tokens, experts, weights, factor, dist):
    rank, size = dist.get_rank(), dist.get_world_size()
    factors = [torch.zeros(64) for _ in range(size)]
    dist.all_gather(factors, torch.full((64,), factor))
    factors = torch.stack(factors)[:, 0]
    return tokens * (weights * factors[experts]).sum(1)
""",
            "Not yet within the target: .*through the busier port",
        ),
        "the counts on the way back too": (
            EXPERTS.replace(
                "    back =",
                "    again = torch.empty(size, dtype=torch.int64)\n    dist.all_to_all_single(again, torch.tensor(gets))\n    back =",
            ),
            "Not yet at the bound: .*through the busier port",
        ),
        "in place": (
            EXPERTS.replace("    goals =", "    tokens *= 1.5\n    goals ="),
            "rank . returned|has changed what it was given",
        ),
        "only with tokens": (
            EXPERTS.replace("    size =", "    if len(tokens) == 0:\n        return tokens\n    size ="),
            "which has finished|can never finish",
        ),
        "another dtype": (
            EXPERTS.replace("return first", "weights = weights.double()\n    return first"),
            "numbers of torch.float64 and was given torch.float32",
        ),
    },
    "transpose": {
        "writes on what it was given": (
            writing_on_what_it_was_given(PAIRWISE, "transpose"),
            "has changed what it was given",
        ),
        "a round too many": (
            idling(PAIRWISE, "transpose", 1),
            "Not yet at the bound: .* from the first start to the last end, where",
        ),
        "in turn, and all at once": (
            ONE_BATCH.replace(
                "others = [other for other in range(size) if other != rank]",
                "others = [(rank + step) % size for step in range(1, size)]",
            ),
            "Not yet at the bound: .* messages on their way to one rank at once",
        ),
        "in rank order": (IN_ORDER, "Not yet within the target: on [4-8] ranks|Not yet within the target: on 3 ranks"),
        "all in one batch": (ONE_BATCH, "Not yet within the target: on . ranks|at once, where 1 is enough"),
        "partners by exclusive or": (PARTNERS, "on 3 ranks, .*IndexError"),
        "off by one in the block": (
            PAIRWISE.replace("swap(dist, blocks[(rank - step) % size]", "swap(dist, blocks[(rank - step - 1) % size]"),
            "on 2 ranks, .*rank 0 returned",
        ),
        "rows and columns": (
            WHOLE + "def without_jams(blocks, dist):\n    return [block.clone() for block in blocks]",
            "rank 0 returned .* the part of rank 1 is missing",
        ),
        "blocks in their places, not transposed": (
            PAIRWISE.replace("each.T for", "each for"),
            "rank . returned a tensor of shape|rank . returned",
        ),
        "a strip that is not in one piece": (
            PAIRWISE.replace("each.contiguous() for", "each for"),
            "contiguous",
        ),
        "in the order of arrival": (
            PAIRWISE.replace("for source in range(size)]", "for source in came]"),
            "rank 1 returned",
        ),
        "a step too few": (PAIRWISE.replace("range(1, size):", "range(1, size - 1):"), "KeyError"),
        "received into what is still to be sent": (
            PAIRWISE.replace("came[source] = torch.empty_like(blocks[rank])", "came[source] = blocks[source]"),
            "sends from and receives into the same memory in one batch",
        ),
        "the round twice": (
            PAIRWISE.replace("range(1, size):", "[*range(1, size), *range(1, size)]:"),
            "Not yet (within the target|at the bound): .*from the first start",
        ),
        "whole tensors": (
            PAIRWISE
            .replace("    for step", "    for step")
            .replace("torch.empty_like(blocks[rank])", "torch.empty_like(torch.stack(blocks))")
            .replace("blocks[(rank - step) % size], (rank", "torch.stack(blocks), (rank")
            .replace(
                "return [came[source] for source in range(size)]",
                "return [came[s] if s == rank else came[s][rank] for s in range(size)]",
            ),
            "Not yet (within the target|at the bound): on . ranks",
        ),
        "send, then receive": (
            PAIRWISE.replace(
                "swap(dist, blocks[(rank - step) % size], (rank - step) % size, came[source], source)",
                "dist.send(blocks[(rank - step) % size], (rank - step) % size)\n        dist.recv(came[source], source)",
            ),
            "they wait in a circle",
        ),
        "another dtype": (PAIRWISE.replace("torch.empty_like(blocks[rank])", "torch.empty(blocks[0].shape)"), "float64"),
        "a missing wait": (PAIRWISE.replace("        work.wait()", "        pass"), "may not have arrived"),
        "the built-in": (
            WHOLE
            + "def without_jams(blocks, dist):\n    came = [torch.empty_like(each) for each in blocks]\n    dist.all_to_all(came, blocks)\n    return came",
            "it calls a collective of torch's",
        ),
    },
}
