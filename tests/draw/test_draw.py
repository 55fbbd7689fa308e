"""Pictures: what stands in the page, and that it can be read there."""

import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from types import SimpleNamespace

import matplotlib
import numpy as np
import pytest
from helpers.pictures import LINK, SWEEP, all_pictures, half_to_twice

from ringtree import draw
from ringtree.draw import style
from ringtree.draw.origins import origins
from ringtree.errors import UsageError
from ringtree.trace import Message, Trace

WHITE, DARK = "#ffffff", "#14181e"


@pytest.fixture(scope="module")
def pictures():
    return all_pictures()


NAMES = ["shares", "model", "times", "machines", "bands", "residuals", "ratios", "compare", "before_after", "holdings"]


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


def contrast(one, other):
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("colour", draw.RANK_COLOURS)
def test_every_rank_is_visible_on_white_and_on_the_dark_page(colour):
    assert contrast(colour, WHITE) >= 3
    assert contrast(colour, DARK) >= 2.95


def test_colours_stay_apart_for_colour_blind_readers():
    # Machado, Oliveira, Fernandes (2009), severity 1.0, on linear RGB; distance in OKLab.
    kinds = {
        "none": np.eye(3),
        "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
        "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
        "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
    }
    rgb = np.array([[int(c[i : i + 2], 16) / 255 for i in (1, 3, 5)] for c in draw.RANK_COLOURS])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    for kind, matrix in kinds.items():
        seen = oklab(np.clip(linear @ np.array(matrix).T, 0, 1))
        apart = np.linalg.norm(seen[:, None] - seen[None], axis=-1) + 9 * np.eye(len(seen))
        assert apart.min() > 0.055, kind
        assert apart[:4, :4].min() > 0.08, f"{kind}: the first four are in every chapter"


def oklab(linear):
    cones = (
        linear
        @ np.array([
            [0.4122214708, 0.5363325363, 0.0514459929],
            [0.2119034982, 0.6806995451, 0.1073969566],
            [0.0883024619, 0.2817188376, 0.6299787005],
        ]).T
    )
    return (
        np.cbrt(cones)
        @ np.array([
            [0.2104542553, 0.7936177850, -0.0040720468],
            [1.9779984951, -2.4285922050, 0.4505937099],
            [0.0259040371, 0.7827717662, -0.8086757660],
        ]).T
    )


def test_colours_come_round_again_after_eight_ranks():
    assert draw.rank_colour(9) == draw.rank_colour(1) == draw.RANK_COLOURS[1]


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_is_one_line_of_text_without_measured_numbers(pictures, name):
    text = repr(pictures[name])
    assert text.startswith("Figure: ") and "\n" not in text
    assert not re.search(r"\d+(\.\d+)? ?(%|µs|ms|GB/s|MB/s)", text)


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_is_a_figure_with_alternative_text(pictures, name):
    html = pictures[name]._repr_html_()
    figure = ElementTree.fromstring(html)  # well formed
    assert figure.tag == "figure" and [each.tag for each in figure] == ["style", "svg", "svg"]
    for svg in figure.findall("svg"):
        assert svg.get("role") == "img" and svg.get("aria-label") == pictures[name].alt


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_takes_the_pages_colours_and_touches_nothing_else(pictures, name):
    for svg in (pictures[name].svg, pictures[name].narrow):
        assert "currentColor" in svg
        assert style.INK not in svg and style.PAPER not in svg
        assert "<style" not in svg and "<?xml" not in svg and "http" not in svg
        assert not re.search(r"fill: #(000000|ffffff)", svg)


@pytest.mark.parametrize("name", NAMES)
def test_text_is_text_of_at_least_eleven_pixels_and_nine_on_a_phone(pictures, name):
    for svg, least in ((pictures[name].svg, 11), (pictures[name].narrow, 9)):
        sizes = [float(size) for size in re.findall(r"font(?:-size)?:[^;\"]*?([\d.]+)px", svg)]
        assert sizes and min(sizes) >= least
        assert "<text" in svg


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_is_drawn_for_a_wide_page_and_for_a_phone(pictures, name):
    wide, small = (float(re.search(r'viewBox="0 0 (\S+)', svg)[1]) for svg in (pictures[name].svg, pictures[name].narrow))
    assert small <= style.NARROW < wide


def test_a_picture_that_fits_a_phone_is_there_once():
    @style.styled
    def dot():
        fig, ax = style.figure(200, 100)
        ax.axis("off")
        ax.plot(1, 1, "o", ms=4)
        return draw.picture(fig, "A dot.")

    assert dot().narrow == "" and dot()._repr_html_().count("<svg") == 1


def test_a_drawing_made_of_another_is_drawn_as_often_as_that():
    widths = []

    @style.styled
    def inner():
        widths.append(style.narrow())

    @style.styled
    def outer():
        inner()
        return draw.picture(style.figure()[0], "Two.")

    outer()
    assert widths == [False, True] and not style.narrow()


def test_many_pictures_on_a_page_share_no_id(pictures):
    drawings = [svg for picture in pictures.values() for svg in (picture.svg, picture.narrow)]
    ids = [found for svg in drawings for found in re.findall(r' id="([^"]+)"', svg)]
    assert ids and len(set(ids)) == len(ids)
    for svg in drawings:
        used = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', svg))
        assert used <= set(re.findall(r' id="([^"]+)"', svg))


def test_the_same_picture_is_the_same_text_every_time(pictures):
    again = all_pictures()
    assert {name: (p.svg, p.narrow) for name, p in again.items()} == {name: (p.svg, p.narrow) for name, p in pictures.items()}


def test_drawing_leaves_the_readers_matplotlib_alone():
    with matplotlib.rc_context({"font.size": 31, "axes.facecolor": "red"}):
        before = dict(matplotlib.rcParams)
        svg = draw.model(LINK).svg
        assert dict(matplotlib.rcParams) == before
    assert svg == draw.model(LINK).svg


def test_alternative_text_is_escaped_and_required():
    @style.styled
    def draw_with(alt):
        fig, ax = style.figure(200, 100)
        ax.plot([1, 2])
        return draw.picture(fig, alt)

    assert 'aria-label="a &lt; b &quot;c&quot;"' in draw_with('a < b "c"').svg
    for bad in ("", "  ", "two\nlines"):
        with pytest.raises(UsageError, match="alt"):
            draw_with(bad)


def test_a_saved_picture_is_an_svg_file(pictures, tmp_path):
    pictures["model"].save(tmp_path / "model.svg")
    text = (tmp_path / "model.svg").read_text(encoding="utf-8")
    assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
    assert "color-mix(" in pictures["model"].svg and not re.search(r"var\(|color-mix\(", text)


def test_before_and_after_show_every_number_and_every_rank():
    picture = draw.before_after([[1, 2], [3, 4], None], [None, [4.5, 6], ["x"]])
    for svg in (picture.svg, picture.narrow):
        texts = re.findall(r">([^<>]+)</text>", svg)
        for expected in ("rank 0", "rank 1", "rank 2", "1", "2", "3", "4", "4.5", "6", "x", "before", "after"):
            assert expected in texts


def test_before_and_after_need_the_same_ranks():
    with pytest.raises(UsageError, match="2 ranks before and 1 after"):
        draw.before_after([[1], [2]], [[3]])
    with pytest.raises(UsageError, match="holdings was given no row"):
        draw.holdings([])


def test_messages_of_no_bytes_have_no_place_on_a_logarithmic_axis():
    svg = draw.times({"m": ([0, 1, 1024], [1e-6, 1e-6, 2e-6])}).svg
    assert "nan" not in svg.lower() and "1 KiB" in svg


@pytest.fixture
def drawn(monkeypatch):
    """Drawing functions give matplotlib's figure of the wide page itself, so that what was drawn can be read."""
    from ringtree.draw import costs

    figures = []
    monkeypatch.setattr(costs, "picture", lambda fig, alt: figures.append(fig) or draw.picture(fig, alt))

    def figure_of(name):
        def call(*args, **options):
            figures.clear()
            getattr(draw, name)(*args, **options)
            return figures[0]

        return call

    return SimpleNamespace(**{name: figure_of(name) for name in ("times", "ratios")})


def test_a_band_reaches_from_the_low_to_the_high_of_its_fit(drawn):
    sizes = np.array([1.0, 2.0**30])
    ax = drawn.times({"measured": (sizes, LINK.time(sizes))}, {"forecast": LINK.time}, bands={"forecast": half_to_twice}).axes[
        0
    ]
    corners = ax.collections[0].get_paths()[0].vertices
    at_the_end = corners[np.isclose(corners[:, 0], 2.0**30), 1]
    assert np.isclose(at_the_end.min(), LINK.time(2.0**30) / 2) and np.isclose(at_the_end.max(), LINK.time(2.0**30) * 2)


def test_a_forecast_far_from_what_was_measured_is_still_in_the_picture(drawn):
    sizes = np.array([1.0, 2.0**30])
    far = {"forecast": lambda n: 100 * LINK.time(n)}
    ax = drawn.times(
        {"measured": (sizes, LINK.time(sizes))}, far, bands={"forecast": lambda n: (LINK.time(n), 300 * LINK.time(n))}
    ).axes[0]
    assert ax.get_ylim()[1] > 300 * LINK.time(2.0**30)


def test_a_band_without_its_fit_is_refused():
    with pytest.raises(UsageError, match="band for 'forcast', which is not one of the fits: give bands for forecast"):
        draw.times({"measured": SWEEP}, {"forecast": LINK.time}, bands={"forcast": half_to_twice})


def test_twice_as_long_and_half_as_long_are_equally_far_from_right(drawn):
    fig = drawn.ratios({"4 ranks": {"one": ([8, 64], [2, 0.5])}, "8 ranks": {"one": ([8, 64], [1, 9])}})
    heights = [float(fig.axes[0].transData.transform((8, ratio))[1]) for ratio in (0.5, 1, 2)]
    assert np.isclose(heights[2] - heights[1], heights[1] - heights[0])
    assert fig.axes[0].get_ylim() == fig.axes[1].get_ylim()
    low, high = fig.axes[0].get_ylim()
    assert high > 9 and np.isclose(low * high, 1)


def test_each_predictor_is_named_once_in_the_last_panel_that_has_it(drawn):
    fig = drawn.ratios({"4 ranks": {"one": ([8], [2]), "two": ([8], [3])}, "8 ranks": {"one": ([8], [1])}})
    assert [[text.get_text() for text in ax.texts] for ax in fig.axes] == [["two"], ["one"]]


def test_ratios_need_something_to_draw():
    for bad in ({}, {"4 ranks": {}}, {"4 ranks": {"one": ([0], [1])}}, {"4 ranks": {"one": ([8], [0])}}):
        with pytest.raises(UsageError, match="at least one panel"):
            draw.ratios(bad)


def test_labels_at_the_right_end_do_not_overlap():
    from ringtree.draw.axes import _spread

    wanted = [100.0, 101.0, 102.0, 200.0, 210.0, 50.0]
    placed = sorted(y + _spread(wanted, 18)[i] for i, y in enumerate(wanted))
    assert min(np.diff(placed)) >= 18 - 1e-9


# -- who gave what to whom


def sharded(p):
    return [[10 * rank + place for place in range(p)] for rank in range(p)]


def test_an_all_gather_gives_every_shard_to_every_rank():
    moved = origins("all_gather", [[1], [2], [3]], [[1, 2, 3]] * 3)
    assert moved.made_of == [[{(0, 0)}, {(1, 0)}, {(2, 0)}]] * 3
    assert moved.gave == [(src, dst) for dst in range(3) for src in range(3)]


def test_a_scatter_gives_from_the_root_alone_and_a_gather_to_it():
    given = [None, [5, 6, 7], None]
    assert origins("scatter", given, [[5], [6], [7]], root=1).gave == [(1, 0), (1, 1), (1, 2)]
    moved = origins("gather", [[5], [6], [7]], given, root=1)
    assert moved.gave == [(0, 1), (1, 1), (2, 1)] and moved.made_of[0] == []


def test_a_sum_is_made_of_the_same_place_of_everyone():
    moved = origins("all_reduce", [[1, 2], [3, 4]], [[4, 6], [4, 6]])
    assert moved.made_of == [[{(0, 0), (1, 0)}, {(0, 1), (1, 1)}]] * 2


def test_reduce_promises_nothing_on_other_ranks():
    moved = origins("reduce", [[1], [2], [3]], [["?"], [6], ["?"]], root=1)
    assert moved.gave == [(0, 1), (1, 1), (2, 1)] and moved.made_of[0] == [None]


def test_a_reduce_scatter_in_place_says_nothing_of_the_other_places():
    before, p = sharded(3), 3
    after = [[sum(column) if place == rank else -1 for place, column in enumerate(zip(*before))] for rank in range(p)]
    moved = origins("reduce_scatter", before, after)
    assert moved.made_of == [
        [{(src, rank) for src in range(p)} if place == rank else None for place in range(p)] for rank in range(p)
    ]
    gathered = [after[rank][rank] for rank in range(p)]
    assert origins("all_gather", after, [gathered] * p).made_of == [[{(src, src)} for src in range(p)]] * p


def test_an_all_to_all_swaps_rank_and_place():
    before = sharded(4)
    moved = origins("all_to_all", before, [list(column) for column in zip(*before)])
    assert moved.made_of == [[{(src, rank)} for src in range(4)] for rank in range(4)]


def test_groups_keep_to_themselves():
    moved = origins("all_reduce", [[1], [2], [3], [4]], [[4], [6], [4], [6]], groups=[[0, 2], [1, 3]])
    assert moved.gave == [(0, 0), (2, 0), (1, 1), (3, 1), (0, 2), (2, 2), (1, 3), (3, 3)]


def test_a_trace_gives_along_its_messages_in_their_order():
    trace = Trace([Message(0, 1, 4, 0, 1), Message(1, 0, 4, 1, 2), Message(0, 1, 4, 2, 3)], size=3)
    moved = origins(trace, [[7], [0], [5]], [[8], [8], [5]])
    assert moved.gave == [(0, 1), (1, 0)]
    assert moved.made_of == [[None], [None], [{(2, 0)}]], "what was computed came from nobody, what stayed is its rank's own"
    assert origins(trace, [[7], [0], [5]], [[7], [7], [5]]).made_of[1] == [{(0, 0)}]


def test_a_picture_cannot_disagree_with_what_was_called():
    with pytest.raises(UsageError, match="rank 1 holds 9 where broadcast puts 5 of rank 0"):
        draw.before_after([[5], [6]], [[5], [9]], by="broadcast")
    with pytest.raises(UsageError, match="given with 1 boxes after the all_gather, which makes 2"):
        draw.before_after([[5], [6]], [[5], [6]], by="all_gather")
    with pytest.raises(UsageError, match="'all_sum' is not a collective"):
        draw.before_after([[5], [6]], [[5], [6]], by="all_sum")
    with pytest.raises(UsageError, match="2 ranks was given a trace of 3"):
        draw.before_after([[5], [6]], [[5], [6]], by=Trace([Message(0, 1, 4, 0, 1)], size=3))


def colours_of(svg, tag):
    return Counter(re.findall(rf"<{tag}[^>]*?stroke: (#[0-9a-f]{{6}})", svg))


@pytest.mark.parametrize("which", ["svg", "narrow"])
def test_an_arrow_in_the_givers_colour_leads_to_each_receiver(which):
    before, after = [[1], [2], [3], [4]], [[1, 2, 3, 4]] * 4
    drawn = getattr(draw.before_after(before, after, by="all_gather"), which)
    plain = getattr(draw.before_after(before, after), which)
    # Of each colour: an arrow is a line and a head. A box has one outline, and one more where its colour says whose it is.
    more = colours_of(drawn, "path") - colours_of(plain, "path")
    assert {more[draw.rank_colour(rank)] for rank in range(4)} == {4 * 2 + 4}


def test_arrows_of_an_all_gather_cross_the_page_and_do_not_run_straight_down():
    svg = draw.before_after([[1], [2]], [[1, 2]] * 2, by="all_gather").svg
    ways = re.findall(r'd="M (\S+) \S+ Q \S+ \S+ (\S+) \S+ "', svg)
    assert len(ways) == 4 and max(abs(float(x0) - float(x1)) for x0, x1 in ways) > 200
