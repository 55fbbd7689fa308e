"""Which all-reduces gain from slices: four are in the table, and on equal links no other would be first."""

import pytest
from helpers.slicing import in_slices

from ringtree import Link, Machine, Sketch, simulate
from ringtree.theory import card, cost_of, find, nvlink, race

LINK = card()
LINKS = {"gap": LINK, "textbook": Link.of(5e-6, bandwidth=50e9)}
# Without nodes, without chunks, and not in slices already; Rabenseifner's is the one that sliced_halving cuts.
OTHERS = ("mst_all_reduce", "recursive_doubling_all_reduce", "one_shot_all_reduce", "two_shot_all_reduce")


@pytest.mark.parametrize("name", ["ring", "bruck"])
@pytest.mark.parametrize("slices", [2, 4])
def test_a_program_in_slices_is_the_one_of_the_table(name, slices):
    """So that what is found of the others is found by the same rule."""
    run = simulate(in_slices(find(f"{name}_all_reduce").program, slices), [Sketch(1 << 18)] * 8, LINK, trace=False)
    assert run.makespan == pytest.approx(cost_of(f"sliced_{name}_all_reduce", 8, 1 << 20, LINK, slices=slices).time, rel=1e-9)


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("size", [1 << 14, 1 << 20, 1 << 24])
def test_on_equal_links_no_other_all_reduce_is_first_with_slices(link, size):
    least = race("all_reduce", 8, [size], LINKS[link]).first(size).time[0]
    for name in OTHERS:
        for slices in (2, 4):
            run = simulate(in_slices(find(name).program, slices), [Sketch(size // 4)] * 8, LINKS[link], trace=False)
            assert run.makespan > 0.99 * least, (name, slices)


def test_on_nodes_with_a_card_for_each_rank_one_level_hides_behind_the_other():
    machine = Machine(nvlink(), LINK, 4, cards_per_node=4)
    for size in (1 << 22, 1 << 26):
        run = race("all_reduce", 8, [size], machine)
        assert run.winner(size) == "sliced_two_level_two_shot_all_reduce"
        assert run.time("sliced_two_level_two_shot_all_reduce", size) < 0.85 * run.time("two_level_two_shot_all_reduce", size)
    cut = simulate(
        in_slices(find("two_level_two_shot_all_reduce").program, 4, ranks_per_node=4), [Sketch(1 << 20)] * 8, machine
    )
    same = cost_of("sliced_two_level_two_shot_all_reduce", 8, 1 << 22, machine, slices=4, ranks_per_node=4)
    assert cut.makespan == pytest.approx(same.time, rel=1e-9)
