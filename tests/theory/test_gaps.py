"""The gap of a port, fitted where the times hold it and refused elsewhere, with the reason."""

import numpy as np
import pytest

from ringtree import Link, Machine, data, theory
from ringtree.algorithms import direct_all_to_all
from ringtree.errors import UsageError
from ringtree.theory import card, cost_of, fit_gap, fit_line, fit_lines, nvlink

SIZES = [1 << k for k in range(8, 20, 2)]
START = 5e-6


def logs(program="direct_all_to_all", gap=0.4e-6, groups=(4, 8, 16), noise=0.0, nodes=None, machine=None):
    """Times of the simulator's clock, on a machine whose gap is known."""
    machine, random = machine or Link.of(3e-6, bandwidth=50e9, gap=gap), np.random.default_rng(1)
    collective = "scatter" if "scatter" in program else "all_to_all"
    return [
        {
            "collective": collective,
            "size": size,
            "ranks": ranks,
            "nodes": 1 if nodes is None else ranks // nodes,
            "time": (START + cost_of(program, ranks, size, machine).time) * float(np.exp(random.normal(0, noise))),
        }
        for ranks in groups
        for size in SIZES
    ]


@pytest.mark.parametrize("program", ["direct_all_to_all", "direct_scatter"])
@pytest.mark.parametrize("gap", [0.1e-6, 0.4e-6, 2e-6])
def test_the_gap_of_a_made_log_is_found(program, gap):
    found = fit_gap(logs(program, gap))
    assert found.gap == pytest.approx(gap, rel=1e-6) and found.low <= found.gap <= found.high
    assert (found.wire, found.worlds, found.miss < 1e-6) == ("inside", ((4, 1), (8, 1), (16, 1)), True)


def test_with_noise_the_interval_holds_it():
    found = fit_gap(logs(noise=0.03))
    assert found.low < 0.4e-6 < found.high and found.high - found.low > 1e-9
    assert "inferred from the all_to_all on 4, 8, 16 ranks" in str(found)


def test_a_program_that_goes_in_turns_shows_the_textbooks_gap():
    assert fit_gap(logs("pairwise_all_to_all")).gap == pytest.approx(3e-6, rel=1e-6)


@pytest.mark.parametrize("cards", [1, 2, 4])
def test_between_nodes_a_card_carries_the_messages_of_its_ranks(cards):
    machine = Machine(nvlink(), card(bandwidth=25e9, gap=0.3e-6), 4, cards_per_node=cards)
    samples = logs(groups=(8, 16, 32), nodes=4, machine=machine)
    assert fit_gap(samples, nics=cards).gap == pytest.approx(0.3e-6, rel=1e-3)
    with pytest.raises(UsageError, match="give nics, the cards of a node"):
        fit_gap(samples)


@pytest.mark.parametrize(
    ("samples", "why"),
    [
        (data.samples("v100_n1_p4", "v100_n2_p8", "v100_n4_p16"), "in rings and trees every step waits for an arrival"),
        (logs(groups=(4, 8)), "measured on 4 and 8 ranks only"),
        (logs("bruck_all_to_all"), "do not tell the gap from 0"),
        (logs() + [{**row, "nodes": 2} for row in logs()], "so they measure two different wires"),
        ([{**row, "time": row["time"] * (9 if row["ranks"] == 8 else 1)} for row in logs()], "changed its algorithm"),
        ([{"size": 8}], "samples without a column collective, time, ranks"),
    ],
)
def test_what_does_not_hold_the_gap_is_refused_with_the_reason(samples, why):
    with pytest.raises(UsageError, match=why):
        fit_gap(samples)


# ---- the gap as an input of fits


def test_a_fitted_link_takes_the_gap_that_is_given_no_longer_than_its_alpha():
    sizes, times = np.array([8.0, 1e3, 1e6]), 2e-6 + np.array([8.0, 1e3, 1e6]) / 1e9
    assert fit_line(sizes, times).is_textbook
    assert fit_line(sizes, times, gap=0.3e-6).gap == 0.3e-6
    assert fit_line(sizes, times, gap=1.0).is_textbook
    assert {link.gap for link in fit_lines(sizes, times, count=1, gap=0.3e-6)} == {0.3e-6}
    with pytest.raises(UsageError, match="fit_line got gap=-1"):
        fit_line(sizes, times, gap=-1)


def test_a_fitted_machine_simulates_with_the_gap_that_is_given():
    samples = data.samples("v100_n2_p8", "v100_n4_p16")
    times = {}
    for gap in (None, 0.3e-6, 2e-6):
        model = theory.fit_machine(samples, 1, gap).model
        times[gap] = float(model.time(_direct, 1024, 8, 2)[0])
        assert model.gap == gap
    assert times[0.3e-6] < times[2e-6] and times[None] <= times[0.3e-6]


def _direct(tensor, dist):
    blocks = list(tensor.tensor_split(dist.get_world_size()))
    direct_all_to_all(blocks, blocks, dist)
