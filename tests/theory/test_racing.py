"""Races over the whole table: who takes part, who is quickest, and what is not told apart; rings through each card."""

import re

import numpy as np
import pytest

from ringtree import Link, Machine, data
from ringtree.errors import UsageError
from ringtree.theory import ALGORITHMS, card, cost_of, fit_line, fit_lines, fit_machine, misses, nvlink, race
from ringtree.theory.costs import _of_one_tensor, _simulated

LINK = Link.of(5e-6, bandwidth=50e9, gap=0.5e-6)
NODES = Machine(nvlink(), card(), ranks_per_node=4, cards_per_node=4)
MIB = 1 << 20


@pytest.mark.parametrize("collective", sorted({row.collective for row in ALGORITHMS}))
@pytest.mark.parametrize("machine", [LINK, NODES], ids=["link", "nodes"])
def test_every_algorithm_takes_part_or_is_named(collective, machine):
    run = race(collective, 8, [4096], machine)
    assert {*run.times.algorithm} | {*run.left_out} == {row.name for row in ALGORITHMS if row.collective == collective}
    assert not {*run.times.algorithm} & {*run.left_out}
    said = " ".join(str(run).split())
    for name, reason in run.left_out.items():
        assert re.search(rf"left out, {re.escape(reason)}: ([a-z_]+, )*{name}\b", said)


def test_a_time_is_cost_ofs_with_the_best_options():
    run = race("broadcast", 8, [MIB], LINK)
    for name in ("mst_broadcast", "flat_broadcast", "scatter_bruck_broadcast"):
        assert run.time(name, MIB) == cost_of(name, 8, MIB, LINK).time
    chunks = [1 << i for i in range(9)]
    assert run.time("chain_broadcast_ahead", MIB) == min(
        cost_of("chain_broadcast_ahead", 8, MIB, LINK, chunks=k).time for k in chunks
    )


def test_what_the_book_long_left_out_wins():
    """Figures recomputed by hand: 8 ranks, 5 µs, 50 GB/s, a gap of a tenth."""
    broadcast = race("broadcast", 8, [MIB], LINK)
    assert broadcast.time("chain_broadcast_ahead", MIB) == pytest.approx(71.3e-6, rel=1e-3)
    assert broadcast.time("mst_broadcast", MIB) == pytest.approx(77.9e-6, rel=1e-3)
    assert broadcast.time("chain_broadcast", MIB) == pytest.approx(102e-6, rel=0.02)
    reduce = race("all_reduce", 8, [1024, 4 * MIB], LINK)
    assert reduce.winner(1024) == "one_shot_all_reduce"
    assert cost_of("sliced_ring_all_reduce", 8, 4 * MIB, LINK, slices=2).time == pytest.approx(165.3e-6, rel=1e-3)
    assert reduce.time("rabenseifner_all_reduce", 4 * MIB) == pytest.approx(176.8e-6, rel=1e-3)
    assert reduce.time("ring_all_reduce", 4 * MIB) == pytest.approx(216.8e-6, rel=1e-3)


@pytest.mark.parametrize("size", [6, 24, 96])
def test_on_one_port_bruck_beats_ring_and_trees_where_p_is_no_power_of_two(size):
    link = Link.of(5e-6, bandwidth=50e9)
    for times in (1, 4, 16, 64):
        nbytes = times * 250_000 // (4 * size) * 4 * size
        bruck = cost_of("bruck_all_reduce", size, nbytes, link).time
        assert bruck < cost_of("ring_all_reduce", size, nbytes, link).time
        assert bruck < cost_of("two_trees_all_reduce", size, nbytes, link).time


def test_two_times_in_the_band_are_not_told_apart():
    run = race("all_reduce", 8, [MIB], LINK)
    names = [*run.first(MIB).algorithm]
    assert len(names) > 1 and f"(within 10 %: {names[1]}" in str(run)
    assert len(race("all_reduce", 8, [MIB], LINK, band=0.0).first(MIB)) == 1


def test_a_printed_race_fits_a_page():
    cluster = Machine(nvlink(), card(), ranks_per_node=8, cards_per_node=1)
    printed = str(race("all_reduce", 16, [1024, MIB, 256 * MIB], cluster, band=1.0)).splitlines()
    told = [line for line in printed if "left out" not in line and "once through" not in line]
    assert sum("(within 100 %: " in line for line in told) == 3 and max(map(len, told)) <= 88, told
    assert "greedy_broadcast, latency 16" in str(race("broadcast", 16, [1024], card()))


def test_a_fitted_link_brings_its_own_band_and_says_so():
    random, sizes = np.random.default_rng(0), 2.0 ** np.arange(3, 27)
    times = LINK.time(sizes) * np.exp(random.normal(0, 0.03, len(sizes)))
    for link in (fit_line(sizes, times, gap=0.5e-6), *fit_lines(sizes, times, count=1, gap=0.5e-6)):
        assert link.error == np.median(np.abs(misses(link, sizes, times))) and 0 < link.error < 0.05
        run = race("all_reduce", 8, [MIB], link)
        assert run.band == link.error
        assert f"not told apart within {100 * link.error:.1f} %, the median miss of the machine's fit" in str(run)
        assert race("all_reduce", 8, [MIB], link, band=0.2).band == 0.2
    assert race("all_reduce", 8, [MIB], LINK).band == 0.1 and "median miss" not in str(race("all_reduce", 8, [MIB], LINK))


def test_a_fitted_machine_brings_its_own_band():
    samples = data.samples("v100_n2_p8", "v100_n4_p16")
    fitted = fit_machine(samples, 1, 0.3e-6)
    assert fitted.model.error == fitted.misses.miss.abs().median()
    machine = fitted.model.machine(fitted.model.protocols[0], 4)
    assert machine.error == fitted.model.error == race("all_to_all", 8, [4096], machine).band
    assert machine.between.gap == 0.3e-6


def test_too_many_messages_are_left_out_and_said(monkeypatch):
    monkeypatch.setattr("ringtree.theory.racing.MOST_MESSAGES", 50)
    run = race("all_reduce", 8, [4096], LINK)
    assert run.left_out["ring_all_reduce"] == "more than 50 messages" and "ring_all_reduce" not in {*run.times.algorithm}
    assert "mst_all_reduce" in {*run.times.algorithm}


@pytest.mark.parametrize(("collective", "sizes"), [("barrier", [3]), ("all_reduce", [-4]), ("all_reduce", ["1M"])])
def test_a_race_that_cannot_be_is_refused(collective, sizes):
    with pytest.raises(UsageError):
        race(collective, 4, sizes, LINK)


def test_a_size_that_did_not_run_is_refused():
    run = race("barrier", 4, [4], LINK)
    with pytest.raises(UsageError, match="this race had no vector of 8 bytes"):
        run.first(8)


# -- once through each card ------------------------------------------------------


@pytest.mark.parametrize("nbytes", [32 << 10, 16 * MIB])
@pytest.mark.parametrize(
    ("one", "each"), [("ring_all_reduce", "multi_ring_all_reduce"), ("two_trees_all_reduce", "multi_tree_all_reduce")]
)
def test_a_ring_through_each_card_is_the_program_that_does_it(one, each, nbytes):
    trees = {"chunks": 4, "ranks_per_node": 4} if "tree" in one else {}
    inside = {**trees, "ranks_per_node": 4}
    laid = cost_of(one, 16, nbytes, NODES, **trees)
    assert laid.time == pytest.approx(cost_of(each, 16, nbytes, NODES, **inside).time, rel=1e-9)
    assert max(laid.sent) == max(cost_of(each, 16, nbytes, NODES, **inside).sent)
    assert laid.time < cost_of(one, 16, nbytes, NODES, cards="one", **trees).time


def test_every_ring_and_chain_is_quicker_through_each_card_where_vectors_are_long():
    for name in ("ring_all_gather", "ring_reduce_scatter", "chain_broadcast", "chain_reduce"):
        each, one = (cost_of(name, 16, 64 * MIB, NODES, cards=cards).time for cards in (None, "one"))
        assert each < 0.5 * one, name


def test_ranks_that_make_no_whole_nodes_are_refused():
    with pytest.raises(UsageError, match='a ring for each card needs whole nodes.*cards="one"'):
        cost_of("ring_all_reduce", 10, 4000, NODES)
    assert cost_of("ring_all_reduce", 10, 4000, NODES, cards="one").rounds == 18


@pytest.mark.parametrize("cards", [4, 2, 1])
@pytest.mark.parametrize("gap", [None, 0.1, 0.0])
def test_steps_on_cards_take_as_long_as_the_program_in_the_simulator(cards, gap):
    import torch

    between = None if gap is None else 3 * gap
    machine = Machine(Link(1.0, 0.01, gap), Link(3.0, 0.05, between), ranks_per_node=4, cards_per_node=cards)
    for row in ALGORITHMS:
        for size in (8, 12):
            options = {"ranks_per_node": 4} if "ranks_per_node" in row.taken else {}
            for gamma in (0.0, 0.003):
                cost = cost_of(row.name, size, 212, machine, cards="one", gamma=gamma, **options)
                (run,) = _simulated(_of_one_tensor(row), size, [53], torch.float32, machine, gamma, options)
                assert cost.time == pytest.approx(run.time, rel=1e-9) and cost.rounds == run.rounds, row.name
