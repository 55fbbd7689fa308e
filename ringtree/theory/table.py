"""The algorithms in one table: for each its schedule, its cost as books give it, where that is exact, and its source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ringtree import algorithms
from ringtree.cost import Link
from ringtree.theory import schedules
from ringtree.theory.schedules import lg

__all__ = ["ALGORITHMS", "Algorithm", "find", "row_of"]


@dataclass(frozen=True)
class Algorithm:
    """One row of the table.

    collective: its name in `ringtree.collectives`. program: the function of `ringtree.algorithms`. steps: its schedule,
    (p, n, itemsize, options) to steps, each a list of messages (src, dst, bytes) and whether the receivers reduce what comes.
    textbook: the cost as books give it; form: the same as a function (p, n, link, gamma, options) to
    seconds; holds: where that is exact, (p, elements, options) to bool. source: key of the reference.
    """

    collective: str
    program: Callable
    steps: Callable
    textbook: str
    form: Callable | None
    holds: Callable
    source: str
    time: Callable | None = None

    @property
    def name(self) -> str:
        return self.program.__name__


def find(program) -> Algorithm:
    """The row of an algorithm, from its function or its name."""
    if row := row_of(program):
        return row
    raise ValueError(f"{program!r} is none of our algorithms: give one of {', '.join(row.name for row in ALGORITHMS)}")


def row_of(program) -> Algorithm | None:
    """The same, or None where it is none of ours: somebody's own rank program."""
    return next((row for row in ALGORITHMS if program in (row.program, row.name)), None)


def _always(p, count, options):
    return True


def _whole(p, count, options):
    return count % p == 0


def _power(p, count, options):
    return p & (p - 1) == 0


def _power_whole(p, count, options):
    return _power(p, count, options) and count % p == 0


def _kept_larger(p, count, options):
    return count % p == 0 and (options["root"] == 0 or _power(p, count, options))


def _whole_chunks(p, count, options):
    return p > 1 and count % options["chunks"] == 0


def _form(rounds, moved, reduced=lambda p, o: 0):
    """rounds·α + moved·nβ + reduced·nγ, all three functions of (p, options)."""

    def form(p, n, link, gamma, options):
        return rounds(p, options) * link.alpha + n * (moved(p, options) * link.beta + reduced(p, options) * gamma)

    return form


def _part(p, o):
    return (p - 1) / p


def _twice_part(p, o):
    return 2 * (p - 1) / p


def _others(p, o):
    return p - 1


def _doublings(p, o):
    return lg(p)


def _steps_of_chain(p, o):
    return p - 2 + o["chunks"]


def _chunks_of_chain(p, o):
    return (p - 2 + o["chunks"]) / o["chunks"]


def _floor(p):
    return p.bit_length() - 1


def _folds(p):
    return p & (p - 1) > 0


def _power_part(p):
    return 1 - 1 / (1 << _floor(p))


def _nodes_power_whole(p, count, options):
    r = options["ranks_per_node"]
    return p % r == 0 and _power(r, count, options) and _power_whole(p, count, options)


def _nodes_power(p, count, options):
    r = options["ranks_per_node"]
    return p % r == 0 and _power(p // r, count, options)


def _links(machine):
    """Inside a node and between nodes."""
    return (machine, machine) if isinstance(machine, Link) else (machine.inside, machine.between or machine.inside)


def _two_level_form(across):
    """across: the form of what every chunk takes between nodes."""

    def form(p, n, machine, gamma, options):
        r, (inside, between) = options["ranks_per_node"], _links(machine)
        halving = _form(lambda r, o: 2 * lg(r), _twice_part, _part)
        return halving(r, n, inside, gamma, options) + across(p // r, n / r, between, gamma, options)

    return form


def _leader_form(p, n, machine, gamma, options):
    r, (inside, between) = options["ranks_per_node"], _links(machine)
    return lg(r) * (2 * inside.time(n) + n * gamma) + lg(p // r) * (between.time(n) + n * gamma)


def _hierarchical_form(p, n, machine, gamma, options):
    r, (inside, between) = options["ranks_per_node"], _links(machine)
    return 2 * (r - 1) * inside.time(n / r) + 2 * (p // r - 1) * between.time(n / p) + (p - 1) / p * n * gamma


A, S = algorithms, schedules
ALGORITHMS = [
    Algorithm(
        "broadcast",
        A.flat_broadcast,
        lambda p, n, i, o: S.one_by_one(p, o["root"], lambda other: n),
        "(p−1)(α + nβ)",
        _form(_others, _others),
        _always,
        "chan2007",
    ),
    Algorithm(
        "broadcast",
        A.mst_broadcast,
        lambda p, n, i, o: S.down(p, o["root"], lambda half: n),
        "⌈lg p⌉(α + nβ)",
        _form(_doublings, _doublings),
        _always,
        "chan2007",
    ),
    Algorithm(
        "broadcast",
        A.chain_broadcast,
        lambda p, n, i, o: S.chain_broadcast(p, o["root"], S.cut(n, o["chunks"], i)),
        "(p−2+k)(α + n/k·β)",
        _form(_steps_of_chain, _chunks_of_chain),
        _whole_chunks,
        "chan2007",
    ),
    Algorithm(
        "broadcast",
        A.scatter_all_gather_broadcast,
        S.scatter_all_gather_broadcast,
        "(lg p + p−1)α + 2(p−1)/p·nβ",
        _form(lambda p, o: lg(p) + p - 1, _twice_part),
        _power_whole,
        "chan2007",
    ),
    Algorithm(
        "reduce",
        A.flat_reduce,
        lambda p, n, i, o: S.one_by_one(p, o["root"], lambda other: n, True, True),
        "(p−1)(α + nβ + nγ)",
        _form(_others, _others, _others),
        _always,
        "chan2007",
    ),
    Algorithm(
        "reduce",
        A.mst_reduce,
        lambda p, n, i, o: S.up(p, o["root"], lambda half: n, True),
        "⌈lg p⌉(α + nβ + nγ)",
        _form(_doublings, _doublings, _doublings),
        _always,
        "chan2007",
    ),
    Algorithm(
        "reduce",
        A.chain_reduce,
        S.chain_reduce,
        "(p−2+k)(α + n/k·(β + γ))",
        _form(_steps_of_chain, _chunks_of_chain, _chunks_of_chain),
        _whole_chunks,
        "chan2007",
    ),
    Algorithm(
        "reduce",
        A.rabenseifner_reduce,
        S.rabenseifner_reduce,
        "2 lg p·α + 2(p−1)/p·nβ + (p−1)/p·nγ",
        _form(lambda p, o: 2 * lg(p), _twice_part, _part),
        _power_whole,
        "thakur2005",
    ),
    Algorithm(
        "scatter",
        A.flat_scatter,
        lambda p, n, i, o: S.one_by_one(p, o["root"], S.cut(n, p, i).__getitem__),
        "(p−1)α + (p−1)/p·nβ",
        _form(_others, _part),
        _whole,
        "chan2007",
    ),
    Algorithm(
        "scatter",
        A.mst_scatter,
        lambda p, n, i, o: S.down(p, o["root"], S.scatter_lengths(p, n, i)),
        "⌈lg p⌉α + (p−1)/p·nβ",
        _form(_doublings, _part),
        _kept_larger,
        "chan2007",
    ),
    Algorithm(
        "gather",
        A.flat_gather,
        lambda p, n, i, o: S.one_by_one(p, o["root"], S.cut(n, p, i).__getitem__, True),
        "(p−1)α + (p−1)/p·nβ",
        _form(_others, _part),
        _whole,
        "chan2007",
    ),
    Algorithm(
        "gather",
        A.mst_gather,
        lambda p, n, i, o: S.up(p, o["root"], S.scatter_lengths(p, n, i)),
        "⌈lg p⌉α + (p−1)/p·nβ",
        _form(_doublings, _part),
        _kept_larger,
        "chan2007",
    ),
    Algorithm(
        "all_gather",
        A.ring_all_gather,
        lambda p, n, i, o: S.ring([range(p)], [S.cut(n, p, i)]),
        "(p−1)α + (p−1)/p·nβ",
        _form(_others, _part),
        _whole,
        "thakur2005",
    ),
    Algorithm(
        "all_gather",
        A.recursive_doubling_all_gather,
        S.doubling_all_gather,
        "lg p·α + (p−1)/p·nβ",
        _form(_doublings, _part),
        _power_whole,
        "thakur2005",
    ),
    Algorithm(
        "all_gather",
        A.bruck_all_gather,
        S.bruck_all_gather,
        "⌈lg p⌉α + (p−1)/p·nβ",
        _form(_doublings, _part),
        _whole,
        "bruck1997",
    ),
    Algorithm(
        "reduce_scatter",
        A.ring_reduce_scatter,
        lambda p, n, i, o: S.ring([range(p)], [S.cut(n, p, i)], -1, True),
        "(p−1)α + (p−1)/p·n(β + γ)",
        _form(_others, _part, _part),
        _whole,
        "patarasuk2009",
    ),
    Algorithm(
        "reduce_scatter",
        A.recursive_halving_reduce_scatter,
        S.halving_reduce_scatter,
        "lg p·α + (p−1)/p·n(β + γ)",
        _form(_doublings, _part, _part),
        _power_whole,
        "thakur2005",
    ),
    Algorithm(
        "reduce_scatter",
        A.bruck_reduce_scatter,
        S.bruck_reduce_scatter,
        "⌈lg p⌉α + (p−1)/p·n(β + γ)",
        _form(_doublings, _part, _part),
        _whole,
        "bruck1997",
    ),
    Algorithm(
        "all_reduce",
        A.mst_all_reduce,
        S.mst_all_reduce,
        "⌈lg p⌉(2α + 2nβ + nγ)",
        _form(lambda p, o: 2 * lg(p), lambda p, o: 2 * lg(p), _doublings),
        _always,
        "chan2007",
    ),
    Algorithm(
        "all_reduce",
        A.ring_all_reduce,
        S.ring_all_reduce,
        "2(p−1)α + 2(p−1)/p·nβ + (p−1)/p·nγ",
        _form(lambda p, o: 2 * (p - 1), _twice_part, _part),
        _whole,
        "patarasuk2009",
    ),
    Algorithm(
        "all_reduce",
        A.recursive_doubling_all_reduce,
        S.doubling_all_reduce,
        "lg p(α + nβ + nγ); else ⌊lg p⌋ + 2 messages, ⌊lg p⌋ + 1 reduced",
        _form(
            lambda p, o: _floor(p) + 2 * _folds(p),
            lambda p, o: _floor(p) + 2 * _folds(p),
            lambda p, o: _floor(p) + _folds(p),
        ),
        _always,
        "thakur2005",
    ),
    Algorithm(
        "all_reduce",
        A.rabenseifner_all_reduce,
        S.rabenseifner_all_reduce,
        "2 lg p·α + 2(p−1)/p·nβ + (p−1)/p·nγ; else (2⌊lg p⌋+2)α + (2(p′−1)/p′+2)nβ + (1+(p′−1)/p′)nγ, p′ = 2^⌊lg p⌋",
        _form(
            lambda p, o: 2 * _floor(p) + 2 * _folds(p),
            lambda p, o: 2 * _power_part(p) + 2 * _folds(p),
            lambda p, o: _power_part(p) + _folds(p),
        ),
        lambda p, count, o: count % (1 << _floor(p)) == 0,
        "thakur2005",
    ),
    Algorithm(
        "all_reduce",
        A.two_trees_all_reduce,
        S.two_trees_all_reduce,
        "≈ 2nβ + nγ + O(lg p·α)",
        None,
        _always,
        "sanders2009",
    ),
    Algorithm(
        "all_reduce",
        A.chain_tree_all_reduce,
        S.chain_tree_all_reduce,
        "≈ 2nβ in a node, 4nβ between nodes",
        None,
        _always,
        "hu2025demystifying",
        S.chain_tree_time,
    ),
    Algorithm(
        "all_reduce",
        A.multi_tree_all_reduce,
        S.multi_tree_all_reduce,
        "≈ 2n/r·β between, r−1 times that inside nodes",
        None,
        _always,
        "hu2025demystifying",
    ),
    Algorithm(
        "all_reduce",
        A.two_level_halving_all_reduce,
        lambda p, n, i, o: S.two_level_all_reduce(p, n, i, o, S.rabenseifner_all_reduce),
        "2 lg r·α + 2(r−1)/r·nβ inside + 2 lg N·α + 2(N−1)/N·n/r·β between + (p−1)/p·nγ",
        _two_level_form(_form(lambda N, o: 2 * lg(N), _twice_part, _part)),
        _nodes_power_whole,
        "rabenseifner2004",
    ),
    Algorithm(
        "all_reduce",
        A.two_level_doubling_all_reduce,
        lambda p, n, i, o: S.two_level_all_reduce(p, n, i, o, S.doubling_all_reduce),
        "2 lg r·α + 2(r−1)/r·nβ inside + lg N(α + n/r·β) between + ((r−1)/r + lg N/r)nγ",
        _two_level_form(_form(_doublings, _doublings, _doublings)),
        _nodes_power_whole,
        "thakur2005",
    ),
    Algorithm(
        "all_reduce",
        A.node_leader_all_reduce,
        S.node_leader_all_reduce,
        "⌈lg r⌉(2α + 2nβ + nγ) inside + lg N(α + nβ + nγ) between",
        _leader_form,
        _nodes_power,
        "mpich2026smp",
    ),
    Algorithm(
        "all_reduce",
        A.hierarchical_ring_all_reduce,
        S.hierarchical_ring_all_reduce,
        "2(r−1)(α + n/r·β) inside + 2(N−1)(α + n/p·β) between + (p−1)/p·nγ",
        _hierarchical_form,
        _whole,
        "patarasuk2009",
    ),
    Algorithm(
        "all_reduce",
        A.multi_ring_all_reduce,
        S.multi_ring_all_reduce,
        "≈ 2(p−1)/p·n/r·β between, r−1 times that inside nodes",
        None,
        _always,
        "hu2025demystifying",
    ),
    Algorithm(
        "all_to_all",
        A.pairwise_all_to_all,
        S.pairwise_all_to_all,
        "(p−1)(α + n/p·β)",
        _form(_others, _part),
        _whole,
        "thakur2005",
    ),
    Algorithm(
        "all_to_all",
        A.bruck_all_to_all,
        S.bruck_all_to_all,
        "⌈lg p⌉(α + n/2·β)",
        _form(_doublings, lambda p, o: lg(p) / 2),
        _power_whole,
        "bruck1997",
    ),
    Algorithm(
        "barrier",
        A.dissemination_barrier,
        S.dissemination_barrier,
        "⌈lg p⌉(α + nβ)",
        _form(_doublings, _doublings),
        _always,
        "hensgen1988",
    ),
]
