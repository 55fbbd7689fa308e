"""What these logs cannot say, each with the reason and with the log that would say it."""

from __future__ import annotations

from ringtree.explain.nearest import NUMBERS
from ringtree.units import binary_text, count_text

__all__ = ["limits"]

_MORE = {"enter_network": "entering the network", "pipelining": "how well a tree overlaps its hops"}


def limits(fit) -> list[str]:
    """Sentences on what the sweeps of one collective leave open."""
    if fit.machine is None:
        return [f"No machine is fitted: {fit.why_not}"]
    return [*_of_worlds(fit), *_of_sizes(fit), *_of_numbers(fit), *_of_draws(fit)]


def _of_worlds(fit) -> list[str]:
    several = sorted({nodes for _, nodes in fit.worlds if nodes > 1})
    cards = sorted({ranks // nodes for ranks, nodes in fit.worlds})
    said = []
    if len(fit.worlds) == 1:
        said.append(
            "One world size: these logs give the start of a call and its hops only as one sum, so the growth of short "
            "messages' time with the ranks is a guess from NCCL's constants. A log of another number of ranks separates them."
        )
    if not several:
        said.append(
            "No log comes from several nodes: nothing is known about the network, and nothing beyond one node is predicted."
        )
    elif len(several) == 1:
        said.append(
            f"One number of nodes above 1 ({several[0]}): these logs give the cost of entering the network and the cost of a hop only as one sum. "
            "A log of another number of nodes separates them."
        )
    if several and 1 not in {nodes for _, nodes in fit.worlds}:
        said.append(
            "No log comes from a single node: where there are several, the network is the narrower wire, so no time here felt the "
            "links inside a node. One sweep on one node says what they carry."
        )
    if len(cards) == 1 and cards[0] > 1:
        said.append(f"Every world has {cards[0]} cards a node: what other numbers of cards do is the model's word alone.")
    return said


def _of_sizes(fit) -> list[str]:
    largest = fit.largest
    if len(largest.sizes) < 2 or largest.busbw[-1] < 1.1 * largest.busbw[-2]:
        return []
    return [
        f"At the largest size, {binary_text(largest.sizes[-1])}, busbw on {largest.world} still rises: these sizes do not say "
        f"what longer messages reach. Sweep up to 4 GiB."
    ]


def _of_numbers(fit) -> list[str]:
    table = fit.machine.parameters
    open_ones = [name for name in dict.fromkeys(table.parameter) if not table.determined[table.parameter == name].any()]
    if not open_ones:
        return []
    names = [_MORE.get(name) or NUMBERS[name][0] for name in open_ones]
    return [
        f"The logs determine these for no protocol: {', '.join(names)}. They keep the values that the fit began with, NCCL's constants."
    ]


def _of_draws(fit) -> list[str]:
    often = {world: sum((one.ranks, one.nodes) == world for one in fit.sweeps) for world in fit.worlds}
    once = [world for world, count in often.items() if count == 1]
    if not once or all(nodes == 1 for _, nodes in once):
        return []
    which = "Each world" if len(once) == len(often) else count_text(len(once), "world")
    return [
        f"{which} was measured once: a run is one draw of nodes and neighbors, and another may differ. (Of ten published series "
        "on 1,024 GH200, 1 GiB took 33 to 60 ms.) A second log of a world says how much."
    ]
