"""Models of machines: closed forms, the fastest of several ways, and programs simulated on them."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringtree.algorithms import mst_broadcast, pairwise_all_to_all, rabenseifner_all_reduce, ring_all_reduce
from ringtree.cost import Link
from ringtree.errors import UsageError
from ringtree.theory import cost_of, textbook_time
from ringtree.theory.model import COLLECTIVES, Model, Protocol, closed_form, ring_share

QUICK = Protocol(5e-6, 1e-6, 0.6e-6, 4e-6, 5e9, 2e9)
FULL = Protocol(10e-6, 1e-6, 3e-6, 14e-6, 100e9, 20e9)
LONG = 1 << 24


@pytest.mark.parametrize("p", [2, 3, 4, 8, 64])
def test_inside_a_node_the_ring_is_the_textbooks_ring(p):
    """With a start of nothing: 2(p−1)α + 2(p−1)/p·nβ."""
    one = Protocol(0, 0, 2e-6, 9e-6, 10e9, 1e9)
    n = 4 * p * 1000
    expected = textbook_time(ring_all_reduce, p, n, Link.of(2e-6, bandwidth=10e9))
    assert closed_form("all_reduce", "ring", one, n, p, 1) == pytest.approx(expected)


def test_a_ring_over_four_nodes_crosses_the_network_eight_times():
    time = closed_form("all_reduce", "ring", QUICK, 0, 32, 4)
    assert time == pytest.approx(5e-6 + 1e-6 + (62 - 8) * 0.6e-6 + 8 * 4e-6)


def test_one_rank_a_node_leaves_no_hop_inside():
    assert closed_form("all_reduce", "ring", QUICK, 0, 4, 4) == pytest.approx(6e-6 + 6 * 4e-6)
    assert closed_form("all_gather", "ring", QUICK, 0, 4, 4) == pytest.approx(6e-6 + 3 * 4e-6)


def test_a_tree_is_a_chain_inside_the_node_and_a_logarithm_between_nodes():
    assert closed_form("all_reduce", "tree", QUICK, 0, 8, 1) == pytest.approx(5e-6 + 14 * 0.6e-6)
    assert closed_form("all_reduce", "tree", QUICK, 0, 64, 8) == pytest.approx(6e-6 + 14 * 0.6e-6 + 6 * 4e-6)


def test_a_short_vector_crosses_a_tree_in_one_piece():
    n, hops = 1000, 2 * 3 + 2 * 1
    grown = closed_form("all_reduce", "tree", QUICK, n, 8, 2) - closed_form("all_reduce", "tree", QUICK, 0, 8, 2)
    assert grown == pytest.approx(hops * n / 2e9)


def test_a_long_vector_crosses_a_tree_twice():
    grown = closed_form("all_reduce", "tree", QUICK, 1e13, 8, 2)
    assert grown == pytest.approx(2 * 1e13 / 2e9, rel=1e-3)


@given(st.integers(2, 200), st.floats(1, 1e9), st.floats(1e-7, 1e-4), st.floats(1e-11, 1e-8))
def test_the_pipelined_term_is_the_best_cut_into_chunks(hops, n, alpha, beta):
    """(hops + chunks)·(α + n/chunks·β) is least at √(hops·n·β/α) chunks, where it is hops·α + nβ + 2√(hops·α·nβ)."""
    chunks = math.sqrt(hops * n * beta / alpha)
    least = (hops + chunks) * (alpha + n / chunks * beta)
    assert least == pytest.approx(hops * alpha + n * beta + 2 * math.sqrt(hops * alpha * n * beta))
    for near in (0.9, 1.1):
        assert (hops + near * chunks) * (alpha + n / (near * chunks) * beta) >= least


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("nodes", [1, 2, 8])
def test_longer_vectors_and_slower_links_never_take_less(collective, nodes):
    sizes = 2.0 ** np.arange(3, 34)
    model, slower = Model((QUICK, FULL)), Model((QUICK, Protocol(10e-6, 1e-6, 3e-6, 14e-6, 90e9, 18e9)))
    ranks = 2 if collective == "send_recv" else 16
    nodes = min(nodes, ranks)
    times = model.time(collective, sizes, ranks, nodes)
    assert (np.diff(times) >= 0).all()
    assert (slower.time(collective, sizes, ranks, nodes) >= times).all()


def test_the_fastest_way_counts():
    model = Model((QUICK, FULL), ranks_per_node=8)
    sizes = [8, 1 << 12, 1 << 20, 1 << 30]
    ways = [closed_form("all_reduce", a, p, np.array(sizes), 32, 4) for p in (QUICK, FULL) for a in ("ring", "tree")]
    assert model.time("all_reduce", sizes, 32).tolist() == np.min(ways, axis=0).tolist()
    names = [("ring", 0), ("tree", 0), ("ring", 1), ("tree", 1)]
    assert model.choice("all_reduce", sizes, 32) == [names[i] for i in np.argmin(ways, axis=0)]
    assert model.choice("all_reduce", sizes, 32)[0] == ("tree", 0)
    assert model.choice("all_reduce", sizes, 32)[-1] == ("ring", 1)


def test_a_program_is_simulated_on_each_protocol_and_its_start_added():
    model = Model((QUICK, FULL))
    expected = [
        one.start + cost_of(rabenseifner_all_reduce, 8, LONG, Link.of(one.hop_inside, bandwidth=one.bandwidth_inside)).time
        for one in (QUICK, FULL)
    ]
    assert model.time(rabenseifner_all_reduce, LONG, 8)[0] == pytest.approx(min(expected))


def test_a_simulated_program_enters_the_network_once_where_there_are_several_nodes():
    near, far = Model((QUICK,)), Model((replace(QUICK, enter_network=QUICK.enter_network + 1e-3),))
    for nodes, more in ((1, 0), (2, 1e-3)):
        times = [model.time(ring_all_reduce, 1024, 8, nodes)[0] for model in (near, far)]
        assert times[1] - times[0] == pytest.approx(more)


def test_inside_a_node_the_simulated_ring_is_the_closed_form():
    model = Model((FULL,))
    assert model.time(ring_all_reduce, LONG, 8)[0] == pytest.approx(model.time("all_reduce", LONG, 8)[0], rel=1e-6)


def test_between_nodes_the_nodes_links_are_shared():
    """All four ranks of a node send to the other node at once: one after the other through the way out."""
    model = Model((FULL,), ranks_per_node=4)
    crossing = model.time("all_to_all", LONG, 8)[0]
    assert crossing >= 4 * 4 * (LONG / 8) / FULL.bandwidth_between


def test_a_programs_options_reach_it():
    model = Model((QUICK,))
    assert model.time(mst_broadcast, 1024, 4, root=3)[0] == model.time(mst_broadcast, 1024, 4, root=0)[0]
    with pytest.raises(TypeError, match="no_such"):
        model.time(mst_broadcast, 1024, 4, no_such=3)
    with pytest.raises(UsageError, match="only a rank program"):
        model.time("all_reduce", 1024, 4, root=3)


def test_what_has_no_closed_form_is_simulated():
    model, link = Model((QUICK,)), Link.of(QUICK.hop_inside, bandwidth=QUICK.bandwidth_inside)
    assert model.time("all_to_all", 4096, 4)[0] == pytest.approx(QUICK.start + cost_of(pairwise_all_to_all, 4, 4096, link).time)
    assert model.time("scatter", 4096, 4)[0] == pytest.approx(model.time("gather", 4096, 4)[0])
    assert model.time("barrier", 4096, 4)[0] == pytest.approx(QUICK.start + 2 * QUICK.hop_inside)


@pytest.mark.parametrize("collective, share", [("all_reduce", 1.75), ("all_gather", 0.875), ("broadcast", 1), ("send_recv", 1)])
def test_a_rings_share_is_busbw_over_algbw(collective, share):
    assert ring_share(collective, 8) == share


@pytest.mark.parametrize(
    "call, sentence",
    [
        (lambda m: m.time("all_reduce", -1, 4), "negative or not a finite"),
        (lambda m: m.time("all_reduce", math.nan, 4), "negative or not a finite"),
        (lambda m: m.time("all_reduce", 8, 0), "ranks=0"),
        (lambda m: m.time("all_reduce", 8, 2.5), "ranks=2.5"),
        (lambda m: m.time("all_reduce", 8, 6, 4), "6 ranks on 4 nodes"),
        (lambda m: m.time("all_shout", 8, 4), "'all_shout'"),
        (lambda m: m.time(ring_all_reduce, 9, 4), "9 bytes"),
        (lambda m: closed_form("broadcast", "tree", QUICK, 8, 4, 1), "'tree' for broadcast"),
        (lambda m: Model(()), "no protocols"),
        (lambda m: Protocol(1, 1, 1, 1, -1, 1), "bandwidth_inside=-1"),
        (lambda m: Protocol(math.inf, 1, 1, 1, 1, 1), "start=inf"),
        (lambda m: Protocol(1, 1, 1, 1, 0, 1), "bandwidth_inside=0"),
    ],
)
def test_impossible_questions_are_refused_in_one_sentence(call, sentence):
    with pytest.raises(UsageError, match=sentence) as error:
        call(Model((QUICK,)))
    assert "\n" not in str(error.value)
