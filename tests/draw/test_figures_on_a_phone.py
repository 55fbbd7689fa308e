"""Every kind of drawing on a phone and on a wide page: whole, with letters that can be read, and the one that fits."""

import pytest
import torch
from helpers.browser import find_chromium, launched, opened
from helpers.drawn import OVERLAPPING, UNREADABLE
from helpers.pictures import all_pictures

from ringtree import Link, Sketch, compute, draw, simulate
from ringtree.algorithms import rabenseifner_all_reduce, ring_all_gather, ring_all_reduce
from ringtree.trace import Message, Trace

pytestmark = pytest.mark.skipif(not find_chromium(), reason="no Chromium found on this machine")

LINK = Link(10e-6, 1e-9)
LABEL = "emulated link: α 20 ms, 100 MB/s, 4 ranks"
ORDER = list(range(4))


def beside(dist):
    work = dist.all_reduce(torch.ones(4), async_op=True)
    compute(30e-6, "backward")
    work.wait()


def more_pictures():
    run = simulate(ring_all_reduce, [Sketch(1_000_000)] * 4, LINK).trace
    overlapped = simulate(beside, [()] * 4, LINK).trace
    overlapped.label = LABEL
    devices = [f"GPU{each}" for each in range(8)] + [f"NIC{each}" for each in range(9)]
    codes = ["X", "NV18", "NODE", "SYS", "PIX", *["NODE"] * 12]
    nodes = simulate(rabenseifner_all_reduce, [Sketch(8192)] * 32, LINK).trace
    ways = {"recursive doubling": lambda n: 1e-6 + n * 1e-9, "ring": lambda n: 2e-5 + n * 1e-10}
    ping_pong = Trace([Message(0, 1, 8, 0, 1), Message(1, 0, 8, 1, 2)], size=2)
    full = [[4000] * 4] * 4
    whole = [[10 * rank + place for place in ORDER] for rank in ORDER]
    return {
        "timeline": draw.timeline(run, title="Ring all-reduce, 4 ranks, a title that is too long for one line of a phone"),
        "timelines": draw.timeline({"wait after each layer": overlapped, "one wait at the end": overlapped}),
        "long names": draw.compare([("16 × GH200 of 4 nodes", 20, 5)], ("one", "two"), "%", title="More than twenty letters"),
        "many ranks": draw.timeline(simulate(ring_all_gather, [Sketch(24)] * 24, LINK, trace=True).trace),
        "traffic": draw.traffic(run, title="Ring"),
        "traffic of 8": draw.traffic(simulate(ring_all_reduce, [Sketch(15_000)] * 8, LINK).trace, ranks_per_node=4),
        "traffic of 32": draw.traffic(nodes, ranks_per_node=8),
        "nodes": draw.ranks_on_nodes(2, 4),
        "crowded nodes": draw.ranks_on_nodes(4, 8),
        "node": draw.node_links(),
        "matrix": draw.topology_matrix(devices, {gpu: codes for gpu in devices[:8]}),
        "links": draw.link_speeds({"PCIe 5.0 × 16": 63e9, "NVLink 4, H100": 450e9, "InfiniBand NDR": 50e9}),
        "memory": draw.model_memory(
            {"7 B": {"parameters, bfloat16": 14e9, "gradients": 28e9, "optimizer": 84e9}}, 80e9, "H100"
        ),
        "curves": draw.curves(ways, label=LABEL, title="Live"),
        "all-to-all": draw.before_after(whole, [list(each) for each in zip(*whole)], "block j to place i", by="all_to_all"),
        "eight": draw.before_after([[rank] for rank in range(8)], [list(range(8))] * 8, by="all_gather"),
        "ping-pong": draw.before_after([7, 0], [8, 8], "Ping-pong: 7 goes to rank 1, and comes back plus one", by=ping_pong),
        "three names": draw.holdings([("before", [1, 2]), ("reduced", [3, "?"], "reduce"), ("broadcast", [3, 3], "broadcast")]),
        "two steps": draw.holdings([
            ("before", [[1000] * 4] * 4),
            ("reduced", full, "reduce_scatter"),
            ("gathered", full, "all_gather"),
        ]),
    }


@pytest.fixture(scope="module")
def page_of_all(tmp_path_factory):
    file = tmp_path_factory.mktemp("figures") / "all.html"
    figures = [picture._repr_html_() for picture in {**all_pictures(), **more_pictures()}.values()]
    file.write_text(
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>figures</title>'
        '<meta name="viewport" content="width=device-width">'
        f'<body style="margin: 17px"><main>{"".join(figures)}</main>',
        encoding="utf-8",
    )
    return file


@pytest.fixture(scope="module")
def browser():
    with launched() as browser:
        yield browser


@pytest.mark.parametrize("width, least", [(360, 8.5), (390, 8.5), (600, 8.5), (1400, 10.9)])
def test_every_drawing_is_whole_and_can_be_read(browser, page_of_all, width, least):
    with opened(browser, page_of_all.as_uri(), width=width) as (page, problems):
        assert page.evaluate(UNREADABLE, least) == []
        assert page.evaluate(OVERLAPPING) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert problems == []


@pytest.mark.parametrize("width, shown", [(390, "ringtree-narrow"), (1400, "ringtree-wide")])
def test_of_the_two_drawings_one_is_seen(browser, page_of_all, width, shown):
    seen = "[...document.querySelectorAll('figure')].map(f => [...f.querySelectorAll('svg')].filter(e => e.checkVisibility()))"
    with opened(browser, page_of_all.as_uri(), width=width) as (page, _):
        assert page.evaluate(f"{seen}.every(each => each.length === 1)")
        assert set(page.evaluate(f"{seen}.map(([each]) => each.getAttribute('class'))")) == {shown}


# Of every word that is written in a rank's colour: its contrast with the page, as WCAG 2 defines it.
COLOURED_WORDS = """
([paper, ink, ranks]) => {
  document.body.style.background = paper; document.body.style.color = ink;
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const luminance = colour => {
    canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    const shown = [...canvas.getImageData(0, 0, 1, 1).data].map(v => v / 255);
    const [r, g, b] = shown.map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const words = [...document.querySelectorAll("figure text")].filter(e => ranks.some(c => e.getAttribute("style").includes(c)));
  return words.filter(e => e.checkVisibility()).map(e => {
    const [low, high] = [getComputedStyle(e).fill, paper].map(luminance).sort((a, b) => a - b);
    return [(high + .05) / (low + .05), e.textContent];
  });
}
"""


@pytest.mark.parametrize("paper, ink", [("#fdfcf9", "#1c2230"), ("#14171d", "#e9e7e1")])
def test_words_in_the_colour_of_a_rank_stand_out_on_light_and_on_dark(browser, page_of_all, paper, ink):
    with opened(browser, page_of_all.as_uri(), width=390) as (page, _):
        found = page.evaluate(COLOURED_WORDS, [paper, ink, list(draw.RANK_COLOURS)])
    assert len(found) > 40
    assert [each for each in found if each[0] < 4.5] == []


# Of every box of a picture of holdings: what is written in it and comes closer than two pixels to its sides.
TIGHT = """
() => [...document.querySelectorAll("svg")].filter(e => e.checkVisibility()).flatMap(svg => {
  const boxes = [...svg.querySelectorAll("path")].map(e => e.getBoundingClientRect())
    .filter(b => b.width > 8 && b.width < 60 && b.height > 15 && b.height < 45);
  return [...svg.querySelectorAll("text")].filter(text => {
    const words = text.getBoundingClientRect(), x = words.left + words.width / 2, y = words.top + words.height / 2;
    return boxes.some(b => b.left < x && x < b.right && b.top < y && y < b.bottom && words.width > b.width - 4);
  }).map(text => text.textContent);
})
"""


def test_numbers_stand_free_in_their_boxes(browser, tmp_path):
    files = []
    for digits in (1, 3, 4):
        first = [[10 ** (digits - 1)] * 4 for _ in ORDER]
        last = [[4 * 10 ** (digits - 1)] * 4] * 4
        rows = [("before", first), ("reduced", last, "reduce_scatter"), ("gathered", last, "all_gather")]
        picture = draw.holdings(rows, "Two steps")._repr_html_()
        files.append(tmp_path / f"{digits}.html")
        files[-1].write_text(f'<!doctype html><meta name="viewport" content="width=device-width"><main>{picture}</main>')
    for file in files:
        for width in (390, 1400):
            with opened(browser, file.as_uri(), width=width) as (page, _):
                assert page.evaluate(TIGHT) == []
                shown = page.evaluate("[...document.querySelectorAll('svg')].find(e => e.checkVisibility()).textContent")
                assert all(word in shown for word in ("before", "reduced", "gathered", "rank 3"))
