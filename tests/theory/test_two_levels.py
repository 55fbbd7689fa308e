"""Programs on two levels: each is in the table because somewhere it alone is first, and what it sends between nodes."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from helpers.programs import inputs_of, program_of

from ringtree import Machine, simulate
from ringtree.theory import card, cost_of, find, nvlink, race

KIB, MIB = 1 << 10, 1 << 20
FIRST = [  # name; ranks and cards of a node, nodes, bytes, and whether a port is the textbook's
    ("two_level_direct_all_gather", 8, 8, 4, 4 * KIB, False),
    ("sliced_two_level_direct_all_gather", 4, 4, 8, 8 * MIB, False),
    ("two_level_bruck_all_gather", 8, 8, 2, MIB, True),
    ("node_leaders_all_gather", 4, 1, 4, 2 * KIB, False),
    ("two_level_direct_reduce_scatter", 8, 8, 4, 4 * KIB, False),
    ("sliced_two_level_direct_reduce_scatter", 4, 4, 8, 8 * MIB, False),
    ("two_level_bruck_reduce_scatter", 8, 8, 2, MIB, True),
    ("node_leaders_reduce_scatter", 4, 1, 4, 2 * KIB, False),
    ("two_level_direct_all_to_all", 8, 8, 4, 16 * KIB, False),
    ("node_leaders_all_to_all", 4, 1, 4, 16 * KIB, False),
    ("two_level_direct_scatter", 4, 4, 4, MIB, False),
    ("node_leader_scatter", 4, 1, 4, 16 * KIB, False),
    ("two_level_direct_gather", 4, 4, 4, MIB, False),
    ("node_leader_gather", 4, 1, 4, 16 * KIB, False),
    ("node_leaders_broadcast", 4, 1, 4, 16 * KIB, False),
    ("two_level_chain_broadcast", 4, 4, 4, 64 * MIB, False),
    ("two_level_scatter_all_gather_broadcast", 2, 2, 8, MIB, False),
    ("node_leaders_reduce", 4, 1, 4, 16 * KIB, False),
    ("two_level_chain_reduce", 4, 4, 4, 64 * MIB, False),
    ("two_level_reduce_scatter_gather_reduce", 2, 2, 8, MIB, False),
]


@pytest.mark.parametrize(("name", "ranks", "cards", "nodes", "nbytes", "textbook"), FIRST, ids=lambda value: str(value))
def test_each_is_somewhere_first_by_more_than_the_band(name, ranks, cards, nodes, nbytes, textbook):
    wires = [replace(wire, gap=None) if textbook else wire for wire in (nvlink(), card())]
    machine = Machine(*wires, ranks_per_node=ranks, cards_per_node=cards)
    assert [*race(find(name).collective, ranks * nodes, [nbytes], machine).first(nbytes).algorithm] == [name]


def between_nodes(name, nodes, ranks, count, **options):
    """The messages that cross, (sender, receiver) to their bytes in elements."""
    row = find(name)
    program = program_of(row, ranks_per_node=ranks, **options)
    trace = simulate(program, inputs_of(nodes * ranks, count, torch.int32), card()).trace
    return Counter({(each.src, each.dst): 0 for each in trace if each.src // ranks != each.dst // ranks}) + Counter([
        (each.src, each.dst) for each in trace for _ in range(each.nbytes // 4) if each.src // ranks != each.dst // ranks
    ])


@pytest.mark.parametrize("nodes", [3, 5])
def test_two_levels_cross_only_between_ranks_at_one_place_with_one_shard_each(nodes):
    size = 4 * nodes
    for collective in ("all_gather", "reduce_scatter"):
        for name in ("two_level_direct", "sliced_two_level_direct"):
            crossed = between_nodes(f"{name}_{collective}", nodes, 4, 6 * size)
            assert crossed == {(src, dst): 6 for src in range(size) for dst in range(src % 4, size, 4) if src != dst}


@pytest.mark.parametrize("nodes", [3, 5, 7])
@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter", "all_to_all"])
def test_leaders_cross_once_between_two_nodes_and_share_out_the_nodes(collective, nodes):
    crossed = between_nodes(f"node_leaders_{collective}", nodes, 3, 2 * 3 * nodes)
    assert {(src // 3, dst // 3) for src, dst in crossed} == {(a, b) for a in range(nodes) for b in range(nodes) if a != b}
    assert len(crossed) == nodes * (nodes - 1) and all(src % 3 == dst % 3 for src, dst in crossed)
    block = 2 * 3 * (3 if collective == "all_to_all" else 1)
    assert {*crossed.values()} == {block}
    by_rank = Counter(src for src, _ in crossed)
    assert max(by_rank.values()) == -(-(nodes - 1) // 3)


def test_in_a_scatter_every_card_of_the_roots_node_sends_its_share():
    crossed = between_nodes("two_level_direct_scatter", 4, 4, 64, root=5)
    assert Counter(src for src, _ in crossed.elements()) == {rank: 3 * 4 for rank in (4, 5, 6, 7)}


def test_a_machine_of_one_node_has_no_levels():
    run = race("all_gather", 8, [MIB], Machine(nvlink(), card(), ranks_per_node=8, cards_per_node=8))
    assert run.left_out["two_level_direct_all_gather"] == "for several nodes only"
    assert cost_of("two_level_direct_all_gather", 8, MIB, nvlink(), ranks_per_node=8) == cost_of(
        "direct_all_gather", 8, MIB, nvlink()
    )
