"""More machines and jobs for the lab "Wires"."""

import torch

from ringtree.labs.exercise import Question
from ringtree.labs.exercises import wires as lab
from ringtree.units import count_text

MATRICES = [
    (["SYS PHB NODE", "PXB SYS PXB", "NODE NODE SYS"], 1, 1),
    (["PXB PXB NODE NODE"] * 2 + ["NODE NODE PXB PXB"] * 2, 1, 1),
    (["PHB PHB PHB", "PHB PHB SYS", "PIX NODE NODE"], 1, 2),
    (["NODE NODE NODE SYS", "SYS NODE NODE SYS", "SYS PXB SYS SYS", "PIX SYS SYS SYS", "SYS SYS SYS NODE"], 2, 2),
]
SHAPES = [(2, 3, 1, "backwards"), (3, 5, 1, "dealt out"), (6, 2, 1, "by node"), (5, 4, 2, "dealt out")]
GB = 10**9
FLOWS = [
    ([(0, 2, 3 * GB), (1, 2, 4 * GB)], [(1, 1), (1, 0), (0, 0)], 800, 200, {("card", (0, 0), "in")}, 0.28),
    ([(i, j, GB) for i in range(6) for j in range(6) if i != j], lab.places_of(3, 2), 900, 800, None, 0.04),
    ([(3, i, 9 * GB) for i in range(3)], lab.places_of(1, 4), 600, 400, {("GPU", 3, "out")}, 0.09),
]


def cards():
    for level in range(3):
        for rows, least, from_level in MATRICES:
            if level in (0, from_level):
                codes, asked = [row.split() for row in rows], least if level else None
                says = f"{count_text(len(codes), 'GPU')}, {count_text(len(codes[0]), 'card')}"
                yield Question(
                    (codes,), lambda answer, codes=codes, asked=asked: lab._wrong_cards(answer, codes, asked), says, level
                )


def rings():
    for level in range(3):
        for nodes, count, per_card, numbered in SHAPES:
            places = lab.places_of(nodes, count, per_card, numbered)
            yield Question(
                (places,),
                lambda answer, places=places, level=level: lab._wrong_rings(answer, places, level),
                f"{nodes} nodes with {count} cards each, ranks {numbered}",
                level,
            )


def busiest_wire():
    for messages, places, nvlink, card, wires, seconds in FLOWS:
        all_cards = {("card", place, way) for place in places for way in ("out", "in")}
        yield Question(
            (messages, places, nvlink * 1e9, card * 1e9),
            lambda answer, wires=wires or all_cards, seconds=seconds: lab._wrong_wire(answer, wires, seconds),
            f"{count_text(len(messages), 'message')} among {count_text(len(places), 'rank')}",
        )


def hand_over():
    return [lab.across_case(5, 17), lab.across_case(6, 6), lab.across_case(2, 9, torch.float64), lab.across_case(1, 0)]


EXTRA = {"cards": cards, "rings": rings, "busiest_wire": busiest_wire, "hand_over": hand_over}
