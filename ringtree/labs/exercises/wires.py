"""Lab of chapter 4, "Wires": a card for each GPU, rings that use all cards, the busiest wire, and one vector over all cards."""

from collections import Counter
from math import isclose

import torch

from ringtree import theory
from ringtree.cost import Machine
from ringtree.labs import limits
from ringtree.labs.comparing import is_number, is_whole, short
from ringtree.labs.exercise import Answer, Case, Level, Limit, Program, Question
from ringtree.labs.inputs import drawn, easy
from ringtree.units import binary_text, count_text, seconds_text

TITLE = "Wires"
CHAPTER = 4


# ---------------------------------------------------------------- a card for each GPU

CODES = "PIX", "PXB", "PHB", "NODE", "SYS"  # from near to far
OWN = [" ".join("PIX" if card == own else "NODE" for card in range(4)) for own in (3, 2, 1, 0)]  # of four GPUs on one CPU
MATRICES = [  # what it is; a row of codes for each GPU; the fewest GPUs on the fullest card; from which level on that is asked
    ("2 GPUs, 2 cards", ["NODE PIX", "PIX NODE"], 1, 1),
    (
        "the chapter's 8 GPUs, 9 cards",
        [f"SYS SYS SYS SYS SYS {row}" for row in OWN] + [f"SYS {row} SYS SYS SYS SYS" for row in OWN],
        1,
        1,
    ),
    ("8 GPUs, one card", ["NODE"] * 4 + ["SYS"] * 4, 8, 1),
    ("8 GPUs, 4 cards, no switch", ["NODE NODE SYS SYS"] * 4 + ["SYS SYS NODE NODE"] * 4, 2, 1),
    ("4 GPUs, 4 cards, many kinds", ["PHB PXB NODE SYS", "NODE SYS PHB PHB", "SYS NODE SYS NODE", "PXB PIX PXB SYS"], 2, 1),
    ("3 GPUs, 2 cards, one GPU on no switch", ["PHB PHB", "PIX PHB", "PHB PIX"], 2, 1),
    ("2 GPUs, 2 cards, one GPU on no switch", ["PHB PHB", "PIX PHB"], 1, 2),
    ("4 GPUs, 4 cards, two switches", ["PXB PXB PXB PXB", "PXB PXB SYS SYS", "PIX SYS SYS SYS", "SYS PXB PXB SYS"], 1, 2),
]


def card_questions():
    for level in range(3):
        for says, rows, least, from_level in MATRICES:
            if level == 0 or from_level == level:
                codes = [row.split() for row in rows]
                yield Question(
                    (codes,),
                    lambda answer, codes=codes, least=least if level else None: _wrong_cards(answer, codes, least),
                    says,
                    level,
                )


def _wrong_cards(answer, codes, least):
    """least: GPUs on the fullest card that cannot be helped; None where any number will do."""
    if not isinstance(answer, list | tuple) or not all(map(is_whole, answer)) or len(answer) != len(codes):
        return (
            f"returned {short(answer)}: return a list of {count_text(len(codes), 'card')}, one for each GPU, as whole numbers."
        )
    for gpu, card in enumerate(answer):
        if not 0 <= card < len(codes[gpu]):
            return f"says card {card} for GPU {gpu}: the cards are 0 to {len(codes[gpu]) - 1}."
        nearest = min(codes[gpu], key=CODES.index)
        if codes[gpu][card] != nearest:
            place = codes[gpu].index(nearest)
            return f"says card {card} for GPU {gpu}, at {codes[gpu][card]}; card {place} is nearer, at {nearest}."
    card, most = Counter(answer).most_common(1)[0]
    if least is not None and most > least:
        return f"{count_text(most, 'GPU')} share card {card}, and there is a way in which no card has more than {least}."
    return None


CARD_HINTS = (
    "Write down the codes from near to far, as the chapter's table has them. A code's place in that list is its distance.",
    "Several cards can be equally near. Collect all of them: `near = [card for card, code in enumerate(row) if distance(code) == "
    "least]`. If every GPU takes the first of them, one card carries all. Take the one that has the fewest GPUs so far.",
    "At the bound the order matters: a GPU that could take either of two cards must leave the one that another GPU needs. There "
    "are only a few ways: `itertools.product(*near_of_each_gpu)` has all of them, and Counter says how full the fullest card is. "
    "(With more GPUs you would let them change places: that is a matching.)",
)


# ---------------------------------------------------------------- rings

SHAPES = [  # nodes, cards a node, GPUs a card; how the ranks are numbered
    (2, 2, 1, "by node"),
    (1, 1, 1, "by node"),
    (1, 4, 1, "by node"),
    (2, 1, 1, "by node"),
    (2, 2, 2, "by node"),
    (2, 4, 1, "dealt out"),
    (3, 3, 1, "by node"),
    (4, 2, 1, "backwards"),
    (3, 2, 2, "dealt out"),
    (3, 4, 1, "dealt out"),
    (4, 1, 2, "by node"),
    (5, 3, 1, "by node"),
    (2, 4, 2, "backwards"),
    (2, 8, 1, "by node"),
    (4, 8, 1, "dealt out"),
]


def places_of(nodes: int, cards: int, per_card: int = 1, numbered: str = "by node") -> list:
    """By rank, (its node, its card there). numbered: "by node", "dealt out" one to each node in turn, or "backwards"."""
    places = [(node, card) for node in range(nodes) for card in range(cards) for _ in range(per_card)]
    if numbered == "dealt out":
        return sorted(places, key=lambda place: place[1])
    return places[::-1] if numbered == "backwards" else places


def ring_questions():
    for level in range(3):
        for nodes, cards, per_card, numbered in SHAPES:
            places = places_of(nodes, cards, per_card, numbered)
            says = (
                f"{count_text(nodes, 'node')} with {count_text(cards, 'card')} and {count_text(cards * per_card, 'GPU')} each"
            )
            says += f", ranks {numbered if numbered == 'dealt out' else f'numbered {numbered}'}"
            yield Question(
                (places,), lambda answer, places=places, level=level: _wrong_rings(answer, places, level), says, level
            )


def _wrong_rings(answer, places, level):
    return (
        _are_none(answer, places)
        or _leave_too_often(answer, places)
        or _miss_cards(answer, places, level)
        or _change_rails(answer, places, level)
    )


def _are_none(answer, places):
    if not isinstance(answer, list | tuple) or not all(isinstance(ring, list | tuple | range) for ring in answer):
        return f"returned {short(answer)}: return a list of rings, each a list of all ranks in their order round the ring."
    cards = len(set(places)) // len({node for node, _ in places})
    if len(answer) != cards:
        return f"returned {count_text(len(answer), 'ring')}; a node has {count_text(cards, 'card')}: return one ring for each card."
    for number, ring in enumerate(answer):
        if not all(map(is_whole, ring)) or sorted(ring) != list(range(len(places))):
            return f"ring {number} is {short(list(ring))}: it should have each of the {count_text(len(places), 'rank')} once."
    return None


def _crossings(ring, places):
    """The messages of a ring that leave a node: (from, to)."""
    pairs = zip(ring, [*ring[1:], ring[0]])
    return [(one, other) for one, other in pairs if places[one][0] != places[other][0]]


def _leave_too_often(rings, places):
    for number, ring in enumerate(rings):
        left = Counter(places[one][0] for one, _ in _crossings(ring, places))
        for node, times in left.items():
            if times > 1:
                return f"ring {number} leaves node {node} {times} times: once is enough, when it has been to all ranks there."
    return None


def _miss_cards(rings, places, level):
    for end, does in enumerate(("send", "receive")):
        used = Counter(places[pair[end]] for ring in rings for pair in _crossings(ring, places))
        if level >= 1 and used and (idle := sorted(set(places) - set(used))):
            (node, card), times = used.most_common(1)[0]
            busy = f"card {card} of node {node} has to {does} for {count_text(times, 'ring')}"
            return f"{busy}, and card {idle[0][1]} of node {idle[0][0]} for none."
    return None


def _change_rails(rings, places, level):
    for number, ring in enumerate(rings):
        for one, other in _crossings(ring, places):
            if level >= 2 and places[one][1] != places[other][1]:
                ends = " to ".join(f"rank {each} (card {places[each][1]} of node {places[each][0]})" for each in (one, other))
                return f"ring {number} changes rails from {ends}."
    return None


def all_reduce_over(tensor, dist, rings):
    """All-reduce `tensor` in place: each ring carries its
    part of it, and all rings work side by side.

    rings: lists of all ranks, each in its order round the ring.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    shares = [part.tensor_split(size) for part in tensor.tensor_split(len(rings))]
    for ahead in (0, 1):  # first the chunks are added up, then the sums go round
        for step in range(size - 1):
            batch, added = [], []
            for ring, chunks in zip(rings, shares):
                at = ring.index(rank)
                coming = chunks[(at + ahead - step - 1) % size]
                received = coming if ahead else torch.empty_like(coming)
                batch.append(dist.P2POp(dist.isend, chunks[(at + ahead - step) % size], ring[(at + 1) % size]))
                batch.append(dist.P2POp(dist.irecv, received, ring[at - 1]))
                added.append((coming, received))
            for work in dist.batch_isend_irecv(batch):
                work.wait()
            for coming, received in () if ahead else added:
                torch.add(coming, received, out=coming)


RING_HINTS = (
    "Sort the ranks by node first: `there[node]` is a list of those on it, whatever their numbers. A ring that visits all of "
    "there[0], then all of there[1], and so on, leaves each node once. Within a node any order will do: you choose who comes "
    "first (its card receives) and who comes last (its card sends).",
    "Let ring i leave every node at card i, and enter the next at card i + 1, modulo the number of cards. Then each card sends "
    "for one ring and receives for one. The other ranks of the node stand between those two.",
    "On its rail a ring enters the next node at the card by which it left the last. Where a card has two GPUs, one of them is "
    "first and the other last: the ring keeps its card. Where it has one, the ring must change its card inside each node, and be "
    "back at its first card in the end: cards i, i + 1, i, i + 1, … over the nodes, and i + 2 at the last node if their number "
    "is odd.",
)


# ---------------------------------------------------------------- the busiest wire


GB = 10**9
FLOWS = [  # what it is; (from, to, bytes); places; NVLink and card as their makers quote them; the busiest wires; seconds
    ("one message in a node", [(0, 1, 9 * GB)], [(0, 0), (0, 1)], 900, 400, {("GPU", 0, "out"), ("GPU", 1, "in")}, 0.02),
    (
        "both ways at once",
        [(0, 1, 9 * GB), (1, 0, 5 * GB)],
        [(0, 0), (0, 1)],
        900,
        400,
        {("GPU", 0, "out"), ("GPU", 1, "in")},
        0.02,
    ),
    ("between two nodes", [(0, 1, 5 * GB)], [(0, 0), (1, 0)], 900, 400, {("card", (0, 0), "out"), ("card", (1, 0), "in")}, 0.1),
    (
        "two messages of one pair",
        [(0, 1, GB), (0, 1, 2 * GB)],
        [(0, 0), (0, 1)],
        600,
        200,
        {("GPU", 0, "out"), ("GPU", 1, "in")},
        0.01,
    ),
    (
        "two GPUs with one card",
        [(0, 2, 3 * GB), (1, 3, 4 * GB)],
        [(0, 0), (0, 0), (1, 0), (1, 1)],
        900,
        400,
        {("card", (0, 0), "out")},
        0.14,
    ),
    (
        "everybody to rank 0",
        [(1, 0, 2 * GB), (2, 0, 3 * GB), (3, 0, 4 * GB)],
        places_of(1, 4),
        900,
        400,
        {("GPU", 0, "in")},
        0.02,
    ),
    (
        "to one card from three nodes",
        [(1, 0, GB), (2, 0, GB), (3, 0, 2 * GB)],
        places_of(4, 1),
        900,
        100,
        {("card", (0, 0), "in")},
        0.32,
    ),
    (
        "a ring whose ranks are dealt out",
        [(i, (i + 1) % 4, GB) for i in range(4)],
        [(0, 0), (1, 0), (0, 0), (1, 0)],
        900,
        400,
        {("card", (node, 0), way) for node in (0, 1) for way in ("out", "in")},
        0.04,
    ),
    (
        "more in a node than between",
        [(0, 1, 9 * GB), (0, 2, 2 * GB)],
        places_of(2, 2),
        900,
        400,
        {("card", (0, 0), "out"), ("card", (1, 0), "in")},
        0.04,
    ),
    (
        "much in a node, little between",
        [(0, 1, 45 * GB), (0, 2, GB), (1, 3, GB)],
        places_of(2, 2),
        900,
        400,
        {("GPU", 0, "out"), ("GPU", 1, "in")},
        0.1,
    ),
    (
        "all-to-all on 2 nodes of 8",
        [(i, j, GB) for i in range(16) for j in range(16) if i != j],
        places_of(2, 4, 2),
        900,
        400,
        {("card", (node, card), way) for node in (0, 1) for card in range(4) for way in ("out", "in")},
        0.32,
    ),
]


def wire_questions():
    for says, messages, places, nvlink, card, wires, seconds in FLOWS:
        yield Question(
            (messages, places, nvlink * 1e9, card * 1e9),
            lambda answer, wires=wires, seconds=seconds: _wrong_wire(answer, wires, seconds),
            f"{says}, NVLink {nvlink} GB/s and cards of {card} Gb/s",
        )


def _wrong_wire(answer, wires, seconds):
    if not isinstance(answer, list | tuple) or len(answer) != 2 or not is_number(answer[1]):
        return f'returned {short(answer)}: return a wire and seconds, such as (("card", (0, 1), "out"), 0.02).'
    wire, said = answer
    if not isclose(said, seconds, rel_tol=1e-6):
        return f"says {seconds_text(said)} where it takes {seconds_text(seconds)}. {_why(said / seconds)}"
    if wire not in list(wires):
        return f"the time is right, and the wire {short(wire)} is not one that needs it."
    return None


def _why(ratio):
    """Return what the factor between an answer and the right one may come from."""
    causes = {
        0.5: "Does NVLink's number count both directions?",
        0.125: "Are the cards' numbers bits or bytes a second?",
    }
    given = "For each wire add up the bytes that go through it in one direction, and divide by its bandwidth in that direction."
    return next((why for factor, why in causes.items() if isclose(ratio, factor, rel_tol=1e-6)), given)


WIRE_HINTS = (
    "A message inside a node goes out of one GPU's NVLink and into another's. A message between nodes goes out of one card and "
    "into another, and through no NVLink. So every message uses two wires, each in one direction.",
    "First the bandwidths, in bytes a second and one direction: NVLink's is half of what its maker says, a card's an eighth.",
    'Add up in a Counter whose keys are the wires: `through["card", places[src], "out"] += nbytes`. Then the seconds of each '
    "wire, and the wire that has the most: `max(seconds, key=seconds.get)`.",
)


# ---------------------------------------------------------------- one vector over all cards

NVLINK, CARD = theory.nvlink(), theory.card()
LARGE = 2**20


def nodes_of(count: int) -> Machine:
    return Machine(NVLINK, CARD, ranks_per_node=count, cards_per_node=count)


def across_cases():
    for count, length in [(1, 2), (2, 4), (3, 6), (2, 5), (4, 13), (3, 2), (8, 16), (2, 0), (4, 32)]:
        yield across_case(count, length)
    yield across_case(2, 6, torch.int64)
    yield across_case(4, LARGE, says="each with its card of 50 GB/s")
    yield across_case(2, 5)


def across_case(count, length, dtype=torch.float32, says=""):
    """Two nodes of `count` ranks: those of the first all have the same numbers."""
    same, other = easy(2, length, dtype) if length < 5 else drawn(2, length, dtype)
    given = [(same.clone(),) for _ in range(count)] + [(other.clone(),) for _ in range(count)]
    return Case(tuple(given), _handed_over, {"ranks_per_node": count}, nodes_of(count), says)


def _handed_over(given):
    count = len(given) // 2
    return [None] * count + [x for (x,) in given[:count]]


def busiest_card(run):
    """Bytes through the card that carries most, in one direction."""
    count, out, into = run.case.options["ranks_per_node"], Counter(), Counter()
    for each in run.trace:
        if each.src // count != each.dst // count:
            out[each.src] += each.nbytes
            into[each.dst] += each.nbytes
    return max([*out.values(), *into.values()], default=0)


def _piece(case):
    """Bytes of the longest of the pieces into which the vector is cut for the cards of a node."""
    (x,) = case.given[0]
    return -(-x.numel() // case.options["ranks_per_node"]) * x.element_size()


def _in_and_out(case):
    """A rank of the second node takes in all of it; one whose piece is rounded up may give more than that to the others."""
    return max(case.given[0][0].nbytes, (case.options["ranks_per_node"] - 1) * _piece(case))


def _once_each(case):
    if case.nbytes < 4 * LARGE:
        return None
    return 1.02 * (CARD.time(_piece(case)) + (case.options["ranks_per_node"] - 1) * NVLINK.time(_piece(case)))


ACROSS_LEVELS = (
    Level("within the target", (Limit("through the busiest card", busiest_card, _piece, binary_text),)),
    Level(
        "at the bound",
        (
            limits.port_bytes(_in_and_out),
            Limit("from the first start to the last end", lambda run: run.makespan, _once_each, seconds_text),
        ),
        "n enters the second node through k cards, n/k each; and n enters each of its GPUs.",
    ),
)
ACROSS_HINTS = (
    "All ranks of the first node have the same numbers. Which part of them does rank i have to send, so that the k cards "
    "together carry each number once?",
    "`pieces = x.tensor_split(k)`: rank i sends pieces[i] to rank k + i, with its own card. Then the ranks of the second node "
    "have one piece each, and give it to each other by NVLink.",
    "In the second node, in step s = 1 … k − 1, the rank at place i sends its piece to place i + s, modulo k, and receives "
    "piece i − s: a send and a receive in one batch_isend_irecv. If all begin with place 0 they stand in line there.",
)


GIVEN = all_reduce_over, places_of
EXERCISES = {
    "cards": Answer(card_questions, CARD_HINTS, (Level("within the target"), Level("at the bound"))),
    "rings": Answer(ring_questions, RING_HINTS, (Level("within the target"), Level("at the bound"))),
    "busiest_wire": Answer(wire_questions, WIRE_HINTS),
    "hand_over": Program(across_cases, ACROSS_HINTS, ACROSS_LEVELS, adds=False),
}
