"""The step player's data, words and size; what it does in a browser is in test_player_in_browser."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest
import torch

from ringtree import follow, simulate
from ringtree.algorithms import (
    bruck_all_to_all,
    chain_broadcast,
    mst_all_reduce,
    mst_broadcast,
    mst_reduce,
    pairwise_all_to_all,
    ring_all_reduce,
    ring_reduce_scatter,
    scatter_all_gather_broadcast,
)
from ringtree.cost import Link
from ringtree.draw import player
from ringtree.errors import UsageError
from ringtree.trace import Message, Trace

LINK = Link(10e-6, 1e-9)


def ring(size):
    return follow(ring_all_reduce, [torch.ones(2 * size) for _ in range(size)], LINK)


def broadcast(size):
    return follow(mst_broadcast, [torch.ones(4) for _ in range(size)], LINK)


def data_of(figure):
    return json.loads(re.search(r'<script type="application/json">(.*?)</script>', figure.html, re.DOTALL)[1])


def rows_of(figure):
    body = re.search(r"<tbody>(.*?)</tbody>", figure.html, re.DOTALL)[1]
    return [re.findall(r"<td>(.*?)</td>", row, re.DOTALL) for row in body.split("</tr>")[:-1]]


def test_it_is_one_stable_line_of_text():
    assert repr(player(ring(4))) == "Figure: 4 ranks in a ring exchange 24 messages, step by step."
    assert repr(player(broadcast(6), layout="tree", title="MST broadcast")) == (
        "Figure: MST broadcast: 6 ranks as a tree exchange 5 messages, step by step."
    )
    assert repr(player(ring(4), alt="A ring.")) == "Figure: A ring."


def test_eight_ranks_fit_into_sixty_kilobytes():
    assert len(player(ring(8))._repr_html_().encode()) < 60_000


def test_it_asks_nothing_of_the_network():
    html = player(ring(4)).html
    assert not re.search(r"\b(src|href)\s*=|@import|url\(|fetch\(|import\(", html)
    assert set(re.findall(r"https?://[^\"'<) ]+", html)) == {"http://www.w3.org/2000/svg"}  # a name, not an address


def test_the_html_is_whole():
    class Balanced(HTMLParser):
        empty = {"input", "br", "path"}

        def __init__(self):
            super().__init__()
            self.open = []

        def handle_starttag(self, tag, attrs):
            if tag not in self.empty:
                self.open.append(tag)

        def handle_endtag(self, tag):
            if tag not in self.empty:
                assert self.open.pop() == tag

    parser = Balanced()
    parser.feed(player(ring(4), title="a < b & c").html)
    assert not parser.open


def test_messages_that_start_together_are_one_step():
    steps = data_of(player(ring(4)))["steps"]
    assert [len(step["m"]) for step in steps] == [4] * 6
    chain = follow(chain_broadcast, [torch.ones(16) for _ in range(4)], LINK)
    assert [len(step["m"]) for step in data_of(player(chain, layout="row"))["steps"]] == [1, 2, 3, 3, 3, 3, 3, 3, 2, 1]


def test_starts_that_differ_a_little_are_one_step_too():
    late = Trace([Message(0, 1, 8, 0.0, 1.0), Message(2, 3, 8, 0.02, 1.02), Message(1, 2, 8, 1.05, 2.0)], size=4, label="live")
    assert [len(step["m"]) for step in data_of(player(late, layout="row"))["steps"]] == [2, 1]


def test_a_live_run_can_say_how_close_together_is():
    messages = [Message(0, 1, 8, 0.0, 1.0), Message(2, 3, 8, 0.6, 1.1), Message(1, 2, 8, 1.05, 2.0)]
    live = Trace(messages, size=4, label="live")
    assert [len(step["m"]) for step in data_of(player(live))["steps"]] == [1, 1, 1]
    # However wide, a message that another one led to comes after it.
    assert [len(step["m"]) for step in data_of(player(live, together=9))["steps"]] == [2, 1]


def test_drawing_does_not_load_torch():
    code = "import sys; from ringtree import draw; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_table_says_every_step_in_words():
    rows = rows_of(player(broadcast(6), layout="tree"))
    assert [row[0] for row in rows] == ["before", "1", "2", "3"]
    assert rows[0][2].startswith("rank 0: tensor of 0;\nrank 1: nothing")
    assert rows[2][1:] == ["0 → 2: tensor of 0;\n3 → 5: tensor of 0", "rank 2: tensor of 0;\nrank 5: tensor of 0"]
    last = rows_of(player(ring(4)))[-1]
    assert last[1].startswith("0 → 1: d of all") or "of all" in last[1]
    all_to_all = follow(pairwise_all_to_all, [([torch.zeros(1)] * 2, [torch.ones(1)] * 2) for _ in range(2)], LINK)
    assert rows_of(player(all_to_all))[1][1:] == [
        "0 → 1: b of 0;\n1 → 0: a of 1",
        "rank 0: outputs b = a of 1;\nrank 1: outputs a = b of 0",
    ]


def test_what_is_full_at_first_stands_left_of_what_gets_filled():
    inputs = [([torch.zeros(1) for _ in range(3)], [torch.ones(1) for _ in range(3)]) for _ in range(3)]
    columns = data_of(player(follow(pairwise_all_to_all, inputs, LINK)))["columns"]
    assert [name for name, *_ in columns] == ["inputs", "outputs"]


def test_times_carry_the_label_of_their_trace():
    assert "10 µs, simulated" in data_of(player(broadcast(4), layout="tree"))["steps"][0]["t"]
    live = Trace([Message(0, 1, 8, 0.0, 0.02)], size=2, label="emulated link: α 20 ms")
    assert data_of(player(live))["steps"][0]["t"] == "1 message, 8 B · 0 to 20 ms, emulated link: α 20 ms"


def test_a_trace_alone_shows_bytes():
    trace = simulate(ring_all_reduce, [torch.ones(8) for _ in range(4)], LINK).trace
    figure = player(trace)
    assert data_of(figure)["mode"] == "text"
    assert rows_of(figure)[-1][2].startswith("rank 0: 48 B sent, 48 B received")


def test_a_live_trace_gets_the_chunks_of_the_same_program():
    followed = ring(4)
    live = Trace(
        [Message(m.src, m.dst, m.nbytes, m.start * 500 + m.src * 1e-6, m.end * 500) for m in followed.trace],
        size=4,
        label="live",
    )
    figure = player(live, followed)
    assert [len(step["m"]) for step in data_of(figure)["steps"]] == [4] * 6
    assert [row[1:] for row in rows_of(figure)] == [row[1:] for row in rows_of(player(followed))]
    with pytest.raises(UsageError, match="a follow\\(\\) of another program .* follow the program that was run"):
        player(live, broadcast(4))


@pytest.mark.parametrize("program", [mst_broadcast, mst_reduce, mst_all_reduce])
def test_a_tree_is_found_in_the_run(program):
    trace = simulate(program, [torch.ones(4) for _ in range(6)], LINK).trace
    places = data_of(player(trace, layout="tree"))["places"]
    assert min(places, key=lambda place: place[1]) == places[0]
    wires = data_of(player(trace, layout="tree"))["wires"]
    assert all(places[src][1] != places[dst][1] for src, dst in wires)


def test_a_tree_can_be_given_and_must_be_one():
    trace = simulate(ring_all_reduce, [torch.ones(4) for _ in range(4)], LINK).trace
    places = data_of(player(trace, layout="tree", parents=[None, 0, 0, 1]))["places"]
    assert places[3][1] > places[1][1] == places[2][1] > places[0][1]
    with pytest.raises(UsageError, match="one rank for each of 4 ranks, None for the root alone"):
        player(trace, layout="tree", parents=[None, 0, 0])
    with pytest.raises(UsageError, match="one rank for each of 4 ranks, None for the root alone"):
        player(trace, layout="tree", parents=[None, 0, 0, 9])
    with pytest.raises(UsageError, match="a circle of ranks: give a tree"):
        player(trace, layout="tree", parents=[None, 2, 3, 1])
    star = Trace([Message(0, 1, 8, 0, 1), Message(2, 3, 8, 0, 1)], size=4)
    with pytest.raises(UsageError, match="finds no tree in this run: give parents="):
        player(star, layout="tree")


@pytest.mark.parametrize("size", [2, 3, 8, 16, 32])
@pytest.mark.parametrize("layout", ["ring", "row"])
def test_ranks_lie_inside_the_drawing_and_apart(layout, size):
    trace = Trace([Message(rank, (rank + 1) % size, 8, 0, 1) for rank in range(size)], size=size)
    data = data_of(player(trace, layout=layout))
    radius = data["radius"]
    for rank, (x, y) in enumerate(data["places"]):
        assert radius <= x <= data["width"] - radius and radius <= y <= data["height"] - radius
        for u, v in data["places"][:rank]:
            assert (x - u) ** 2 + (y - v) ** 2 >= (2 * radius) ** 2


def blocks(size):
    return [([torch.zeros(1) for _ in range(size)], [torch.ones(1) for _ in range(size)]) for _ in range(size)]


def test_blocks_that_stop_over_in_a_buffer_are_shown_as_received():
    data = data_of(player(follow(bruck_all_to_all, blocks(4), LINK)))
    assert [(name, len(heads)) for name, heads, _ in data["columns"]] == [("inputs", 4), ("outputs", 4), ("received", 2)]
    first = data["columns"][-1][2]
    came = {(rank, place - first): data["contents"][content][0] for rank, place, content in data["steps"][0]["c"]}
    assert came == {
        (0, 0): "3a",
        (0, 1): "3c",
        (1, 0): "0b",
        (1, 1): "0d",
        (2, 0): "1c",
        (2, 1): "1a",
        (3, 0): "2d",
        (3, 1): "2b",
    }
    assert all(len(held) == 10 for held in data["start"])


@pytest.mark.parametrize(
    "program, inputs",
    [
        (pairwise_all_to_all, blocks(4)),
        (scatter_all_gather_broadcast, [torch.ones(4)] * 4),  # some receive what they have
        (ring_reduce_scatter, [torch.ones(4)] * 4),  # a sum takes in what came
    ],
)
def test_what_comes_to_lie_in_an_argument_needs_no_column_of_its_own(program, inputs):
    data = data_of(player(follow(program, inputs, LINK)))
    assert "received" not in [name for name, *_ in data["columns"]]


def test_what_cannot_be_played_is_refused():
    with pytest.raises(UsageError, match="give one of 'ring', 'row', 'tree'"):
        player(ring(2), layout="star")
    with pytest.raises(UsageError, match="without messages"):
        player(Trace(size=2))
    for other in (ring_all_reduce, simulate(ring_all_reduce, [torch.ones(2)] * 2, LINK)):
        with pytest.raises(
            ValueError, match="give a trace, such as simulate\\(…\\).trace, or what follow\\(program, inputs\\) found"
        ):
            player(other)
    with pytest.raises(UsageError, match="take no time"):
        player(Trace([Message(0, 1, 8, 0, 0)], size=2))
    with pytest.raises(UsageError, match="one line"):
        player(ring(2), alt="two\nlines")


def test_it_can_be_saved_as_a_page_of_its_own(tmp_path):
    player(ring(2)).save(tmp_path / "ring.html")
    assert (tmp_path / "ring.html").read_text(encoding="utf-8").startswith("<!doctype html>")
