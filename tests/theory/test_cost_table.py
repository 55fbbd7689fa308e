"""The table of costs: what it says of each program is what the others find, and it fits a phone."""

import pytest

from ringtree import Link, cost_of, lower_bound, seconds_text
from ringtree.algorithms import (
    bruck_all_to_all,
    chain_reduce,
    flat_broadcast,
    flat_reduce,
    mst_reduce,
    mst_scatter,
    pairwise_all_to_all,
    rabenseifner_reduce,
    ring_reduce_scatter,
)
from ringtree.errors import UsageError
from ringtree.theory import cost_table, textbook_time

LINK, N = Link.of(5e-6, bandwidth=25e9), 960_000


def over_a_root(tensor, dist):
    mst_reduce(tensor, dist, root=0)
    mst_scatter(tensor, dist, root=0)


def by_rank_0(tensor, dist):
    flat_reduce(tensor, dist)
    flat_broadcast(tensor, dist)


def rows(text):
    head, *lines = text.splitlines()
    assert head.split()[3:] == ["rounds", "path", "port", "time", "formula"]
    return {line[: head.index(" rounds")].strip(): line[head.index(" rounds") :].split() for line in lines}


@pytest.mark.parametrize("size", [4, 6, 32])
def test_a_line_has_the_counts_and_times_that_the_schedule_and_the_textbook_give(size):
    gamma, programs = (
        1 / 200e9,
        {"MST": mst_reduce, "chain": (chain_reduce, {"chunks": 4}), "halving, tree": rabenseifner_reduce},
    )
    found = [line.split() for line in cost_table(programs, size, N, LINK, gamma=gamma).splitlines()]
    for (name, given), line in zip(programs.items(), found[1:]):
        program, options = given if isinstance(given, tuple) else (given, {})
        exact = cost_of(program, size, N, LINK, gamma=gamma, **options)
        formula = textbook_time(program, size, N, LINK, gamma=gamma, **options)
        said = name.split() + [str(exact.rounds), f"{exact.path_bytes / N:.2f}", f"{exact.busiest_port / N:.2f}"]
        said += seconds_text(exact.time).split() + (["-"] if formula is None else seconds_text(formula).split())
        assert line == said
    bound = lower_bound("reduce", size)
    assert found[-1] == ["at", "least", str(bound.rounds), f"{bound.moved:.2f}", f"{bound.moved:.2f}"]


def test_a_program_of_ones_own_has_no_formula_and_stands_beside_ours():
    found = rows(cost_table({"ring": ring_reduce_scatter, "over a root": over_a_root}, 64, 3_840_000, LINK))
    assert found["over a root"][:3] == ["12", "6.98", "6.00"] and found["over a root"][-1] == "-"
    assert found["ring"][:3] == ["63", "0.98", "0.98"] and found["ring"][3:5] == found["ring"][5:]
    assert found["at least"] == ["6", "0.98", "0.98"]
    assert "at least" not in cost_table({"over a root": over_a_root}, 8, N, LINK)


def test_an_all_to_all_and_bytes_of_its_blocks():
    found = rows(cost_table({"pairwise": pairwise_all_to_all, "Bruck": bruck_all_to_all}, 6, N, LINK))
    assert found["pairwise"][:3] == ["5", "0.83", "0.83"] and found["Bruck"][:3] == ["3", "1.17", "1.17"]


def test_a_line_fits_a_phone():
    for size in (4, 64):
        lines = cost_table({"two steps": mst_reduce, "by rank 0": by_rank_0}, size, 2**30, LINK).splitlines()
        assert max(map(len, lines)) <= 44
    assert lines[2].split()[3:6] == ["126", "126.0", "63.00"]


def test_a_name_is_as_good_as_its_program():
    by_name = cost_table({"pairwise": "pairwise_all_to_all", "Bruck": ("bruck_all_to_all", {})}, 6, N, LINK)
    assert by_name == cost_table({"pairwise": pairwise_all_to_all, "Bruck": bruck_all_to_all}, 6, N, LINK)
    with pytest.raises(UsageError, match="'ring' is not one of our algorithms"):
        cost_table({"ring": "ring"}, 6, N, LINK)
