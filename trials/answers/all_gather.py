"""Answers to the lab "All-gather"."""

from . import idling, writing_on_what_it_was_given

RING = '''
def ring_all_gather(shard, dist, order=None):
    """Hand on what came last."""
    rank, size = dist.get_rank(), dist.get_world_size()
    order = order or [*range(size)]
    at = order.index(rank)
    right, left = order[(at + 1) % size], order[at - 1]
    found, last = {rank: shard.clone()}, shard
    for step in range(1, size):
        got = torch.empty_like(shard)
        works = dist.batch_isend_irecv([
            dist.P2POp(dist.irecv, got, left),
            dist.P2POp(dist.isend, last, right),
        ])
        for work in works:
            work.wait()
        found[order[at - step]] = last = got
    return torch.cat([found[other] for other in range(size)])
'''
DIRECT = """
def ring_all_gather(shard, dist, order=None):
    rank, size = dist.get_rank(), dist.get_world_size()
    order = order or [*range(size)]
    at = order.index(rank)
    right, left = order[(at + 1) % size], order[at - 1]
    found = [torch.empty_like(shard) for _ in range(size)]
    found[rank] = shard
    for step in range(1, size):
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, shard, (rank + step) % size), dist.P2POp(dist.irecv, found[rank - step], (rank - step) % size)]):
            work.wait()
    return torch.cat(found)
"""
WHOLE = """
def ring_all_gather(shard, dist, order=None):
    rank, size = dist.get_rank(), dist.get_world_size()
    order = order or [*range(size)]
    at = order.index(rank)
    right, left = order[(at + 1) % size], order[at - 1]
    whole = shard.new_zeros(size, len(shard))
    whole[rank] = shard
    for step in range(1, size):
        got = torch.empty_like(whole)
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, whole, right), dist.P2POp(dist.irecv, got, left)]):
            work.wait()
        whole[order[at - step]] = got[order[at - step]]
    return whole.view(-1)
"""
BRUCK = '''
def bruck_all_gather(shard, dist):
    """One tensor that grows; at the end it is turned so that rank 0's comes first."""
    rank, size, n = dist.get_rank(), dist.get_world_size(), len(shard)
    have, count = shard.clone(), 1
    while count < size:
        more = min(count, size - count)
        got = have.new_empty(more * n)
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, have[: more * n], (rank + count) % size), dist.P2POp(dist.irecv, got, (rank - count) % size)]):
            work.wait()
        have = torch.cat([have, got])
        count += more
    return have.view(size, n).flip(0).roll(rank + 1, 0).view(-1)
'''
PADDED = """
def gather_all_lengths(x, dist):
    size = dist.get_world_size()
    lengths = [torch.zeros(1, dtype=torch.int64, device=x.device) for _ in range(size)]
    dist.all_gather(lengths, torch.tensor([x.numel()], device=x.device))
    lengths = torch.cat(lengths).tolist()
    padded = torch.nn.functional.pad(x, (0, max(lengths) - len(x)))
    whole = padded.new_empty(size * len(padded))
    dist.all_gather_into_tensor(whole, padded)
    return [row[:length].clone() for row, length in zip(whole.view(size, -1), lengths)] if max(lengths) else [x.new_empty(0)] * size
"""
BUILT = "it calls a collective of torch's"

RIGHT = {
    "ring_all_gather": {"hands on what came last": RING},
    "bruck_all_gather": {"one tensor that grows": BRUCK},
    "gather_all_lengths": {"into one tensor": PADDED},
}

WRONG = {
    "ring_all_gather": {
        "writes on what it was given": (writing_on_what_it_was_given(RING, "ring_all_gather"), "has changed what it was given"),
        "a round too many": (
            idling(
                RING,
                "ring_all_gather",
                1,
                right="options['order'][(options['order'].index(rank) + 1) % size]",
                left="options['order'][options['order'].index(rank) - 1]",
            ),
            "Not yet at the bound: .* 2 rounds, where 1 (is|are) enough",
        ),
        "the last work alone": (
            RING.replace("        for work in works:\n            work.wait()", "        works[-1].wait()"),
            "on 3 ranks, .*run once more: rank . reads the buffer for a message",
        ),
        "one tensor, many times in a list": (
            "def ring_all_gather(shard, dist, order):\n    rank, size = dist.get_rank(), dist.get_world_size()\n    at = order.index(rank)\n    found = [torch.empty_like(shard)] * size\n    found[rank] = shard\n    for step in range(size - 1):\n        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, found[rank - step], order[(at + 1) % size]), dist.P2POp(dist.irecv, found[rank - step - 1], order[at - 1])]):\n            work.wait()\n    return torch.cat(found)",
            "on 3 ranks, .*sends from and receives into the same memory in one batch",
        ),
        "whole tensors instead of shards": (WHOLE, "Not yet at the bound: on 2 ranks, .* B through the busier port"),
        "not a ring": (DIRECT, r"rank \d sent to rank \d, and the next in the order is rank \d"),
        "its own shard again and again": (RING.replace("last, right", "shard, right"), "on 3 ranks, .*returned"),
        "off by one in the place": (
            RING.replace("found[order[at - step]] = last", "found[order[at - step + 1]] = last").replace(
                "found[other] for", "found.get(other, shard) for"
            ),
            "rank . returned",
        ),
        "backwards, kept as from the one before": (
            RING.replace("got, left", "got, right").replace("last, right", "last, left"),
            "on 3 ranks",
        ),
        "one step too few": (
            RING.replace("range(1, size)", "range(1, size - 1)").replace("found[other] for", "found.get(other, shard) for"),
            "on 2 ranks.*returned",
        ),
        "one step too many": (
            RING.replace("range(1, size)", "range(1, size + (size > 1))"),
            "Not yet at the bound: on 2 ranks, .* B through the busier port",
        ),
        "in the order of the ring": (
            RING.replace("for other in range(size)", "for other in order"),
            r"on 3 ranks, .*order=\[0, 2, 1\]: rank . returned",
        ),
        "in the order of the ranks": (
            RING.replace("order = order or [*range(size)]", "order = [*range(size)]"),
            r"on 3 ranks, .*rank 0 sent to rank 1, and the next in the order is rank 2",
        ),
        "in the order of coming": (
            RING.replace("torch.cat([found[other] for other in range(size)])", "torch.cat(list(found.values()))"),
            "rank . returned",
        ),
        "right for powers of two": (
            RING.replace("    found, last", "    assert size in (1, 2, 4, 8)\n    found, last"),
            "on 3 ranks.*AssertionError",
        ),
        "a missing wait": (RING.replace("            work.wait()", "            pass"), "may not have arrived|wait"),
        "a list": (
            RING.replace(
                "return torch.cat([found[other] for other in range(size)])", "return [found[other] for other in range(size)]"
            ),
            "a list of 2 tensors and should return a tensor",
        ),
        "received into what is sent": (
            RING.replace("got = torch.empty_like(shard)", "got = last"),
            "on 2 ranks, .*rank 0 sends from and receives into the same memory in one batch",
        ),
        "in float32": (
            RING.replace("    rank, size", "    shard = shard.float()\n    rank, size"),
            "numbers of torch.float32 and was given torch",
        ),
        "not batched": (
            RING
            .replace("works = dist.batch_isend_irecv([", "works = [")
            .replace("        ])\n", "        ]\n")
            .replace("dist.P2POp(dist.irecv, got,", "dist.irecv(got,")
            .replace("dist.P2POp(dist.isend, last,", "dist.isend(last,"),
            "deadlock under NCCL's rules",
        ),
        "the built-in": (
            "def ring_all_gather(shard, dist, order):\n    whole = shard.new_empty(dist.get_world_size() * len(shard))\n    dist.all_gather_into_tensor(whole, shard)\n    return whole",
            BUILT,
        ),
        "state between calls": (
            RING.replace("def ring", "kept = {}\ndef ring").replace(
                "    return torch.cat([found[other] for other in range(size)])",
                "    return kept.setdefault((rank, size, shard.shape, shard.dtype), torch.cat([found[other] for other in range(size)]))",
            ),
            "rank . returned",
        ),
    },
    "bruck_all_gather": {
        "writes on what it was given": (
            writing_on_what_it_was_given(BRUCK, "bruck_all_gather"),
            "has changed what it was given",
        ),
        "two rounds too many": (
            idling(BRUCK, "bruck_all_gather", 2, "size & (size - 1)"),
            "Not yet at the bound: on 3 ranks, .* 4 rounds, where 2 are enough",
        ),
        "a ring": (
            RING.replace("ring_all_gather", "bruck_all_gather"),
            "Not yet within the target: on 5 ranks|Not yet within the target: on 4 ranks",
        ),
        "all you have in the last round too": (
            BRUCK.replace("more = min(count, size - count)", "more = count").replace(
                "have.view(size, n)", "have[: size * n].view(size, n)"
            ),
            "Not yet at the bound: on 3 ranks, .* B through the busier port",
        ),
        "right for powers of two": (BRUCK.replace("more = min(count, size - count)", "more = count"), "on 3 ranks, .*shape"),
        "not turned back": (BRUCK.replace("have.view(size, n).flip(0).roll(rank + 1, 0).view(-1)", "have"), "rank . returned"),
        "turned the wrong way": (
            BRUCK.replace("roll(rank + 1, 0)", "roll(-rank - 1, 0)"),
            "on 3 ranks, .*rank . returned",
        ),
        "to the left": (
            BRUCK.replace("more * n], (rank + count)", "more * n], (rank - count)").replace(
                "got, (rank - count)", "got, (rank + count)"
            ),
            "on 3 ranks, .*returned",
        ),
        "to the left, and laid so": (
            BRUCK
            .replace("more * n], (rank + count)", "more * n], (rank - count)")
            .replace("got, (rank - count)", "got, (rank + count)")
            .replace("flip(0).roll(rank + 1, 0)", "roll(rank, 0)"),
            "on 4 ranks, .*rank . sent 3 ranks to the right: send 1, 2, 4, … ranks to the right",
        ),
        "off by one in the distance": (
            BRUCK.replace("(rank + count) % size", "(rank + count + 1) % size").replace(
                "(rank - count) % size", "(rank - count - 1) % size"
            ),
            "rank 0|returned",
        ),
        "one shard each time": (
            BRUCK.replace("more = min(count, size - count)", "more = 1"),
            "rank . returned|Not yet within the target|sent 3 ranks to the right",
        ),
        "whole tensors instead of shards": (WHOLE.replace("ring_all_gather", "bruck_all_gather"), "Not yet within the target"),
        "a missing wait": (BRUCK.replace("            work.wait()", "            pass"), "may not have arrived|wait"),
        "another dtype": (BRUCK.replace("shard.clone()", "shard.float()"), "numbers of torch.float32 and was given torch"),
        "the built-in": (
            "def bruck_all_gather(shard, dist):\n    whole = shard.new_empty(dist.get_world_size() * len(shard))\n    dist.all_gather_into_tensor(whole, shard)\n    return whole",
            BUILT,
        ),
        "state between calls": (
            BRUCK.replace("def bruck", "kept = {}\ndef bruck").replace(
                "return have.view(size, n).flip(0).roll(rank + 1, 0).view(-1)",
                "return kept.setdefault((rank, size, shard.shape, shard.dtype), have.view(size, n).flip(0).roll(rank + 1, 0).view(-1))",
            ),
            "rank . returned",
        ),
    },
    "gather_all_lengths": {
        "through files": (
            "import os\nimport tempfile\nkept = tempfile.TemporaryDirectory()\nfolder = kept.name\ndef gather_all_lengths(x, dist):\n    torch.save(x, os.path.join(folder, str(dist.get_rank())))\n    dist.barrier()\n    return [torch.load(os.path.join(folder, str(rank))) for rank in range(dist.get_world_size())]",
            "knows what others were given and has received no byte",
        ),
        "writes on what it was given": (
            writing_on_what_it_was_given(PADDED, "gather_all_lengths"),
            "has changed what it was given",
        ),
        "lengths in one byte": (
            PADDED.replace("dtype=torch.int64", "dtype=torch.uint8").replace(
                "torch.tensor([x.numel()]", "torch.tensor([x.numel() % 256], dtype=torch.uint8"
            ),
            "on 5 ranks, .*lengths 2, 300, 1, 3, 4",
        ),
        "as if all were alike": (
            "def gather_all_lengths(x, dist):\n    found = [torch.empty_like(x) for _ in range(dist.get_world_size())]\n    dist.all_gather(found, x)\n    return found",
            "on 2 ranks",
        ),
        "not cut again": (PADDED.replace("row[:length].clone()", "row.clone()"), "shape"),
        "padded to its own length": (PADDED.replace("max(lengths) - len(x)", "0"), "bytes|elements|size"),
        "zeros taken for padding": (PADDED.replace("row[:length].clone()", "row[row != 0].clone()"), "shape"),
        "cut by its own length": (PADDED.replace("row[:length].clone()", "row[: len(x)].clone()"), "shape"),
        "empty ranks stay away": (
            PADDED.replace(
                "    size = dist.get_world_size()\n",
                "    size = dist.get_world_size()\n    if not len(x):\n        return [x] * size\n",
            ),
            "deadlock",
        ),
        "the longest of two": (
            PADDED.replace("max(lengths) - len(x)", "max(lengths[:2]) - len(x)").replace(
                "max(lengths) else", "max(lengths) else"
            ),
            "on . ranks",
        ),
        "with a border of 1000": (
            PADDED.replace("max(lengths) - len(x)", "1000 - len(x)"),
            "Not yet at the bound: on 2 ranks, .*busier port",
        ),
        "one tensor": (
            PADDED.replace("    return [row", "    found = [row").replace(
                "] * size\n", "] * size\n    return torch.cat(found)\n"
            ),
            "returned a tensor of shape .* and should return a list",
        ),
        "in float32": (
            PADDED.replace("    size = dist", "    x = x.float()\n    size = dist"),
            "numbers of torch.float32 and was given torch",
        ),
        "one broadcast for each rank": (
            "def gather_all_lengths(x, dist):\n    found = []\n    for root in range(dist.get_world_size()):\n        length = torch.tensor([len(x)], device=x.device)\n        dist.broadcast(length, src=root)\n        part = x.clone() if root == dist.get_rank() else x.new_empty(length.item())\n        dist.broadcast(part, src=root)\n        found.append(part)\n    return found",
            "Not yet at the bound: on . ranks, .* rounds, where",
        ),
        "state between calls": (
            PADDED
            .replace("def gather", "kept = {}\ndef gather")
            .replace("    return [row", "    found = [row")
            .replace("] * size\n", "] * size\n    return kept.setdefault((dist.get_rank(), tuple(lengths), x.dtype), found)\n"),
            "rank . in place . of its list returned",
        ),
    },
}
