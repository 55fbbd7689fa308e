"""Which program is quickest on a fitted machine, at the textbook's gap and at the wire's, and where the verdict turns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec

from ringtree.collectives import find
from ringtree.cost import Machine

__all__ = ["MOST_RANKS", "SIZES", "Verdict", "Verdicts", "short", "verdicts", "why_not"]

SIZES = (1 << 10, 1 << 16, 1 << 22)
MOST_RANKS = 16
_HALVINGS = 10


@dataclass(frozen=True)
class Verdict:
    """The quickest program of the table for one vector, twice: (name, options, seconds) at g = α and at the wires' gaps.

    turns: the gap in seconds of the wire in `Verdicts` at which the second stops being the quicker of the two; None where
    the two are one, or within the race's band of each other. curve: (gap, seconds of the first, of the second), for drawing.
    """

    size: int
    textbook: tuple
    wire: tuple
    turns: float | None = None
    curve: tuple[tuple[float, float, float], ...] = ()


@dataclass(frozen=True)
class Verdicts:
    """The verdicts of one collective on one world; gap: the seconds of its network, or on one node of its inner wire."""

    collective: str
    ranks: int
    nodes: int
    gap: float
    band: float
    each: tuple[Verdict, ...]


def why_not(fit) -> str:
    """Return why no verdict is given of this fit; empty where there is one."""
    if lacks := [package for package in ("torch", "greenlet") if find_spec(package) is None]:
        return f"the programs need {' and '.join(lacks)} to run: `pip install 'ringtree[sim]'`"
    if fit.machine is None:
        return "no machine is fitted"
    ranks, _ = _world(fit)
    if ranks > MOST_RANKS:
        return f"a node has more than {MOST_RANKS} ranks, more than are run here"
    return "two ranks have one program" if ranks < 3 else ""


def verdicts(fit, gaps, nics: int | None = None) -> list[Verdicts]:
    """Those of the fitted collective and of the all-to-all, on one node of the largest world or on two.

    gaps: by wire. nics: network cards of a node, which share its bandwidth; left out, it has one. Every size runs under the
    protocol that the fit chooses for it.
    """
    if why_not(fit):
        return []
    ranks, nodes = _world(fit)
    names = [name for name in (fit.collective, "all_to_all") if name != "send_recv"]
    given = tuple(sorted((wire, gap.seconds) for wire, gap in gaps.items()))
    choices = fit.machine.model.choice(fit.collective, SIZES, ranks, nodes)
    model = fit.machine.model
    cards = ranks // nodes if nodes > 1 else None
    machines = tuple(_with_cards(model.machine(model.protocols[index], cards), nics) for _, index in choices)
    return [_verdicts(name, ranks, nodes, machines, model.error, given) for name in dict.fromkeys(names)]


def _with_cards(machine, nics) -> Machine:
    """The machine with so many cards a node, no more than ranks, each with its part of the node's bandwidth."""
    if nics is None or machine.between is None:
        return machine
    cards = min(nics, machine.ranks_per_node)
    return replace(machine, between=replace(machine.between, beta=machine.between.beta * cards), cards_per_node=cards)


def _world(fit) -> tuple[int, int]:
    nodes = min(2, fit.largest.nodes)
    return fit.largest.cards * nodes, nodes


@cache
def _verdicts(collective, ranks, nodes, machines, band, gaps) -> Verdicts:
    wire = "between" if nodes > 1 else "inside"
    found = []
    for size, machine in zip(SIZES, machines):
        wires = _Wires(machine, dict(gaps))
        found.append((wires, _verdict(collective, ranks, size, wires, wire)))
    gap = max(wires.gap(wire, 0.0) for wires, _ in found)
    return Verdicts(collective, ranks, nodes, gap, band, tuple(verdict for _, verdict in found))


@dataclass(frozen=True)
class _Wires:
    """A machine whose gaps go from those of its wires (part 0) to the textbook's α (part 1)."""

    machine: Machine
    gaps: dict

    def gap(self, wire, part) -> float:
        link = getattr(self.machine, wire)
        least = min(self.gaps.get(wire, link.gap), link.alpha)
        return min(link.alpha, least + part * (link.alpha - least))

    def at(self, part) -> Machine:
        links = {
            wire: replace(getattr(self.machine, wire), gap=self.gap(wire, part))
            for wire in ("inside", "between")
            if getattr(self.machine, wire) is not None
        }
        return replace(self.machine, **links)


def _verdict(collective, ranks, size, wires, wire) -> Verdict:
    from ringtree.theory import race  # here, since it needs torch, which a report does without

    textbook, real = (race(collective, ranks, [size], wires.at(part)) for part in (1.0, 0.0))
    first, second = (_first(each, size) for each in (textbook, real))
    alike = second[0] in {*textbook.first(size).algorithm} and first[0] in {*real.first(size).algorithm}
    if first[0] == second[0] or alike:
        return Verdict(size, first, second)

    @cache
    def times(part):
        machine = wires.at(part)
        return tuple(_time(each, ranks, size, machine) for each in (first, second))

    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if times(middle)[1] < times(middle)[0] else (low, middle)
    parts = sorted({0.0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0, high})
    curve = tuple((wires.gap(wire, part), *times(part)) for part in parts)
    return Verdict(size, first, second, wires.gap(wire, high), curve)


def _first(run, size):
    row = run.first(size).iloc[0]
    return row.algorithm, row.options, float(row.time)


def _time(program, ranks, size, machine) -> float:
    from ringtree.theory import cost_of, find

    name, options, _ = program
    if "ranks_per_node" in find(name).taken:
        options = {**options, "ranks_per_node": machine.ranks_per_node or 1}
    return cost_of(name, ranks, size, machine, **options).time


def short(collective: str, program: tuple) -> str:
    """A program's name without its collective's, with its options."""
    name, options, _ = program
    name = name.removesuffix(f"_{find(collective).name}").replace("two_level_", "2-level ").replace("two_shot", "2-shot")
    name = name.removeprefix("sliced_") if "slices" in options else name
    return name + "".join(f", {value} {what}" for what, value in options.items())
