"""The algorithms in one table: for each its schedule, its cost as books give it, where that is exact, and its source."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field

from ringtree import algorithms
from ringtree.errors import UsageError
from ringtree.theory import forms, schedules
from ringtree.theory.schedules import lg

__all__ = ["ALGORITHMS", "Algorithm", "find", "row_of"]


@dataclass(frozen=True)
class Algorithm:
    """One row of the table.

    collective: its name in `ringtree.collectives`. program: the function of `ringtree.algorithms`. steps: its schedule,
    (p, n, itemsize, options) to steps, each a list of messages (src, dst, bytes) and whether the receivers reduce what comes.
    textbook: the cost as books give it; form: the same as a function (p, n, link, gamma, options) to
    seconds; holds: where that is exact, (p, elements, options) to bool. source: key of the reference.
    time: where ranks do not wait at the end of every step, (steps, p, machine, gamma, options) to seconds. stepwise: whether
    the steps, or `time`, say when messages move; where not, the program is simulated. grid: for each
    option the values that a race tries. laid: whether it goes from rank to rank through every node, a ring, a chain or a pair
    of trees, so that a machine with several cards a node has it once through each.
    """

    collective: str
    program: Callable
    steps: Callable
    textbook: str
    form: Callable | None
    holds: Callable
    source: str
    time: Callable | None = None
    stepwise: bool = True
    grid: dict[str, tuple[int, ...]] = field(default_factory=dict)
    laid: bool = False

    @property
    def name(self) -> str:
        return self.program.__name__

    @property
    def taken(self) -> tuple[str, ...]:
        """The names of its parameters."""
        return tuple(inspect.signature(self.program).parameters)


def find(program) -> Algorithm:
    """The row of an algorithm, from its function or its name."""
    if row := row_of(program):
        return row
    raise UsageError(f"{program!r} is none of our algorithms: give one of {', '.join(row.name for row in ALGORITHMS)}")


def row_of(program) -> Algorithm | None:
    """The same, or None where it is none of ours: somebody's own rank program."""
    return next((row for row in ALGORITHMS if program in (row.program, row.name)), None)


A, F, S = algorithms, forms, schedules
CHUNKS = {"chunks": (1, 2, 4, 8, 16, 32, 64, 128, 256)}
SLICES = {"slices": (2, 4, 8)}
LATENCY = {"latency": (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)}
ALGORITHMS = [
    Algorithm(
        "broadcast",
        A.flat_broadcast,
        lambda p, n, i, o: S.one_by_one(p, o["root"], lambda other: n),
        "(p−1)(α + nβ)",
        F.form_of(F.others, F.others),
        F.always,
        "chan2007",
    ),
    Algorithm(
        "broadcast",
        A.mst_broadcast,
        lambda p, n, i, o: S.down(p, o["root"], lambda half: n),
        "⌈lg p⌉(α + nβ)",
        F.form_of(F.doublings, F.doublings),
        F.always,
        "chan2007",
    ),
    Algorithm(
        "broadcast",
        A.chain_broadcast,
        lambda p, n, i, o: S.chain_broadcast(p, o["root"], S.cut(n, o["chunks"], i)),
        "(p−2+k)(α + n/k·β)",
        F.form_of(F.steps_of_chain, F.chunks_of_chain),
        F.chunks_divide_n,
        "chan2007",
        grid=CHUNKS,
        laid=True,
    ),
    Algorithm(
        "broadcast",
        A.scatter_all_gather_broadcast,
        S.scatter_all_gather_broadcast,
        "(lg p + p−1)α + 2(p−1)/p·nβ",
        F.form_of(lambda p, o: lg(p) + p - 1, F.twice_part),
        F.a_power_of_two_divides_n,
        "chan2007",
    ),
    Algorithm(
        "broadcast",
        A.scatter_bruck_broadcast,
        S.scatter_bruck_broadcast,
        "2⌈lg p⌉α + 2(p−1)/p·nβ",
        F.form_of(lambda p, o: 2 * lg(p), F.twice_part),
        F.root_keeps_larger_half,
        "thakur2005",
    ),
    Algorithm(
        "broadcast",
        A.greedy_broadcast,
        S.greedy_broadcast,
        "the least of all that send n in one piece",
        None,
        F.always,
        "karp1993",
        time=S.greedy_time,
        grid=LATENCY,
    ),
    Algorithm(
        "broadcast",
        A.chain_broadcast_ahead,
        lambda p, n, i, o: S.chain_broadcast(p, o["root"], S.cut(n, o["chunks"], i)),
        "(p−1)(α + n/k·β) + (k−1)(g + n/k·β)",
        F.ahead_form,
        F.chunks_divide_n,
        "chan2007",
        time=S.chain_ahead_time,
        grid=CHUNKS,
        laid=True,
    ),
    Algorithm(
        "reduce",
        A.flat_reduce,
        lambda p, n, i, o: S.one_by_one(p, o["root"], lambda other: n, True, True),
        "(p−1)(α + nβ + nγ)",
        F.form_of(F.others, F.others, F.others),
        F.always,
        "chan2007",
    ),
    Algorithm(
        "reduce",
        A.mst_reduce,
        lambda p, n, i, o: S.up(p, o["root"], lambda half: n, True),
        "⌈lg p⌉(α + nβ + nγ)",
        F.form_of(F.doublings, F.doublings, F.doublings),
        F.always,
        "chan2007",
    ),
    Algorithm(
        "reduce",
        A.chain_reduce,
        S.chain_reduce,
        "(p−2+k)(α + n/k·(β + γ))",
        F.form_of(F.steps_of_chain, F.chunks_of_chain, F.chunks_of_chain),
        F.chunks_divide_n,
        "chan2007",
        grid=CHUNKS,
        laid=True,
    ),
    Algorithm(
        "reduce",
        A.chain_reduce_ahead,
        S.chain_reduce,
        "(p−1)(α + n/k·(β + γ)) + (k−1)·max(g + n/k·β, n/k·γ)",
        F.ahead_reduce_form,
        F.chunks_divide_n,
        "chan2007",
        time=S.chain_ahead_time,
        grid=CHUNKS,
        laid=True,
    ),
    Algorithm(
        "reduce",
        A.rabenseifner_reduce,
        S.rabenseifner_reduce,
        "2 lg p·α + 2(p−1)/p·nβ + (p−1)/p·nγ",
        F.form_of(lambda p, o: 2 * lg(p), F.twice_part, F.part),
        F.a_power_of_two_divides_n,
        "thakur2005",
    ),
    Algorithm(
        "reduce",
        A.bruck_reduce,
        S.bruck_reduce,
        "2⌈lg p⌉α + 2(p−1)/p·nβ + (p−1)/p·nγ",
        F.form_of(lambda p, o: 2 * lg(p), F.twice_part, F.part),
        F.root_keeps_larger_half,
        "bruck1997",
    ),
    Algorithm(
        "reduce",
        A.greedy_reduce,
        S.greedy_reduce,
        "that of the greedy broadcast, and nγ for each that a rank waits for",
        None,
        F.always,
        "karp1993",
        stepwise=False,
        grid=LATENCY,
    ),
    Algorithm(
        "scatter",
        A.flat_scatter,
        lambda p, n, i, o: S.one_by_one(p, o["root"], S.cut(n, p, i).__getitem__),
        "(p−1)α + (p−1)/p·nβ",
        F.form_of(F.others, F.part),
        F.p_divides_n,
        "chan2007",
    ),
    Algorithm(
        "scatter",
        A.mst_scatter,
        lambda p, n, i, o: S.down(p, o["root"], S.scatter_lengths(p, n, i)),
        "⌈lg p⌉α + (p−1)/p·nβ",
        F.form_of(F.doublings, F.part),
        F.root_keeps_larger_half,
        "chan2007",
    ),
    Algorithm(
        "scatter",
        A.direct_scatter,
        lambda p, n, i, o: S.direct(p, o["root"], S.cut(n, p, i).__getitem__),
        "α + (p−2)g + (p−1)/p·nβ",
        F.direct_form(1, F.part),
        F.p_divides_n,
        "alexandrov1995",
    ),
    Algorithm(
        "gather",
        A.flat_gather,
        lambda p, n, i, o: S.one_by_one(p, o["root"], S.cut(n, p, i).__getitem__, True),
        "(p−1)α + (p−1)/p·nβ",
        F.form_of(F.others, F.part),
        F.p_divides_n,
        "chan2007",
    ),
    Algorithm(
        "gather",
        A.mst_gather,
        lambda p, n, i, o: S.up(p, o["root"], S.scatter_lengths(p, n, i)),
        "⌈lg p⌉α + (p−1)/p·nβ",
        F.form_of(F.doublings, F.part),
        F.root_keeps_larger_half,
        "chan2007",
    ),
    Algorithm(
        "gather",
        A.direct_gather,
        lambda p, n, i, o: S.direct(p, o["root"], S.cut(n, p, i).__getitem__, True),
        "α + (p−2)g + (p−1)/p·nβ",
        F.direct_form(1, F.part),
        F.p_divides_n,
        "alexandrov1995",
    ),
    Algorithm(
        "all_gather",
        A.ring_all_gather,
        lambda p, n, i, o: S.ring([range(p)], [S.cut(n, p, i)]),
        "(p−1)α + (p−1)/p·nβ",
        F.form_of(F.others, F.part),
        F.p_divides_n,
        "thakur2005",
        laid=True,
    ),
    Algorithm(
        "all_gather",
        A.recursive_doubling_all_gather,
        S.doubling_all_gather,
        "lg p·α + (p−1)/p·nβ",
        F.form_of(F.doublings, F.part),
        F.a_power_of_two_divides_n,
        "thakur2005",
    ),
    Algorithm(
        "all_gather",
        A.bruck_all_gather,
        S.bruck_all_gather,
        "⌈lg p⌉α + (p−1)/p·nβ",
        F.form_of(F.doublings, F.part),
        F.p_divides_n,
        "bruck1997",
    ),
    Algorithm(
        "all_gather",
        A.direct_all_gather,
        lambda p, n, i, o: S.to_all(range(p), lambda src, dst: S.cut(n, p, i)[src]),
        "α + (p−2)g + (p−1)/p·nβ",
        F.direct_form(1, F.part),
        F.p_divides_n,
        "alexandrov1995",
    ),
    Algorithm(
        "all_gather",
        A.multi_ring_all_gather,
        S.multi_ring_of_shards,
        "≈ (p−1)/p·n/r·β between, r−1 times that inside nodes",
        None,
        F.always,
        "hu2025demystifying",
    ),
    Algorithm(
        "reduce_scatter",
        A.ring_reduce_scatter,
        lambda p, n, i, o: S.ring([range(p)], [S.cut(n, p, i)], -1, True),
        "(p−1)α + (p−1)/p·n(β + γ)",
        F.form_of(F.others, F.part, F.part),
        F.p_divides_n,
        "patarasuk2009",
        laid=True,
    ),
    Algorithm(
        "reduce_scatter",
        A.recursive_halving_reduce_scatter,
        S.halving_reduce_scatter,
        "lg p·α + (p−1)/p·n(β + γ)",
        F.form_of(F.doublings, F.part, F.part),
        F.a_power_of_two_divides_n,
        "thakur2005",
    ),
    Algorithm(
        "reduce_scatter",
        A.bruck_reduce_scatter,
        S.bruck_reduce_scatter,
        "⌈lg p⌉α + (p−1)/p·n(β + γ)",
        F.form_of(F.doublings, F.part, F.part),
        F.p_divides_n,
        "bruck1997",
    ),
    Algorithm(
        "reduce_scatter",
        A.direct_reduce_scatter,
        lambda p, n, i, o: S.to_all(range(p), lambda src, dst: S.cut(n, p, i)[dst], True),
        "α + (p−2)g + (p−1)/p·n(β + γ)",
        F.direct_form(1, F.part, F.part),
        F.p_divides_n,
        "alexandrov1995",
    ),
    Algorithm(
        "reduce_scatter",
        A.multi_ring_reduce_scatter,
        lambda p, n, i, o: S.multi_ring_of_shards(p, n, i, o, -1, True),
        "≈ (p−1)/p·n/r·β between, r−1 times that inside nodes",
        None,
        F.always,
        "hu2025demystifying",
    ),
    Algorithm(
        "all_reduce",
        A.mst_all_reduce,
        S.mst_all_reduce,
        "⌈lg p⌉(2α + 2nβ + nγ)",
        F.form_of(lambda p, o: 2 * lg(p), lambda p, o: 2 * lg(p), F.doublings),
        F.always,
        "chan2007",
    ),
    Algorithm(
        "all_reduce",
        A.ring_all_reduce,
        S.ring_all_reduce,
        "2(p−1)α + 2(p−1)/p·nβ + (p−1)/p·nγ",
        F.form_of(lambda p, o: 2 * (p - 1), F.twice_part, F.part),
        F.p_divides_n,
        "patarasuk2009",
        laid=True,
    ),
    Algorithm(
        "all_reduce",
        A.recursive_doubling_all_reduce,
        S.doubling_all_reduce,
        "lg p(α + nβ + nγ); else ⌊lg p⌋ + 2 messages, ⌊lg p⌋ + 1 reduced",
        F.form_of(
            lambda p, o: F.floor_lg(p) + 2 * F.folds(p),
            lambda p, o: F.floor_lg(p) + 2 * F.folds(p),
            lambda p, o: F.floor_lg(p) + F.folds(p),
        ),
        F.always,
        "thakur2005",
    ),
    Algorithm(
        "all_reduce",
        A.rabenseifner_all_reduce,
        S.rabenseifner_all_reduce,
        "2 lg p·α + 2(p−1)/p·nβ + (p−1)/p·nγ; else (2⌊lg p⌋+2)α + (2(p′−1)/p′+2)nβ + (1+(p′−1)/p′)nγ, p′ = 2^⌊lg p⌋",
        F.form_of(
            lambda p, o: 2 * F.floor_lg(p) + 2 * F.folds(p),
            lambda p, o: 2 * F.power_part(p) + 2 * F.folds(p),
            lambda p, o: F.power_part(p) + F.folds(p),
        ),
        lambda p, count, o: count % (1 << F.floor_lg(p)) == 0,
        "thakur2005",
    ),
    Algorithm(
        "all_reduce",
        A.bruck_all_reduce,
        S.bruck_all_reduce,
        "2⌈lg p⌉α + 2(p−1)/p·nβ + (p−1)/p·nγ",
        F.form_of(lambda p, o: 2 * lg(p), F.twice_part, F.part),
        F.p_divides_n,
        "bruck1997",
    ),
    Algorithm(
        "all_reduce",
        A.one_shot_all_reduce,
        S.one_shot_all_reduce,
        "α + (p−2)g + (p−1)n(β + γ)",
        F.direct_form(1, F.others, F.others),
        F.always,
        "nccl2025symmetric",
    ),
    Algorithm(
        "all_reduce",
        A.two_shot_all_reduce,
        S.two_shot_all_reduce,
        "2α + 2(p−2)g + 2(p−1)/p·nβ + (p−1)/p·nγ",
        F.direct_form(2, F.twice_part, F.part),
        F.p_divides_n,
        "nccl2025symmetric",
    ),
    Algorithm(
        "all_reduce",
        A.sliced_ring_all_reduce,
        S.in_slices(S.ring_all_reduce),
        "≈ max(2(p−1)(α + n/(p·s)·β), α + 2(p−1)·s·g + 2(p−1)/p·nβ)",
        None,
        F.always,
        "patarasuk2009",
        stepwise=False,
        grid=SLICES,
        laid=True,
    ),
    Algorithm(
        "all_reduce",
        A.sliced_halving_all_reduce,
        S.in_slices(S.rabenseifner_all_reduce),
        "between 2 lg p·α + 2(p−1)/p·n/s·β and s times that",
        None,
        F.always,
        "thakur2005",
        stepwise=False,
        grid=SLICES,
    ),
    Algorithm(
        "all_reduce",
        A.sliced_bruck_all_reduce,
        S.in_slices(S.bruck_all_reduce),
        "between 2⌈lg p⌉α + 2(p−1)/p·n/s·β and s times that",
        None,
        F.always,
        "bruck1997",
        stepwise=False,
        grid=SLICES,
    ),
    Algorithm(
        "all_reduce",
        A.two_trees_all_reduce,
        S.two_trees_all_reduce,
        "≈ 2nβ + nγ + O(lg p·α)",
        None,
        F.always,
        "sanders2009",
        grid=CHUNKS,
        laid=True,
    ),
    Algorithm(
        "all_reduce",
        A.chain_tree_all_reduce,
        S.chain_tree_all_reduce,
        "≈ 2nβ in a node, 4nβ between nodes",
        None,
        F.always,
        "hu2025demystifying",
        time=S.chain_tree_time,
        grid=CHUNKS,
        laid=True,
    ),
    Algorithm(
        "all_reduce",
        A.multi_tree_all_reduce,
        S.multi_tree_all_reduce,
        "≈ 2n/r·β between, r−1 times that inside nodes",
        None,
        F.always,
        "hu2025demystifying",
        grid=CHUNKS,
    ),
    Algorithm(
        "all_reduce",
        A.two_level_halving_all_reduce,
        lambda p, n, i, o: S.two_level_all_reduce(p, n, i, o, S.rabenseifner_all_reduce),
        "2 lg r·α + 2(r−1)/r·nβ inside + 2 lg N·α + 2(N−1)/N·n/r·β between + (p−1)/p·nγ",
        F.two_level_form(F.form_of(lambda N, o: 2 * lg(N), F.twice_part, F.part)),
        F.powers_of_two_and_p_divides_n,
        "rabenseifner2004",
    ),
    Algorithm(
        "all_reduce",
        A.two_level_doubling_all_reduce,
        lambda p, n, i, o: S.two_level_all_reduce(p, n, i, o, S.doubling_all_reduce),
        "2 lg r·α + 2(r−1)/r·nβ inside + lg N(α + n/r·β) between + ((r−1)/r + lg N/r)nγ",
        F.two_level_form(F.form_of(F.doublings, F.doublings, F.doublings)),
        F.powers_of_two_and_p_divides_n,
        "thakur2005",
    ),
    Algorithm(
        "all_reduce",
        A.two_level_two_shot_all_reduce,
        lambda p, n, i, o: S.two_level_direct_all_reduce(p, n, i, o, 2),
        "2α + 2(r−2)g + 2(r−1)/r·nβ inside + 2α + 2(N−2)g + 2(N−1)/N·n/r·β between + (p−1)/p·nγ",
        F.two_level_direct_form(F.direct_form(2, F.twice_part, F.part)),
        F.p_divides_n,
        "nccl2025symmetric",
    ),
    Algorithm(
        "all_reduce",
        A.two_level_one_shot_all_reduce,
        lambda p, n, i, o: S.two_level_direct_all_reduce(p, n, i, o, 1),
        "2α + 2(r−2)g + 2(r−1)/r·nβ inside + α + (N−2)g + (N−1)n/r·β between + ((r−1)/r + (N−1)/r)nγ",
        F.two_level_direct_form(F.direct_form(1, F.others, F.others)),
        F.p_divides_n,
        "nccl2025symmetric",
    ),
    Algorithm(
        "all_reduce",
        A.node_leader_all_reduce,
        S.node_leader_all_reduce,
        "⌈lg r⌉(2α + 2nβ + nγ) inside + lg N(α + nβ + nγ) between",
        F.leader_form,
        F.a_power_of_two_of_nodes,
        "mpich2026smp",
    ),
    Algorithm(
        "all_reduce",
        A.hierarchical_ring_all_reduce,
        S.hierarchical_ring_all_reduce,
        "2(r−1)(α + n/r·β) inside + 2(N−1)(α + n/p·β) between + (p−1)/p·nγ",
        F.hierarchical_form,
        F.p_divides_n,
        "patarasuk2009",
    ),
    Algorithm(
        "all_reduce",
        A.multi_ring_all_reduce,
        S.multi_ring_all_reduce,
        "≈ 2(p−1)/p·n/r·β between, r−1 times that inside nodes",
        None,
        F.always,
        "hu2025demystifying",
    ),
    Algorithm(
        "all_to_all",
        A.pairwise_all_to_all,
        S.pairwise_all_to_all,
        "(p−1)(α + n/p·β)",
        F.form_of(F.others, F.part),
        F.p_divides_n,
        "thakur2005",
    ),
    Algorithm(
        "all_to_all",
        A.direct_all_to_all,
        S.direct_all_to_all,
        "α + (p−2)g + (p−1)/p·nβ",
        F.direct_form(1, F.part),
        F.p_divides_n,
        "thakur2005",
    ),
    Algorithm(
        "all_to_all",
        A.bruck_all_to_all,
        S.bruck_all_to_all,
        "⌈lg p⌉(α + n/2·β)",
        F.form_of(F.doublings, lambda p, o: lg(p) / 2),
        F.a_power_of_two_divides_n,
        "bruck1997",
    ),
    Algorithm(
        "barrier",
        A.dissemination_barrier,
        S.dissemination_barrier,
        "⌈lg p⌉(α + nβ)",
        F.form_of(F.doublings, F.doublings),
        F.always,
        "hensgen1988",
    ),
]
