"""The step player as a reader uses it: with mouse and keyboard, light and dark, on a phone and on paper."""

from contextlib import ExitStack

import pytest
import torch
from helpers.browser import find_chromium, launched
from helpers.browser import opened as opened_page

from ringtree.algorithms import mst_broadcast, pairwise_all_to_all, ring_all_reduce
from ringtree.cost import Link
from ringtree.draw import player
from ringtree.simulated.following import follow

pytestmark = pytest.mark.skipif(not find_chromium(), reason="no Chromium found on this machine")

LINK = Link(10e-6, 1e-9)

# What each rank holds as the page shows it: by rank and place, the chunk's name and the ranks in it.
HELD = """
((figure) => { const held = {};
  for (const cell of figure.querySelectorAll(".rt-stage .rt-grid g[data-rank]")) {
    const holder = cell.querySelector("g");
    (held[cell.dataset.rank] ??= [])[cell.dataset.place] = [holder.dataset.chunk, holder.dataset.holds];
  }
  return held; })
"""
STEP = "+document.querySelector('figure').dataset.step"


@pytest.fixture(scope="module")
def browser():
    with launched() as browser:
        yield browser


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("players")
    ring = player(follow(ring_all_reduce, [torch.ones(8) for _ in range(4)], LINK))
    ring8 = player(follow(ring_all_reduce, [torch.ones(8) for _ in range(8)], LINK))
    tree = player(follow(mst_broadcast, [torch.ones(1) for _ in range(6)], LINK), layout="tree", title="MST broadcast")
    parts = [([torch.zeros(1) for _ in range(4)], [torch.ones(1) for _ in range(4)]) for _ in range(4)]
    swap = player(follow(pairwise_all_to_all, parts, LINK))
    for name, figures in {
        "ring": [ring],
        "ring8": [ring8],
        "tree": [tree],
        "swap": [swap],
        "several": [ring, tree, ring],
    }.items():
        (folder / f"{name}.html").write_text(
            '<!doctype html><html lang="en"><meta charset="utf-8"><title>players</title>'
            '<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">'
            f"<main>{''.join(figure._repr_html_() for figure in figures)}</main>",
            encoding="utf-8",
        )
    return folder


@pytest.fixture
def opened(browser, pages):
    found = []
    with ExitStack() as still_open:

        def open_page(name, width=900, theme="light", still=False):
            reader = {"color_scheme": theme, "reduced_motion": "reduce" if still else "no-preference"}
            shown = opened_page(browser, (pages / f"{name}.html").as_uri(), width=width, **reader)
            page, problems = still_open.enter_context(shown)
            found.append(problems)
            return page

        yield open_page
    assert not any(found), found


def held(page, figure=0):
    return page.evaluate(f"{HELD}(document.querySelectorAll('figure')[{figure}])")


def click(page, action, figure=0):
    page.locator("figure").nth(figure).locator(f"[data-do={action}]").click()


def test_a_ring_all_reduce_ends_with_everyone_everywhere(opened):
    page = opened("ring")
    assert held(page) == {str(rank): [[chunk, str(rank)] for chunk in "abcd"] for rank in range(4)}
    click(page, "last")
    assert held(page) == {str(rank): [[chunk, "0 1 2 3"] for chunk in "abcd"] for rank in range(4)}


def test_eight_ranks_end_with_everyone_everywhere(opened):
    page = opened("ring8")
    click(page, "last")
    assert held(page) == {str(rank): [[chunk, "0 1 2 3 4 5 6 7"] for chunk in "abcdefgh"] for rank in range(8)}


def test_a_broadcast_and_an_all_to_all_end_right(opened):
    page = opened("tree")
    assert [held(page)[str(rank)] for rank in range(2)] == [[["0", "0"]], [["", ""]]]
    click(page, "last")
    assert held(page) == {str(rank): [["0", "0"]] for rank in range(6)}
    page = opened("swap")
    click(page, "last")
    letters = "abcd"
    for rank in range(4):
        outputs = held(page)[str(rank)][:4]
        assert outputs == [[f"{src}{letters[rank]}", str(src)] for src in range(4)]


def test_it_steps_forward_and_back_and_comes_by_the_same_states(opened):
    page = opened("ring", still=True)
    there = [held(page)]
    for step in range(1, 7):
        click(page, "next")
        assert page.evaluate(STEP) == step
        there.append(held(page))
    back = [there[-1]]
    for step in range(5, -1, -1):
        click(page, "back")
        assert page.evaluate(STEP) == step
        back.append(held(page))
    assert back == there[::-1]
    assert len({str(state) for state in there}) == 7
    assert page.evaluate("document.querySelector('.rt-caption').textContent") == "Before the first of 6 steps"


@pytest.mark.parametrize("still", [False, True])
def test_it_plays_to_the_end_and_stops(opened, still):
    page = opened("tree", still=still)
    click(page, "play")
    assert page.evaluate("document.querySelector('.rt-play').getAttribute('aria-label')") == "Pause"
    page.wait_for_function(f"{STEP} === 3 && !document.querySelector('.rt-running')")
    assert page.evaluate("document.querySelector('.rt-play').getAttribute('aria-label')") == "Play"
    assert held(page)["5"] == [["0", "0"]]


def test_messages_move_unless_the_reader_wants_stillness(opened):
    place = "document.querySelector('.rt-chip')?.getAttribute('transform')"
    page = opened("ring")
    click(page, "play")
    page.wait_for_function(f"!!{place}")
    first = page.evaluate(place)
    page.wait_for_function(f"{place} !== '{first}'")
    click(page, "play")
    assert not page.evaluate("!!document.querySelector('.rt-running')")
    page = opened("ring", still=True)
    click(page, "next")
    assert page.evaluate("+document.querySelector('input').value") == 1


def test_every_press_is_a_step_however_quickly_one_follows_another(opened):
    page = opened("ring")
    page.evaluate("for (let i = 0; i < 4; i++) document.querySelector('[data-do=next]').click()")
    page.wait_for_function("+document.querySelector('input').value === 4")
    click(page, "play")
    page.wait_for_function("document.querySelector('input').value > 4")
    click(page, "next")  # while it plays: on to the end of this step, and no further
    assert page.evaluate("+document.querySelector('input').value") == 5
    assert not page.evaluate("!!document.querySelector('.rt-running')")


def test_the_keyboard_steps_plays_and_jumps(opened):
    page = opened("ring")
    page.locator("figure").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("+document.querySelector('input').value === 1")
    page.keyboard.press("End")
    assert page.evaluate(STEP) == 6
    page.keyboard.press("ArrowLeft")
    assert page.evaluate(STEP) == 5
    page.keyboard.press("Home")
    assert page.evaluate(STEP) == 0
    page.keyboard.press(" ")
    assert page.evaluate("!!document.querySelector('.rt-running')")
    page.keyboard.press(" ")
    assert not page.evaluate("!!document.querySelector('.rt-running')")


def test_tab_reaches_every_control_and_the_focus_is_seen(opened):
    page = opened("ring")
    reached, seen = [], []
    for _ in range(8):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.dataset.do || document.activeElement.tagName"))
        seen.append(page.evaluate("getComputedStyle(document.activeElement).outlineStyle"))
    assert reached == ["FIGURE", "first", "back", "play", "next", "last", "INPUT", "SUMMARY"]
    assert set(seen) == {"solid"}
    page.locator("[data-do=play]").focus()
    page.keyboard.press(" ")  # the button's own, and not the figure's as well
    assert page.evaluate("!!document.querySelector('.rt-running')")
    click(page, "play")


def test_the_slider_scrubs(opened):
    page = opened("ring")
    scrub = "(to => { const s = document.querySelector('input'); s.value = to; s.dispatchEvent(new Event('input')); })"
    page.evaluate(f"{scrub}(2.5)")
    assert page.evaluate(STEP) == 3 and page.evaluate("document.querySelectorAll('.rt-chip').length") == 4
    halfway = held(page)
    page.evaluate(f"{scrub}(2)")
    assert held(page) == halfway, "half-way through a step nothing has arrived yet"
    assert page.evaluate("document.querySelector('input').getAttribute('aria-valuetext')") == "Step 2 of 6"


def test_two_players_on_a_page_do_not_clash_even_when_they_are_the_same(opened):
    page = opened("several")
    before = held(page, 1), held(page, 2)
    click(page, "last", figure=0)
    assert (held(page, 1), held(page, 2)) == before
    click(page, "last", figure=2)
    assert held(page, 0) == held(page, 2) != before[1] and held(page, 1) == before[0]
    ids = "[...document.querySelectorAll('[id]')].length"
    assert page.evaluate(ids) == 0


def test_a_screen_reader_has_the_steps_in_words(opened):
    page = opened("tree", still=True)
    click(page, "next")
    assert page.evaluate("document.querySelector('[aria-live]').textContent") == (
        "Step 1 of 3. 0 to 3: tensor of 0. Then rank 3: tensor of 0"
    )
    assert page.evaluate("document.querySelector('figure').getAttribute('aria-label')").startswith("MST broadcast: 6 ranks")
    assert page.evaluate("[...document.querySelectorAll('button, input')].every(e => e.getAttribute('aria-label'))")
    assert page.evaluate("document.querySelectorAll('tbody tr').length") == 4
    assert not page.evaluate("document.querySelector('details').open")


def test_without_scripts_the_steps_in_words_are_open(pages):
    html = (pages / "tree.html").read_text(encoding="utf-8")
    assert "<details open>" in html


@pytest.mark.parametrize("name", ["ring8", "tree", "swap"])
def test_it_fits_a_phone(opened, name):
    page = opened(name, width=390)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate("[...document.querySelectorAll('figure *')].every(e => e.getBoundingClientRect().right <= 391)")
    sizes = """[...document.querySelectorAll('.rt-stage text')].filter(e => e.textContent).map(e =>
        parseFloat(getComputedStyle(e).fontSize) * e.getScreenCTM().a)"""
    assert min(page.evaluate(sizes)) >= 10
    assert page.evaluate(
        "[...document.querySelectorAll('button')].filter(e => e.checkVisibility()).every(e => e.offsetHeight >= 36)"
    )


CONTRASTS = """
(() => {
  const parse = text => { const n = text.match(/[\\d.]+/g).map(Number); return [...n.slice(0, 3), n[3] ?? 1]; };
  const over = (top, under, part) => [0, 1, 2].map(i => top[i] * part + under[i] * (1 - part));
  const light = c => { const [r, g, b] = c.map(v => (v /= 255) <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
                       return .2126 * r + .7152 * g + .0722 * b; };
  const canvas = document.createElement("div");
  canvas.style.background = "Canvas"; document.body.append(canvas);
  const paper = parse(getComputedStyle(canvas).backgroundColor).slice(0, 3);
  canvas.remove();
  const found = {};
  const see = (what, ink, ground) => {
    const [low, high] = [light(ink), light(ground)].sort((a, b) => a - b);
    found[what] = Math.min(found[what] ?? 99, (high + .05) / (low + .05));
  };
  for (const text of document.querySelectorAll(".rt-stage text, .rt-caption, .rt-hint, summary")) {
    if (!text.textContent) continue;
    const style = getComputedStyle(text), svg = text instanceof SVGElement;
    let ground = paper;
    for (const rect of text.parentNode.querySelectorAll?.(":scope > .rt-tint, :scope > .rt-disc") ?? []) {
      const tint = getComputedStyle(rect);
      if (svg) ground = over(parse(tint.fill), paper, +tint.fillOpacity);
    }
    const ink = over(parse(svg ? style.fill : style.color), ground, +style.opacity);
    see("text " + text.getAttribute("class"), ink, ground);
  }
  for (const line of document.querySelectorAll(".rt-disc, .rt-line")) see("mark", parse(getComputedStyle(line).stroke).slice(0, 3), paper);
  return found;
})()
"""


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", ["ring8", "swap"])
def test_words_and_marks_stand_out_on_light_and_on_dark(opened, name, theme):
    page = opened(name, theme=theme, still=True)
    click(page, "next")
    found = page.evaluate(CONTRASTS)
    assert len(found) >= 5
    faint = {what: ratio for what, ratio in found.items() if ratio < (3 if what == "mark" else 4.5)}
    assert not faint


def test_on_paper_it_is_all_steps_side_by_side(opened):
    page = opened("ring")
    page.pdf()  # a real print: the page hears of it
    page.emulate_media(media="print")
    assert page.evaluate("[...document.querySelectorAll('.rt-paper > div')].map(e => e.lastChild.data)") == [
        "before",
        *(f"after step {step}" for step in range(1, 7)),
    ]
    assert page.evaluate("[...document.querySelectorAll('.rt-paper .rt-grid')].every(e => e.checkVisibility())")
    assert not page.evaluate("document.querySelector('.rt-bar').checkVisibility()")
    last = page.evaluate("[...document.querySelectorAll('.rt-paper > div:last-child g[data-holds]')].map(e => e.dataset.holds)")
    assert set(last) == {"0 1 2 3"} and len(last) == 4 + 16
