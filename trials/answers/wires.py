"""Answers to the lab "Wires"."""

from . import idling

CARDS = '''
FAR = {"PIX": 0, "PXB": 1, "PHB": 2, "NODE": 3, "SYS": 4}

def cards(codes):
    near = [[card for card, code in enumerate(row) if FAR[code] == min(FAR[each] for each in row)] for row in codes]
    used, taken = [[] for _ in codes[0]], {}

    def make_room(gpu, room, seen):
        """Whether `gpu` finds a card with room, others changing places for it."""
        for card in near[gpu]:
            if card in seen:
                continue
            seen.add(card)
            if len(used[card]) < room or any(make_room(other, room, seen) for other in list(used[card])):
                if gpu in taken:
                    used[taken[gpu]].remove(gpu)
                used[card].append(gpu)
                taken[gpu] = card
                return True
        return False

    room = 1
    for gpu in range(len(codes)):
        while not make_room(gpu, room, set()):
            room += 1
    return [taken[gpu] for gpu in range(len(codes))]
'''
FIRST = """
FAR = ORDER

def cards(codes):
    return [min(range(len(row)), key=lambda card: FAR.index(row[card])) for row in codes]
"""
FEWEST = """
FAR = ["PIX", "PXB", "PHB", "NODE", "SYS"]

def cards(codes):
    found = []
    for row in codes:
        found.append(min(range(len(row)), key=lambda card: (FAR.index(row[card]), found.count(card))))
    return found
"""

RINGS = '''
import itertools

def walk(nodes, cards, several):
    """Shifts of a ring's card, node by node, so that it keeps its rail between nodes."""
    for shifts in itertools.product(range(cards), repeat=nodes - 1):
        shifts = (0, *shifts)
        moves = [one != other for one, other in zip(shifts, shifts[1:] + shifts[:1])]
        if (not any(moves) if several or nodes == 1 or cards == 1 else all(moves)):
            return shifts

def rings(places):
    nodes, cards = (1 + max(each) for each in zip(*places))
    several = len(places) > nodes * cards
    shifts, found = walk(nodes, cards, several), []
    for first in range(cards):
        ring = []
        for node in range(nodes):
            into, out = (first + shifts[node]) % cards, (first + shifts[(node + 1) % nodes]) % cards
            here = [rank for rank, (there, _) in enumerate(places) if there == node]
            head = next(rank for rank in here if places[rank][1] == into)
            here.remove(head)
            here.sort(key=lambda rank: places[rank][1] == out)
            ring += [head] + here
        found.append(ring)
    return found
'''
NEXT_CARD = '''
def rings(places):
    """Out by one card, in by the next one."""
    nodes, cards = (1 + max(each) for each in zip(*places))
    found = []
    for out in range(cards):
        ring = []
        for node in range(nodes):
            here = [rank for rank, (there, _) in enumerate(places) if there == node]
            here.sort(key=lambda rank: (places[rank][1] - out - 1) % cards)
            ring += here
        found.append(ring)
    return found
'''
WIRE = """
import pandas as pd

def busiest_wire(messages, places, nvlink, card):
    speeds = {"GPU": nvlink / 2, "card": card / 8}
    rows = []
    for src, dst, nbytes in messages:
        kind = "GPU" if places[src][0] == places[dst][0] else "card"
        for end, way in (src, "out"), (dst, "in"):
            rows.append((kind, end if kind == "GPU" else places[end], way, nbytes / speeds[kind]))
    table = pd.DataFrame(rows, columns=["kind", "which", "way", "seconds"])
    seconds = table.groupby(["kind", "which", "way"], sort=False)["seconds"].sum()
    return tuple(seconds.idxmax()), float(seconds.max())
"""
HAND_OVER = """
def hand_over(x, dist, ranks_per_node):
    rank, size = dist.get_rank(), dist.get_world_size()
    place, second = rank % ranks_per_node, rank >= ranks_per_node
    pieces = list(x.tensor_split(ranks_per_node))
    if second:
        pieces = [torch.empty_like(piece) for piece in pieces]
    across = dist.irecv if second else dist.isend
    for work in dist.batch_isend_irecv([dist.P2POp(across, pieces[place], (rank + ranks_per_node) % size)]):
        work.wait()
    if not second:
        return None
    right, left = ranks_per_node + (place + 1) % ranks_per_node, ranks_per_node + (place - 1) % ranks_per_node
    for step in range(ranks_per_node - 1):
        for work in dist.batch_isend_irecv([
            dist.P2POp(dist.isend, pieces[(place - step) % ranks_per_node], right),
            dist.P2POp(dist.irecv, pieces[(place - step - 1) % ranks_per_node], left),
        ]):
            work.wait()
    return torch.cat(pieces)
"""
WHOLE = """
def hand_over(x, dist, ranks_per_node):
    rank = dist.get_rank()
    if rank < ranks_per_node:
        dist.send(x, rank + ranks_per_node)
        return None
    got = torch.empty_like(x)
    dist.recv(got, rank - ranks_per_node)
    return got
"""
ONE_CARD = '''
def hand_over(x, dist, ranks_per_node):
    """By rank 0's card, and then from rank to rank."""
    rank, got = dist.get_rank(), torch.empty_like(x)
    if rank == 0:
        dist.send(x, ranks_per_node)
    if rank < ranks_per_node:
        return None
    dist.recv(got, 0 if rank == ranks_per_node else rank - 1)
    if rank + 1 < 2 * ranks_per_node:
        dist.send(got, rank + 1)
    return got
'''
BY_THE_FIRST = '''
def hand_over(x, dist, ranks_per_node):
    """All pieces to the first rank of the node, and all of it from there."""
    rank, k = dist.get_rank(), ranks_per_node
    pieces = list(x.tensor_split(k))
    if rank < k:
        dist.send(pieces[rank], rank + k)
        return None
    got = torch.empty_like(x)
    pieces = got.tensor_split(k)
    dist.recv(pieces[rank - k], rank - k)
    if rank > k:
        dist.send(pieces[rank - k], k)
        dist.recv(got, k)
        return got
    for place in range(1, k):
        dist.recv(pieces[place], k + place)
    for place in range(1, k):
        dist.send(got, k + place)
    return got
'''
IN_LINE = '''
def hand_over(x, dist, ranks_per_node):
    """Everybody gives its piece to the first, then everybody to the second, …"""
    rank, k = dist.get_rank(), ranks_per_node
    if rank < k:
        dist.send(x.tensor_split(k)[rank], rank + k)
        return None
    got = torch.empty_like(x)
    pieces = got.tensor_split(k)
    dist.recv(pieces[rank - k], rank - k)
    for goal in range(k):
        if goal != rank - k:
            dist.send(pieces[rank - k], k + goal)
            continue
        for place in range(k):
            if place != goal:
                dist.recv(pieces[place], k + place)
    return got
'''

RIGHT = {
    "cards": {"places changed until there is room": CARDS},
    "rings": {"shifts found by trying": RINGS},
    "busiest_wire": {"with pandas": WIRE},
    "hand_over": {"pieces round a ring": HAND_OVER},
}

WRONG = {
    "cards": {
        "the GPU's own number": (
            "def cards(codes):\n    return list(range(len(codes)))",
            "2 GPUs, 2 cards: says card 0 for GPU 0, at NODE; card 1 is nearer, at PIX",
        ),
        "only PIX counts": ("def cards(codes):\n    return [row.index('PIX') for row in codes]", "ValueError"),
        "only PIX counts, else the first": (
            "def cards(codes):\n    return [row.index('PIX') if 'PIX' in row else 0 for row in codes]",
            "8 GPUs, 4 cards, no switch: says card 0 for GPU 4, at SYS; card 2 is nearer, at NODE",
        ),
        "by the alphabet": (
            FIRST.replace("ORDER", 'sorted(["PIX", "PXB", "PHB", "NODE", "SYS"])'),
            "at NODE; card 1 is nearer, at PIX",
        ),
        "the host bridge before the switches": (
            FIRST.replace("ORDER", '["PIX", "PHB", "PXB", "NODE", "SYS"]'),
            "says card 0 for GPU 0, at PHB; card 1 is nearer, at PXB",
        ),
        "NODE before PHB": (
            FIRST.replace("ORDER", '["PIX", "PXB", "NODE", "PHB", "SYS"]'),
            "says card 0 for GPU 1, at NODE; card 2 is nearer, at PHB",
        ),
        "the farthest": (FIRST.replace("ORDER", '["SYS", "NODE", "PHB", "PXB", "PIX"]'), "at NODE; card 1 is nearer, at PIX"),
        "all the first card": ("def cards(codes):\n    return [0] * len(codes)", "says card 0 for GPU 0, at NODE"),
        "evenly, near or far": (
            "def cards(codes):\n    return [(gpu + 1) % len(codes[0]) for gpu in range(len(codes))]",
            "says card 1 for GPU 0, at SYS; card 8 is nearer, at PIX",
        ),
        "the first of the nearest": (
            FIRST.replace("ORDER", '["PIX", "PXB", "PHB", "NODE", "SYS"]'),
            "Not yet within the target: 8 GPUs, 4 cards, no switch: 4 GPUs share card 0",
        ),
        "whoever comes first": (FEWEST, "Not yet at the bound: .*2 GPUs share card"),
        "counted from 1": (
            CARDS.replace("taken[gpu] for gpu", "taken[gpu] + 1 for gpu"),
            "says card 2 for GPU 0: the cards are 0 to 1",
        ),
        "names": (
            CARDS.replace("taken[gpu] for gpu", "f'NIC{taken[gpu]}' for gpu"),
            "return a list of 2 cards, one for each GPU, as whole numbers",
        ),
    },
    "rings": {
        "one ring": (RINGS.replace("range(cards):", "range(1):"), "returned 1 ring; a node has 2 cards"),
        "a ring for each GPU": (
            RINGS.replace("return found", "return found if len(places) != nodes * cards * 2 else found * 2"),
            "2 cards and 4 GPUs each, .*returned 4 rings; a node has 2 cards",
        ),
        "in the order of the numbers": (
            "def rings(places):\n    cards = 1 + max(card for _, card in places)\n    return [list(range(len(places)))] * cards",
            "ranks dealt out: ring 0 leaves node 0 4 times",
        ),
        "through one node only": (
            RINGS.replace("for node in range(nodes):", "for node in range(1):"),
            "it should have each of the 4 ranks once",
        ),
        "back to the first": (
            RINGS.replace("found.append(ring)", "found.append(ring + ring[:1])"),
            "it should have each of the 4 ranks once",
        ),
        "all by one card": (
            "def rings(places):\n    cards = 1 + max(card for _, card in places)\n    return [sorted(range(len(places)), key=places.__getitem__)] * cards",
            "Not yet within the target: 2 nodes with 2 cards and 2 GPUs each, .*has to send for 2 rings",
        ),
        "every second ring backwards": (
            "def rings(places):\n    cards = 1 + max(card for _, card in places)\n    ring = sorted(range(len(places)), key=places.__getitem__)\n    return [ring if n % 2 else ring[::-1] for n in range(cards)]",
            "Not yet within the target: .*has to (send|receive) for 2 rings, and card",
        ),
        "all in by one card": (
            NEXT_CARD.replace(
                "key=lambda rank: (places[rank][1] - out - 1) % cards",
                "key=lambda rank: (places[rank][1] == out, places[rank][1])",
            ),
            "Not yet within the target: .*has to receive for",
        ),
        "out by one, in by the next": (NEXT_CARD, "Not yet at the bound: .*changes rails from rank"),
        "rails for an even number of nodes": (
            RINGS.replace(
                "shifts, found = walk(nodes, cards, several), []",
                "shifts, found = [0 if several else node % 2 for node in range(nodes)], []",
            ),
            "Not yet within the target: 3 nodes with 3 cards .*has to send for 2 rings, and card 0 of node 2 for none",
        ),
        "a flat list": ("def rings(places):\n    return list(range(len(places)))", "return a list of rings"),
        "fractions": (
            RINGS.replace("found.append(ring)", "found.append([float(rank) for rank in ring])"),
            "it should have each of the 4 ranks once",
        ),
    },
    "busiest_wire": {
        "both directions for one": (
            WIRE.replace("nvlink / 2", "nvlink"),
            "says 10 ms where it takes 20 ms. Does NVLink's number count both directions",
        ),
        "bits for bytes": (WIRE.replace("card / 8", "card"), "says 12.5 ms where it takes 100 ms. Are the cards' numbers bits"),
        "out and in together": (
            WIRE.replace('["kind", "which", "way"], sort', '["kind", "which"], sort').replace(
                "return tuple(seconds.idxmax())", "return (*seconds.idxmax(), 'out')"
            ),
            "both ways at once.* says 31.1 ms where",
        ),
        "each rank has a card": (
            WIRE.replace('end if kind == "GPU" else places[end]', 'end if kind == "GPU" else (places[end][0], end)'),
            "two GPUs with one card, .*says 80 ms where it takes 140 ms",
        ),
        "only what goes out": (
            WIRE.replace('(src, "out"), (dst, "in")', '((src, "out"),)'),
            "everybody to rank 0, .*says 8.9 ms where it takes 20 ms",
        ),
        "the longest message": (WIRE.replace(".sum()", ".max()"), "two messages of one pair"),
        "all bytes over one wire": (
            WIRE.replace(
                '["kind", "which", "way"], sort=False)["seconds"].sum()',
                '["kind", "which", "way"], sort=False)["seconds"].sum() * 0 + table.seconds.sum() / 2',
            ),
            "both ways at once",
        ),
        "through NVLink as well": (
            WIRE.replace(
                "        for end, way in",
                '        if kind == "card":\n            rows += [("GPU", src, "out", nbytes / speeds["GPU"]), ("GPU", dst, "in", nbytes / speeds["GPU"])]\n        for end, way in',
            ),
            "much in a node, little between, .*says 102 ms where it takes 100 ms",
        ),
        "nodes by rank number": (
            WIRE.replace("    speeds =", "    places = sorted(places)\n    speeds ="),
            "ranks are dealt out, .* where it takes 40 ms",
        ),
        "the most bytes": (
            WIRE.replace(
                "return tuple(seconds.idxmax()), float(seconds.max())",
                """table["nbytes"] = [each for each in table.seconds * table.kind.map(speeds)]
    through = table.groupby(["kind", "which", "way"], sort=False)["nbytes"].sum()
    most = through.idxmax()
    return tuple(most), float(through.max() / speeds[most[0]])""",
            ),
            "more in a node than between, .*says 20 ms where it takes 40 ms",
        ),
        "the wire's other end": (
            WIRE.replace(
                "return tuple(seconds.idxmax())",
                "kind, which, way = seconds.idxmax()\n    return (kind, which, {'in': 'out', 'out': 'in'}[way])",
            ),
            "the time is right, and the wire",
        ),
        "seconds alone": (WIRE.replace("return tuple(seconds.idxmax()), float", "return float"), "return a wire and seconds"),
    },
    "hand_over": {
        "whole vectors, each by its own card": (
            WHOLE,
            "Not yet within the target: on 4 ranks, .*through the busiest card, where",
        ),
        "all by one card": (ONE_CARD, "Not yet within the target: on 4 ranks, .*through the busiest card, where"),
        "whole vectors from the first of the node": (BY_THE_FIRST, "Not yet at the bound: .*through the busier port"),
        "all to one, then all to the next": (IN_LINE, "Not yet at the bound: .*from the first start to the last end"),
        "a round too many": (
            idling(HAND_OVER, "hand_over", 2),
            "Not yet at the bound: on 8 ranks, .*from the first start to the last end",
        ),
        "the second node's own numbers": (
            HAND_OVER.replace("torch.empty_like(piece) for piece", "piece.clone() for piece").replace(
                "range(ranks_per_node - 1)", "range(ranks_per_node - 2)"
            ),
            "rank 2 returned .* and should return",
        ),
        "a step too few": (
            HAND_OVER.replace("range(ranks_per_node - 1)", "range(ranks_per_node - 2)"),
            "that memory was never written",
        ),
        "only where it divides": (
            HAND_OVER.replace("x.tensor_split(ranks_per_node)", "x.view(ranks_per_node, -1)"),
            "on (4|6) ranks, .*(shape|returned)",
        ),
        "only powers of two": (
            HAND_OVER.replace("    rank, size", "    assert ranks_per_node & (ranks_per_node - 1) == 0\n    rank, size"),
            "on 6 ranks, .*AssertionError",
        ),
        "off by one": (
            HAND_OVER.replace("(across, pieces[place],", "(across, pieces[place] if second else pieces[place - 1],"),
            "rank . returned|which expects",
        ),
        "always two a node": (
            HAND_OVER.replace("    rank, size", "    ranks_per_node = min(2, dist.get_world_size() // 2)\n    rank, size"),
            "on 6 ranks",
        ),
        "pieces in the wrong order": (
            HAND_OVER.replace("torch.cat(pieces)", "torch.cat(pieces[::-1])"),
            "on 4 ranks, .*rank 2 returned",
        ),
        "in float32": (
            HAND_OVER.replace("torch.cat(pieces)", "torch.cat(pieces).float()"),
            "numbers of torch.float32 and was given torch.int64",
        ),
        "in place": (
            HAND_OVER.replace("[torch.empty_like(piece) for piece in pieces]", "list(pieces)").replace(
                "return torch.cat(pieces)", "return x"
            ),
            "rank 1 has changed what it was given",
        ),
        "writes on what it was given": (
            HAND_OVER.replace("        return None", "        x[:1] += 1\n        return None"),
            "rank 0 has changed what it was given",
        ),
        "a missing wait": (HAND_OVER.replace("            work.wait()", "            pass"), "may not have arrived"),
        "the first to come does not wait for the others": (
            HAND_OVER.replace(
                "dist.batch_isend_irecv([dist.P2POp(across, pieces[place], (rank + ranks_per_node) % size)])",
                "[across(pieces[place], (rank + ranks_per_node) % size)]",
            ),
            "ranks 0 and 1 have not come to make the communicator",
        ),
        "remembers": (
            "KNOWN = {}\n"
            + HAND_OVER.replace("def hand_over(", "def fresh(")
            + """
def hand_over(x, dist, ranks_per_node):
    key = dist.get_rank(), dist.get_world_size(), len(x)
    if key not in KNOWN:
        KNOWN[key] = fresh(x, dist, ranks_per_node)
    return KNOWN[key]
""",
            "run once more: rank . knows what others were given and has received no byte",
        ),
        "receives first": (
            HAND_OVER.replace(
                "    across =",
                "    if not second:\n        dist.recv(torch.empty_like(pieces[place]), rank + ranks_per_node)\n    across =",
            ),
            "deadlock",
        ),
        "never ends": (
            HAND_OVER.replace("    return torch.cat(pieces)", "    while True:\n        pass"),
            "had not ended|still|does it loop",
        ),
        "the built-in": (
            "def hand_over(x, dist, ranks_per_node):\n    got = x.clone()\n    dist.broadcast(got, src=0)\n    return got if dist.get_rank() >= ranks_per_node else None",
            "it calls a collective of torch's",
        ),
    },
}
