"""Fitting α and β."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringtree import data, theory
from ringtree.cost import Link
from ringtree.errors import UsageError

SIZES = 2.0 ** np.arange(27)


@given(st.floats(1e-8, 1e-2), st.floats(1e6, 1e12))
def test_exact_times_give_their_link_back(alpha, bandwidth):
    link = Link.of(alpha, bandwidth=bandwidth)
    # Where one of the two can hardly be seen at any size, rounding decides what is left of it.
    if not 1 < link.half_size < SIZES[-1]:
        return
    found = theory.fit_line(SIZES, link.time(SIZES))
    assert found.alpha == pytest.approx(alpha, rel=1e-6)
    assert found.beta == pytest.approx(link.beta, rel=1e-6)


@given(st.integers(0, 2**32 - 1))
def test_the_fit_beats_every_line_near_it(seed):
    random = np.random.default_rng(seed)
    times = Link(5e-6, 1e-10).time(SIZES) * np.exp(random.normal(0, 0.3, len(SIZES)))
    best = theory.fit_line(SIZES, times)

    def error(alpha, beta):
        return np.sum(((alpha + beta * SIZES) / times - 1) ** 2)

    for a in (0.999, 1, 1.001):
        for b in (0.999, 1, 1.001):
            assert error(best.alpha, best.beta) <= error(best.alpha * a, best.beta * b) + 1e-12


def test_small_and_large_messages_weigh_alike():
    times = Link(10e-6, 1e-9).time(SIZES)
    times[-1] *= 1.05
    disturbed_large = theory.fit_line(SIZES, times)
    assert disturbed_large.alpha == pytest.approx(10e-6, rel=0.01), "5 % of a long message must not bend α"


def test_the_unit_of_time_does_not_matter():
    sizes, times = data.sweep("v100_n2_p8")
    in_seconds, in_microseconds = theory.fit_line(sizes, times), theory.fit_line(sizes, times * 1e6)
    assert in_microseconds.alpha == pytest.approx(in_seconds.alpha * 1e6)
    assert in_microseconds.beta == pytest.approx(in_seconds.beta * 1e6)


def test_the_order_of_the_points_does_not_matter():
    sizes, times = data.sweep("v100_n2_p8")
    order = np.random.default_rng(0).permutation(len(sizes))
    assert theory.fit_line(sizes[order], times[order]).alpha == pytest.approx(theory.fit_line(sizes, times).alpha)
    for one, other in zip(theory.fit_lines(sizes[order], times[order]), theory.fit_lines(sizes, times)):
        assert one.alpha == pytest.approx(other.alpha) and one.beta == pytest.approx(other.beta)


def test_neither_number_is_ever_negative():
    assert theory.fit_line([1, 10, 100], [3, 2, 1]).beta == 0
    assert theory.fit_line([1, 2, 3], [1, 4, 9]).alpha == 0


def test_messages_of_no_bytes_count_too():
    assert theory.fit_line([0, 10], [1.0, 2.0]).alpha == pytest.approx(1.0)


def test_two_protocols_are_found_again():
    quick, full = Link.of(2e-6, bandwidth=1e9), Link.of(20e-6, bandwidth=20e9)
    times = np.minimum(quick.time(SIZES), full.time(SIZES))
    found = theory.fit_lines(SIZES, times, 2)
    assert len(found) == 2
    for line, expected in zip(found, (quick, full)):
        assert line.alpha == pytest.approx(expected.alpha, rel=1e-6)
        assert line.beta == pytest.approx(expected.beta, rel=1e-6)


def test_one_protocol_is_not_made_worse_by_asking_for_two():
    link = Link.of(2e-6, bandwidth=1e9)
    found = theory.fit_lines(SIZES, link.time(SIZES), 2)
    assert np.abs(theory.misses(found, SIZES, link.time(SIZES))).max() < 1e-6


def test_one_of_several_is_the_single_line():
    sizes, times = data.sweep("h200_p8")
    assert theory.fit_lines(sizes, times, 1) == (theory.fit_line(sizes, times),)


@pytest.mark.parametrize("name", data.runs())
def test_more_lines_never_fit_worse_and_come_in_order(name):
    sizes, times = data.sweep(name)
    errors = []
    for count in (1, 2, 3):
        lines = theory.fit_lines(sizes, times, count)
        assert [line.alpha for line in lines] == sorted(line.alpha for line in lines)
        assert [line.beta for line in lines] == sorted((line.beta for line in lines), reverse=True)
        errors.append(np.sum(theory.misses(lines, sizes, times) ** 2))
    assert errors[1] < errors[0]


@pytest.mark.parametrize("name", data.runs())
def test_printed_digits_do_not_hang_on_rounding(name):
    """Times changed in the twelfth digit, as another machine's arithmetic might, give the same fit."""
    sizes, times = data.sweep(name)
    wiggle = 1 + 1e-12 * np.random.default_rng(1).choice([-1, 1], len(times))
    for one, other in zip(theory.fit_lines(sizes, times), theory.fit_lines(sizes, times * wiggle), strict=True):
        assert other.alpha == pytest.approx(one.alpha, rel=1e-9)
        assert other.beta == pytest.approx(one.beta, rel=1e-9)


def test_one_line_misses_real_machines_by_a_sixth_and_the_smaller_of_two_by_a_twentieth():
    def median_misses(count):
        runs = [data.sweep(name) for name, run in data.runs().items() if "GH200" not in run.gpu]
        return np.array([np.median(np.abs(theory.misses(theory.fit_lines(n, t, count), n, t))) for n, t in runs])

    one, two = median_misses(1), median_misses(2)
    assert np.sum(one > 0.2) >= 6, "at least six runs are missed by more than a fifth"
    assert two.max() < 0.13
    assert 0.14 < np.median(one) < 0.18 and 0.04 < np.median(two) < 0.07
    assert np.sum(two < one) == len(one) - 1, "all but the forced ring gain"


def test_prediction_takes_the_fastest_line():
    assert theory.fastest([Link(1, 1), Link(3, 0)], [0, 1, 2, 3]).tolist() == [1, 2, 3, 3]
    assert theory.fastest(Link(1, 1), [0, 1]).tolist() == [1, 2]


def test_misses_are_signed_and_relative():
    assert theory.misses(Link(1, 0), [1, 1], [2, 0.5]).tolist() == [-0.5, 1.0]


@pytest.mark.parametrize("fitting", [theory.fit_line, lambda n, t: theory.fit_lines(n, t, 1)])
@pytest.mark.parametrize(
    "sizes, times, sentence",
    [
        ([1, 2, 3], [1, 2], "given 3 sizes and 2 times"),
        ([], [], "given 0 different sizes: a line needs at least 2"),
        ([8, 8, 8], [1, 2, 3], "given 1 different sizes"),
        ([1, 2], [1, np.nan], "not a finite number"),
        ([1, np.inf], [1, 2], "not a finite number"),
        ([1, 2], [1, 0], "the time at 2 bytes is 0 s"),
        ([1, 2], [1, -1], "must be greater than 0"),
        ([-1, 2], [1, 1], "a size is -1 bytes"),
    ],
)
def test_unusable_points_are_refused_in_one_sentence(fitting, sizes, times, sentence):
    with pytest.raises(UsageError, match=sentence) as error:
        fitting(sizes, times)
    assert "\n" not in str(error.value)


def test_two_lines_need_four_sizes():
    with pytest.raises(UsageError, match="2 lines need at least 4"):
        theory.fit_lines([1, 2, 4], [1, 2, 3], 2)


@pytest.mark.parametrize("count", [0, -1, 1.5, "2", True])
def test_a_count_of_lines_is_a_whole_number(count):
    with pytest.raises(UsageError, match="count"):
        theory.fit_lines(SIZES, SIZES + 1, count)


def test_a_prediction_needs_a_link():
    with pytest.raises(UsageError, match="no link"):
        theory.fastest([], [1])


def test_cross_validation_finds_how_many_lines_there_are():
    one, two = Link.of(2e-6, bandwidth=1e9), Link.of(40e-6, bandwidth=40e9)
    noise = np.exp(np.random.default_rng(5).normal(0, 0.02, len(SIZES)))
    assert len(theory.fit_lines(SIZES, one.time(SIZES) * noise, None)) == 1
    assert len(theory.fit_lines(SIZES, np.minimum(one.time(SIZES), two.time(SIZES)) * noise, None)) == 2


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_cross_validation_needs_no_more_sizes_than_a_line(count):
    assert len(theory.fit_lines(SIZES[:count], Link(2e-6, 1e-9).time(SIZES[:count]), None)) == 1
