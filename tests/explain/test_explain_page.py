"""The page of `ringtree.explain` as a reader uses it: its curves, its sliders, its numbers, on a desktop and on a phone."""

import json
import re
from contextlib import ExitStack

import numpy as np
import pandas as pd
import pytest
from helpers.browser import find_chromium, launched
from helpers.browser import opened as opened_page

from ringtree.explain import explain
from ringtree.explain.verdicts import short
from ringtree.theory.model import COLLECTIVES, Protocol, closed_form

pytestmark = pytest.mark.skipif(not find_chromium(), reason="no Chromium found on this machine")

V100 = ["v100_n1_p4", "v100_n2_p8", "v100_n4_p16", "v100_n8_p32", "v100_n16_p64"]
ALONE = ["v100_n1_p4"]
THEMES = {"light": "rgb(253, 252, 249)", "dark": "rgb(20, 23, 29)"}


def several_collectives():
    """A table of an all-gather and of an all-reduce, of a machine that there is not."""
    sizes = 2 ** np.arange(10, 24)
    parts = [
        pd.DataFrame({"collective": what, "ranks": 8 * nodes, "size": sizes, "time": 2e-5 * nodes + sizes / 1e10})
        for what in ("all_gather", "all_reduce")
        for nodes in (2, 4)
    ]
    return [parts[i] for i in (0, 1, 2, 3)], [2, 4, 2, 4]


@pytest.fixture(scope="module")
def reports():
    tables, nodes = several_collectives()
    return {
        "v100": explain(*V100, nics=2),
        "alone": explain(*ALONE),
        "both": explain(*tables, nodes=nodes),
        "slow": explain("gh200_n2_p8"),
    }


@pytest.fixture(scope="module")
def folder(reports, tmp_path_factory):
    made = tmp_path_factory.mktemp("pages")
    for name, report in reports.items():
        (made / f"{name}.html").write_text(report.page(), encoding="utf-8")
    return made


@pytest.fixture(scope="module")
def browser():
    with launched() as browser:
        yield browser


@pytest.fixture
def opened(browser, folder):
    found = []
    with ExitStack() as still_open:

        def open_page(name="v100", width=1400, theme="light"):
            shown = opened_page(browser, (folder / f"{name}.html").as_uri(), width=width, color_scheme=theme)
            page, problems = still_open.enter_context(shown)
            found.append(problems)
            return page

        yield open_page
    assert not any(found), found


def slide(page, name, to, fit=0):
    page.evaluate(
        "([fit, name, to]) => { const slider = document.querySelector(`#${name}-${fit}`); slider.value = to;"
        " slider.dispatchEvent(new Event('input')); }",
        [fit, name, to],
    )


def place(page, name, word, fit=0):
    """Move a slider until it says this."""
    for to in range(int(page.get_attribute(f"#{name}-{fit}", "max")) + 1):
        slide(page, name, to, fit)
        if page.get_attribute(f"#{name}-{fit}", "aria-valuetext").replace("\u00a0", " ") == word:
            return
    raise AssertionError(f"no place of the slider {name} says {word}")


# ---- the numbers


def test_the_closed_form_in_the_page_is_that_of_the_model_at_many_points(opened, reports):
    page, random = opened(), np.random.default_rng(7)
    fit = {name: {"laps": row["laps"], "rooted": row["rooted"]} for name, row in laps().items()}
    cases = []
    for _ in range(2000):
        collective = COLLECTIVES[random.integers(len(COLLECTIVES))]
        nodes = 1 if random.random() < 0.3 else int(2 ** random.uniform(1, 10))
        cards = int(random.integers(1, 73)) if nodes > 1 else int(random.integers(2, 73))
        ranks = 2 if collective == "send_recv" else nodes * cards
        nodes = min(nodes, 2) if collective == "send_recv" else nodes
        algorithm = "tree" if collective == "all_reduce" and random.random() < 0.5 else "ring"
        protocol = np.exp(random.normal(np.log([1e-5, 1e-6, 1e-6, 5e-6, 1e11, 2e10, 1.0]), 1.0)).tolist()
        cases.append((collective, algorithm, protocol, float(2 ** random.uniform(0, 33)), ranks, nodes))
    mine = [float(closed_form(what, way, Protocol(*protocol), n, p, nodes)) for what, way, protocol, n, p, nodes in cases]
    theirs = page.evaluate(
        "([fits, cases]) => cases.map(([what, way, protocol, n, p, nodes]) =>"
        " explained.closedForm(fits[what], way, protocol, n, p, nodes))",
        [fit, cases],
    )
    assert theirs == pytest.approx(mine, rel=1e-9)


def laps():
    from ringtree.collectives import find

    return {name: {"laps": (row := find(name, send_recv=True)).laps, "rooted": row.root is not None} for name in COLLECTIVES}


def test_the_fitted_time_and_its_interval_in_the_page_are_the_models(opened, reports):
    page, machine = opened(), reports["v100"].fits[0].machine
    worlds = [(ranks, nodes) for nodes in (1, 2, 3, 5, 16, 32, 64) for ranks in (nodes * 2, nodes * 4, nodes * 8)]
    cases = [(2.0**power, *world) for world in worlds for power in range(2, 31, 4)]
    theirs = page.evaluate(
        "cases => { const fit = explained.numbers.fits[0];"
        " return cases.map(c => [explained.time(fit, ...c), ...explained.interval(fit, ...c)]); }",
        cases,
    )
    for (n, p, nodes), (time, low, high) in zip(cases, theirs):
        assert time == pytest.approx(machine.model.time("all_reduce", n, p, nodes)[0], rel=1e-9)
        assert (low, high) == pytest.approx([each[0] for each in machine.interval("all_reduce", n, p, nodes)], rel=1e-3)


def test_numbers_read_as_in_the_text(opened):
    from ringtree.units import binary_text, bytes_text, seconds_text

    page = opened()
    for name, mine, values in (
        ("seconds", seconds_text, [1e-9, 9.996e-7, 1e-6, 2.345e-5, 9.99e-5, 1e-3, 0.25, 3, 1e-10]),
        ("binary", binary_text, [4, 512, 1023.9, 1024, 1536, 2**20, 3 * 2**30]),
        ("bytes", bytes_text, [0.5, 999.4, 999.9, 1e3, 1.5e6, 2e10, 3e12]),
    ):
        theirs = page.evaluate(f"values => values.map(explained.{name})", values)
        assert [each.replace("\u00a0", " ") for each in theirs] == [mine(value) for value in values]


# ---- what is drawn


def test_the_curves_pass_through_what_they_show(opened, reports):
    """Each measured time is a dot, each time of NCCL's a point of its line, and dots of longer times stand higher."""
    page, sweep = opened(), reports["v100"].sweeps[-1]
    dots = page.evaluate(
        "[...document.querySelectorAll('.curves .dot')].map(e => [+e.getAttribute('cx'), +e.getAttribute('cy')])"
    )
    assert len(dots) == len(sweep.sizes)
    across = np.polyfit(np.log(sweep.sizes), [x for x, _ in dots], 1)
    assert np.polyval(across, np.log(sweep.sizes)) == pytest.approx([x for x, _ in dots], abs=0.1) and across[0] > 0
    up = np.polyfit(np.log(sweep.times), [y for _, y in dots], 1)
    assert np.polyval(up, np.log(sweep.times)) == pytest.approx([y for _, y in dots], abs=0.1) and up[0] < 0
    line = points(page, ".curves path.nccl")
    expected = [choice.seconds for choice in reports["v100"].expectations[sweep.name].choices]
    assert [y for _, y in line] == pytest.approx(np.polyval(up, np.log(expected)).tolist(), abs=0.2)
    fitted = points(page, ".curves path.fitted")
    machine = reports["v100"].fits[0].machine
    sizes = np.exp((np.array([x for x, _ in fitted]) - across[1]) / across[0])
    times = machine.model.time("all_reduce", sizes, 64, 16)
    assert [y for _, y in fitted] == pytest.approx(np.polyval(up, np.log(times)).tolist(), abs=0.5)


def points(page, selector):
    return [tuple(map(float, each)) for each in re.findall(r"[ML]([-\d.]+) ([-\d.]+)", page.get_attribute(selector, "d"))]


def test_residuals_stand_beneath_for_the_fit_and_for_nccl(opened, reports):
    page = opened()
    count = len(reports["v100"].sweeps[-1].sizes)
    assert page.locator(".residuals circle.fitted").count() == count == page.locator(".residuals path.nccl-mark").count()
    above, below = (page.locator(each).bounding_box() for each in (".curves", ".residuals"))
    assert below["y"] > above["y"] + above["height"]


def test_sizes_slower_than_a_longer_message_are_ringed(opened):
    page = opened("slow")
    ringed = page.evaluate("[...document.querySelectorAll('.curves .slow')].map(e => e.getAttribute('cx'))")
    dots = page.evaluate("[...document.querySelectorAll('.curves .dot')].map(e => [e.getAttribute('cx'), e.textContent])")
    names = [text.split(":")[0].replace("\u00a0", " ") for x, text in dots if x in ringed]
    assert names == ["128 KiB", "256 KiB", "512 KiB", "1 MiB"] and page.locator(".legend .slow").is_visible()
    assert "Ringed" in page.get_attribute(".curves", "aria-label")
    assert not opened("alone").locator(".legend .slow").is_visible()


def test_another_world_is_drawn_when_it_is_chosen(opened, reports):
    page = opened()
    first = page.get_attribute(".curves path.fitted", "d")
    page.select_option("select", "0")
    assert page.get_attribute(".curves path.fitted", "d") != first
    assert "4 ranks on 1 node" in page.get_attribute(".curves", "aria-label")


def test_a_machine_that_nccl_has_no_model_of_has_no_line_of_it(opened):
    page = opened("both")
    assert page.locator(".curves").count() == 2 and page.locator("path.nccl").count() == 0
    assert not page.locator(".legend .nccl").first.is_visible()


# ---- the sliders


def test_the_sliders_predict_what_the_model_says(opened, reports):
    page, machine = opened(), reports["v100"].fits[0].machine
    for size, nodes, cards in (("1 MiB", 32, 4), ("4 B", 2, 8), ("32 MiB", 64, 1), ("1 GiB", 1, 4)):
        for name, word in (
            ("size", size),
            ("nodes", f"{nodes} node{'s' * (nodes > 1)}"),
            ("cards", f"{cards} card{'s' * (cards > 1)}"),
        ):
            place(page, name, word)
        n = float(size.split()[0]) * {"B": 1, "MiB": 2**20, "GiB": 2**30}[size.split()[1]]
        expected = machine.model.time("all_reduce", n, nodes * cards, nodes)[0]
        assert float(page.get_attribute(".said", "data-seconds")) == pytest.approx(expected, rel=1e-9)
        assert f"of {size} on {nodes * cards} ranks" in page.inner_text(".said").replace("\u00a0", " ")


def test_the_keyboard_moves_a_slider_and_its_value_is_said(opened):
    page = opened()
    page.focus("#nodes-0")
    before = (
        page.inner_text(".said"),
        page.get_attribute("#nodes-0", "aria-valuetext"),
        page.get_attribute(".forecast path.fitted", "d"),
    )
    page.keyboard.press("ArrowLeft")
    after = (
        page.inner_text(".said"),
        page.get_attribute("#nodes-0", "aria-valuetext"),
        page.get_attribute(".forecast path.fitted", "d"),
    )
    assert before[1] == "32 nodes" and after[1] == "24 nodes" and all(one != other for one, other in zip(before, after))
    assert page.inner_text("output[for=nodes-0]") == "24 nodes"
    assert page.evaluate("document.activeElement.matches(':focus-visible')")
    assert page.evaluate("[...document.querySelectorAll('input, select')].every(e => e.labels.length === 1)")


def test_what_no_log_has_is_said_beside_the_sliders(opened):
    page = opened()
    assert "2 times the nodes" in page.inner_text(".warned")
    place(page, "nodes", "16 nodes")
    assert not page.locator(".warned").is_visible()
    place(page, "cards", "8 cards")
    assert "No log has 8 cards on a node" in page.inner_text(".warned")
    place(page, "size", "1 GiB")
    assert "No log has this size" in page.inner_text(".warned")


def test_one_rank_is_told_so_and_one_node_has_no_network(opened):
    page = opened("alone")
    assert page.is_disabled("#nodes-0") and "1 node" in page.inner_text("output[for=nodes-0]")
    place(page, "cards", "1 card")
    assert "One rank has nobody to talk to" in page.inner_text(".said")


def test_each_collective_has_its_own_drawings(opened):
    page = opened("both")
    assert page.locator("h3").all_inner_texts() == ["all_gather", "all_reduce"] * 2
    first = page.locator(".said").nth(0).inner_text()
    slide(page, "size", 0, fit=1)
    assert page.locator(".said").nth(0).inner_text() == first and "of 1" in page.locator(".said").nth(1).inner_text()


# ---- the page


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", [390, 1400])
def test_it_fits_its_window_and_follows_the_readers_theme(opened, width, theme):
    page = opened(width=width, theme=theme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == THEMES[theme]
    letters = (
        "[...document.querySelectorAll('svg text')].map(e => parseFloat(getComputedStyle(e).fontSize) * e.getScreenCTM().a)"
    )
    assert min(page.evaluate(letters)) >= 10.5
    assert page.evaluate(FAINT) == []
    assert page.evaluate(OUTSIDE) == []
    assert page.evaluate(OVERLAPPING) == []


# Letters and dots that leave their drawing, letters that lie on others, and text too faint to read (WCAG 2).
OUTSIDE = """
[...document.querySelectorAll('svg')].flatMap(svg => {
  const box = svg.getBoundingClientRect();
  return [...svg.querySelectorAll('text, .dot')].filter(e => {
    const b = e.getBoundingClientRect();
    return b.left < box.left - 1 || b.right > box.right + 1 || b.top < box.top - 1 || b.bottom > box.bottom + 1;
  }).map(e => e.outerHTML);
})
"""
OVERLAPPING = """
[...document.querySelectorAll('svg')].flatMap(svg => {
  const found = [...svg.querySelectorAll('text')].map(e => [e.textContent, e.getBoundingClientRect()]);
  const on = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
  return found.flatMap(([one, a], i) => found.slice(i + 1).filter(([, b]) => on(a, b)).map(([other]) => `${one} on ${other}`));
})
"""
FAINT = """
(() => {
  const parse = text => text.match(/[\\d.]+/g).slice(0, 3).map(Number);
  const light = c => { const [r, g, b] = c.map(v => (v /= 255) <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
                       return .2126 * r + .7152 * g + .0722 * b; };
  const ground = e => {
    for (; e; e = e.parentElement) {
      const colour = getComputedStyle(e).backgroundColor;
      if (!colour.endsWith(", 0)")) return parse(colour);
    }
  };
  return [...document.querySelectorAll("p, li, h1, h2, a, td, th, summary, figcaption, label, output, select, svg text")]
    .filter(e => e.textContent.trim() && e.checkVisibility())
    .map(e => { const style = getComputedStyle(e), ink = parse(e instanceof SVGElement ? style.fill : style.color);
      const [low, high] = [light(ink), light(ground(e))].sort((a, b) => a - b);
      return [(high + .05) / (low + .05), e.textContent.slice(0, 30)]; })
    .filter(([ratio]) => ratio < 4.5).slice(0, 5);
})()
"""


def test_it_is_one_file_that_asks_nothing_of_the_network(folder, opened):
    text = (folder / "v100.html").read_text(encoding="utf-8")
    assert not re.search(r"""(?:src|href)=["'](?!#)""", text) and "url(" not in text and "@import" not in text
    assert "fetch(" not in text and "import(" not in text
    page = opened()
    assert page.evaluate("performance.getEntriesByType('resource').length") == 0


def test_what_a_log_is_called_cannot_break_out_of_the_page(browser, tmp_path):
    table = pd.DataFrame({"collective": "all_reduce", "ranks": 8, "size": 2 ** np.arange(3, 12), "time": 1e-5})
    path = tmp_path / "a<!--<script>document.title = 'taken'.csv"
    from ringtree.measure import frame, save

    path = save(frame(table.to_dict("records"), {"devices": ["</script><b>GPU"] * 8, "hosts": 1}), path)
    page_file = tmp_path / "page.html"
    page_file.write_text(explain(str(path)).page(), encoding="utf-8")
    with opened_page(browser, page_file.as_uri()) as (page, problems):
        assert not problems and page.title().startswith("Your cluster") and page.locator("main b").count() == 0
        assert page.locator(".curves .dot").count() == 9


def test_without_scripts_the_words_and_tables_are_there(folder):
    text = (folder / "v100.html").read_text(encoding="utf-8")
    body = text[text.index("<main>") : text.index("</main>")]
    assert body.count("<table>") >= 6 + 5 and "<noscript>" in body
    assert len(re.findall(r"<h2>", body)) == 9 and body.count("<details>") == 5


def test_a_screen_reader_has_each_drawing_in_a_sentence_and_the_prediction_as_it_changes(opened):
    page = opened()
    labels = page.evaluate(
        "[...document.querySelectorAll('svg')].map(e => [e.getAttribute('role'), e.getAttribute('aria-label')])"
    )
    assert len(labels) == 4 and all(role == "img" and len(label) > 40 for role, label in labels)
    assert page.get_attribute(".said", "aria-live") == "polite" and page.get_attribute("html", "lang") == "en"
    assert page.evaluate("[...document.querySelectorAll('h1, h2, h3')].map(e => e.tagName).join(' ')").startswith("H1 H2 H2")


def test_the_numbers_in_the_page_are_whole(folder):
    text = (folder / "v100.html").read_text(encoding="utf-8")
    numbers = json.loads(re.search(r'id="numbers">(.*?)</script>', text, re.DOTALL)[1])
    [fit] = numbers["fits"]
    assert len(fit["sweeps"]) == 5 and len(fit["draws"]) == len(fit["longer"]) == 400
    assert np.shape(fit["draws"])[1:] == np.shape(fit["protocols"]) and len(text) < 400_000


# ---- the gap between messages


def test_the_slider_of_the_gap_names_the_quicker_program_on_both_sides_of_where_it_turns(opened, reports):
    page = opened()
    turned = [(one, each) for found in reports["v100"].verdicts for one in found for each in one.each if each.turns is not None]
    assert turned and page.evaluate("explained.numbers.turned.length") == len(turned)
    for index, (one, each) in enumerate(turned):
        page.select_option(".by-gap select", str(index))
        for place, way in ((0, each.wire), (100, each.textbook)):
            page.evaluate(
                "to => { const slider = document.querySelector('#between-messages'); slider.value = to;"
                " slider.dispatchEvent(new Event('input')); }",
                place,
            )
            said = page.locator(".by-gap .said")
            assert said.get_attribute("data-quicker") == short(one.collective, way)
            assert f"{one.collective} of " in said.inner_text() and "turns at g = " in said.inner_text()
        gaps, first, second = zip(*each.curve)
        for gap, times in zip(gaps, zip(first, second)):
            mine = page.evaluate(
                "([i, gap]) => [0, 1].map(w => explained.atGap(explained.numbers.turned[i], w, gap))", [index, gap]
            )
            assert mine == pytest.approx(times, rel=1e-9)


def test_a_page_whose_verdicts_the_gap_does_not_turn_has_no_slider_for_it(browser, tmp_path):
    (tmp_path / "a.html").write_text(explain("v100_n1_p4", gap=0.9e-3).page(), encoding="utf-8")
    with opened_page(browser, (tmp_path / "a.html").as_uri()) as (page, _):
        assert page.locator(".by-gap").count() == 0 and page.locator("#gap table").count() == 2
