"""The α-β model."""

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringtree.cost import Link, Machine
from ringtree.errors import UsageError
from ringtree.units import binary_text, bytes_text, seconds_text

seconds = st.floats(1e-9, 1.0)
bandwidths = st.floats(1e3, 1e13)


def test_the_worked_numbers_of_an_h100():
    link = Link.of(10e-6, bandwidth=900e9)
    assert 1024 * link.beta == pytest.approx(1.1378e-9, rel=1e-4)
    assert link.alpha / (1024 * link.beta) == pytest.approx(8789, abs=1)
    assert 1e9 * link.beta / link.alpha == pytest.approx(111, abs=0.2)
    assert link.half_size == pytest.approx(9e6)
    assert Link.of(10e-6, bandwidth=450e9).half_size == pytest.approx(4.5e6)


@given(seconds, bandwidths)
def test_a_message_of_half_size_takes_two_alpha_and_reaches_half_the_bandwidth(alpha, bandwidth):
    link = Link.of(alpha, bandwidth=bandwidth)
    time = link.time(link.half_size)
    assert time == pytest.approx(2 * alpha)
    assert link.half_size / time == pytest.approx(bandwidth / 2)


@given(seconds, bandwidths)
def test_bandwidth_comes_back(alpha, bandwidth):
    assert Link.of(alpha, bandwidth=bandwidth).bandwidth == pytest.approx(bandwidth)


def test_an_empty_message_costs_alpha():
    assert Link(3e-6, 1e-9).time(0) == 3e-6


def test_times_of_an_array():
    assert Link(1.0, 0.5).time(np.array([0, 2, 4])).tolist() == [1.0, 2.0, 3.0]


def test_a_link_without_beta_has_no_end_of_bandwidth():
    link = Link(1e-6, 0)
    assert link.bandwidth == math.inf and link.half_size == math.inf
    assert Link.of(1e-6, bandwidth=math.inf) == link
    assert str(link) == "α 1 µs, any bandwidth"


def test_a_link_is_two_numbers_that_cannot_change():
    link = Link(1e-6, 1e-9)
    assert link == Link(1e-6, 1e-9) and hash(link) == hash(Link(1e-6, 1e-9))
    with pytest.raises(AttributeError):
        link.alpha = 2
    assert repr(link) == "Link(alpha=1e-06, beta=1e-09)"


@pytest.mark.parametrize("bad", [-1, math.nan, math.inf, "1e-6", None, True])
def test_alpha_and_beta_are_finite_and_not_negative(bad):
    with pytest.raises(UsageError, match="alpha"):
        Link(bad, 1e-9)
    with pytest.raises(UsageError, match="beta"):
        Link(1e-6, bad)


@pytest.mark.parametrize("bad", [0, -1, math.nan, "450e9", None])
def test_a_bandwidth_is_greater_than_zero(bad):
    with pytest.raises(UsageError, match="bandwidth"):
        Link.of(1e-6, bandwidth=bad)


@pytest.mark.parametrize("bad", [-1, np.array([1, -1]), math.nan])
def test_a_message_has_no_negative_size(bad):
    with pytest.raises(UsageError, match="0 bytes or more"):
        Link(1e-6, 1e-9).time(bad)


@pytest.mark.parametrize("bad", ["8", None, [8, 16]])
def test_a_size_is_a_number_or_an_array(bad):
    with pytest.raises(UsageError, match=re.escape(f"a Link got {bad!r} bytes: give a number, or a NumPy array")):
        Link(1e-6, 1e-9).time(bad)


@pytest.mark.parametrize(
    "value, text",
    [
        (1.1378e-9, "1.1 ns"),
        (0.0011111, "1.1 ms"),
        (10e-6, "10 µs"),
        (0, "0 ns"),
        (2, "2 s"),
        (999.6e-6, "1 ms"),
        (99.94e-6, "99.9 µs"),
        (123.4e-6, "123 µs"),
        (3e-10, "0.3 ns"),
        (4000, "4000 s"),
    ],
)
def test_seconds_in_words(value, text):
    assert seconds_text(value) == text


def test_bytes_in_words_are_powers_of_ten_or_of_two():
    assert [bytes_text(n) for n in (1, 1000, 1024, 9e6, 4.5e6, 450e9)] == ["1 B", "1 KB", "1 KB", "9 MB", "4.5 MB", "450 GB"]
    assert [binary_text(n) for n in (512, 1024, 2**20, 3 * 2**19, 2**26)] == ["512 B", "1 KiB", "1 MiB", "1.5 MiB", "64 MiB"]


@pytest.mark.parametrize(
    "options, said",
    [
        ({"cards_per_node": 0, "ranks_per_node": 4}, "Machine got cards_per_node=0: give a whole number, 1 or more"),
        ({"cards_per_node": 2}, "Machine got cards_per_node and no ranks_per_node"),
        ({"ranks_per_node": True}, "Machine got ranks_per_node=True"),
    ],
)
def test_a_machine_that_cannot_be_is_refused(options, said):
    with pytest.raises(UsageError, match=said):
        Machine(Link(1.0, 0.0), **options)


def test_the_card_of_a_rank():
    machine = Machine(Link(1.0, 0.0), ranks_per_node=8, cards_per_node=4)
    assert [machine.card(rank) for rank in (0, 1, 2, 7, 8, 15)] == [(0, 0), (0, 0), (0, 1), (0, 3), (1, 0), (1, 3)]
    assert Machine(Link(1.0, 0.0), ranks_per_node=8).card(9) == (1, 1)


def test_the_error_of_a_fit_goes_with_the_link_and_makes_no_other_link_of_it():
    fitted = Link(1.0, 0.1, error=0.05)
    assert fitted == Link(1.0, 0.1) and repr(fitted) == repr(Link(1.0, 0.1))
    assert Machine(fitted).error == 0.05 and Machine(Link(1.0, 0.1)).error is None
    assert Machine(fitted, Link(1.0, 0.1, error=0.2), 2).error == 0.2
    for wrong in (-0.1, math.inf, math.nan, "5 %"):
        with pytest.raises(UsageError, match="Link got error="):
            Link(1.0, 0.1, error=wrong)
