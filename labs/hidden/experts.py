"""More ranks, rows and capacities for the lab "Experts"."""

import torch

from ringtree.labs.exercises import experts as lab


def exchange():
    yield lab.exchange_case(6, 3, torch.float64)
    yield lab.exchange_case(9, 2)


def keep():
    yield lab.keep_case(6, 5, 3, 4)
    yield lab.keep_case(9, 4, 5, 2)


def layer():
    yield lab.layer_case(6, 4, torch.float64, width=3)
    yield lab.layer_case(9, 3)


def route():
    return lab.route_questions([([4, 4, 0, 9, 1, 9], 5, 2), ([1, 1, 0], 3, 3)])


EXTRA = {"route": route, "exchange": exchange, "keep": keep, "layer": layer}
