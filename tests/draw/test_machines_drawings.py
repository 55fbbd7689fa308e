"""The drawings of machines say what they are given: every rank, every code, every number."""

import re

import pytest

from ringtree import draw
from ringtree.errors import UsageError


def texts(picture):
    return re.findall(r"<text[^>]*>([^<]*)</text>", picture.svg)


def test_every_rank_is_drawn_once_and_local_ranks_start_again_on_each_node():
    shown = texts(draw.ranks_on_nodes(2, 4))
    assert {str(rank) for rank in range(8)} <= set(shown)
    assert [shown.count(f"cuda:{local}") for local in range(4)] == [2, 2, 2, 2]
    assert "the world: all 8 ranks" in shown


def test_one_node_has_no_group_across_nodes():
    assert not any("each node" in text for text in texts(draw.ranks_on_nodes(1, 8)))


@pytest.mark.parametrize("nodes, per_node", [(0, 4), (5, 4), (2, 0), (2, 9)])
def test_too_many_nodes_or_ranks_are_refused_with_what_was_given(nodes, per_node):
    with pytest.raises(UsageError, match=f"{nodes} nodes × {per_node} ranks"):
        draw.ranks_on_nodes(nodes, per_node)


def test_a_node_names_its_eight_gpus_and_the_four_paths():
    shown = texts(draw.node_links())
    assert [f"GPU{index}" for index in range(8)] == [text for text in shown if text.startswith("GPU")]
    assert {"NV18", "PIX", "NODE", "SYS", "NVSwitch", "CPU 0", "CPU 1"} <= set(shown)


def test_a_matrix_shows_every_code():
    shown = texts(draw.topology_matrix(["GPU0", "GPU1"], {"GPU0": ["X", "NV4"], "GPU1": ["NV4", "X"]}))
    assert shown.count("NV4") == 2 and shown.count("X") == 2


def test_a_matrix_with_a_short_row_or_an_unknown_code_is_refused():
    with pytest.raises(UsageError, match="row GPU0 has 1 codes for 2 columns"):
        draw.topology_matrix(["GPU0", "GPU1"], {"GPU0": ["X"]})
    with pytest.raises(UsageError, match="'ABC' in row GPU0"):
        draw.topology_matrix(["GPU0"], {"GPU0": ["ABC"]})


def test_a_link_is_labelled_with_one_direction():
    assert "450 GB/s each way" in texts(draw.link_speeds({"a": 450e9, "b": 50e9}))


def test_memory_bars_are_labelled_with_their_sum_and_the_capacity():
    shown = texts(draw.model_memory({"7 B": {"parameters": 14e9, "optimizer": 98e9}}, 80e9, "H100"))
    assert "112 GB" in shown and "one H100: 80 GB" in shown


@pytest.mark.parametrize(
    "picture",
    [
        draw.ranks_on_nodes,
        draw.node_links,
        lambda: draw.link_speeds({"a": 1e9}),
        lambda: draw.model_memory({"m": {"p": 1e9}}, 8e10),
    ],
)
def test_a_drawing_is_the_same_every_time_and_has_one_line_of_text(picture):
    first, second = picture(), picture()
    assert first.svg == second.svg and repr(first) == repr(second)
    assert repr(first).startswith("Figure: ") and "\n" not in repr(first)
