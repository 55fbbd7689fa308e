"""The built book under a thumb: drawers, buttons, the players' controls, and what a narrow screen may not cut off."""

from contextlib import ExitStack
from functools import cache

import pytest
from helpers.browser import find_chromium, launched, window
from helpers.built import HTML

pytestmark = [
    pytest.mark.skipif(not find_chromium(), reason="no Chromium found on this machine"),
    pytest.mark.skipif(not HTML.is_dir(), reason="no built book: run `make book`"),
]

PHONE = {"width": 390, "height": 844, "has_touch": True}
LANDSCAPE = {"width": 844, "height": 390, "has_touch": True}


@pytest.fixture(scope="module")
def browser():
    with launched() as browser:
        yield browser


@pytest.fixture(scope="module")
def on_a_phone(browser):
    """Opens a page of the book, each reader's in one window."""
    with ExitStack() as windows:
        look = cache(lambda **reader: windows.enter_context(window(browser, **reader)))
        yield lambda name, **reader: look(**{**PHONE, **reader})((HTML / "notebooks" / f"{name}.html").as_uri())


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("side", ["primary", "secondary"])
def test_a_drawer_hides_the_page_under_it_and_leaves_no_label_over_the_buttons(on_a_phone, side, theme):
    with on_a_phone("05-broadcast", theme=theme) as (page, _):
        page.tap(f".bd-header-article .{side}-toggle")
        page.wait_for_selector("dialog[open]")
        ground = page.evaluate("getComputedStyle(document.querySelector('dialog[open]')).backgroundColor")
        assert ground.startswith("rgb(") or "/" not in ground and ground != "rgba(0, 0, 0, 0)", ground
        page.keyboard.press("Escape")
        page.wait_for_selector("dialog[open]", state="detached")
        page.tap(".bd-header-article .search-button")
        page.wait_for_selector("#pst-search-dialog[open]")


SMALL_TARGETS = """
[...document.querySelectorAll(
  ".bd-header-article button, .rt-bar button, .rt-bar input, .rt-player summary, details.hide > summary")]
  .filter(e => e.checkVisibility()).map(e => [e.outerHTML.slice(0, 60), e.getBoundingClientRect()])
  .filter(([, box]) => box.height < 36 || box.width < 36).map(([what]) => what)
"""


@pytest.mark.parametrize("name", ["05-broadcast", "11-tree-all-reduce"])
def test_what_is_tapped_is_large_enough(on_a_phone, name):
    with on_a_phone(name) as (page, _):
        assert page.evaluate(SMALL_TARGETS) == []


# What lies under a finger in the middle of each of the last player's controls, where that is not the control itself.
COVERED = """
() => [...[...document.querySelectorAll(".rt-player")].at(-1).querySelectorAll(".rt-bar :is(button, input)")]
  .filter(e => e.checkVisibility()).filter(e => {
    const box = e.getBoundingClientRect();
    const top = document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2);
    return !top || !e.contains(top);
  }).map(e => e.outerHTML.slice(0, 60))
"""


@pytest.mark.parametrize("screen", [PHONE, LANDSCAPE], ids=["upright", "on its side"])
@pytest.mark.parametrize("name", ["05-broadcast", "11-tree-all-reduce"])
def test_the_controls_of_a_player_are_in_sight_with_its_picture(on_a_phone, name, screen):
    with on_a_phone(name, **screen) as (page, _):
        # Down to its picture and a little back, as a thumb does: then the theme would offer the way to the top.
        page.evaluate("document.documentElement.style.scrollBehavior = 'auto'")
        page.evaluate("[...document.querySelectorAll('.rt-player')].at(-1).scrollIntoView()")
        for way in (90, -30):
            page.evaluate(f"scrollBy(0, {way})")
            page.wait_for_timeout(150)
        assert page.evaluate(COVERED) == []
        steps = page.locator(".rt-player").last
        steps.locator(".rt-next").tap()
        page.wait_for_function("[...document.querySelectorAll('.rt-player')].at(-1).dataset.step === '1'")


BADGES = """
[...document.querySelectorAll("pre .rank")].filter(e => e.checkVisibility()).map(e => {
  const words = document.createRange();
  words.selectNodeContents(e);
  const [inner, outer, all] = [words, e, e.closest(".cell_output")].map(each => each.getBoundingClientRect());
  return inner.left >= outer.left && inner.right <= outer.right && outer.left >= all.left;
})
"""


@pytest.mark.parametrize("name", ["01-ranks", "08-all-gather", "09-reduce-scatter"])
def test_a_line_says_its_rank_whole_also_where_it_folds(on_a_phone, name):
    with on_a_phone(name) as (page, _):
        whole = page.evaluate(BADGES)
        assert len(whole) > 8 and page.evaluate("document.querySelectorAll('pre .long .rank').length") > 3
        assert all(whole)


# Boxes of code whose copy button is not seen, or lies on a letter of the first lines.
COPIES = """
() => [...document.querySelectorAll("div.cell_input pre + button.copybtn")].filter(e => e.checkVisibility()).filter(button => {
  if (getComputedStyle(button).opacity < .5) return true;
  const mine = button.getBoundingClientRect();
  const walker = document.createTreeWalker(button.previousElementSibling, NodeFilter.SHOW_TEXT);
  for (let node, seen = 0; seen < 60 && (node = walker.nextNode()); seen++) {
    const words = document.createRange();
    words.selectNodeContents(node);
    if (node.data.trim() && [...words.getClientRects()].some(b => b.width && b.right > mine.left + 4 && b.left < mine.right
        && b.top < mine.bottom - 6 && b.bottom > mine.top + 6)) return true;
  }
}).map(button => button.previousElementSibling.textContent.slice(0, 60))
"""


@pytest.mark.parametrize("name", ["01-ranks", "12-ring-or-tree"])
def test_copy_buttons_are_seen_and_cover_no_code(on_a_phone, name):
    with on_a_phone(name) as (page, _):
        assert page.evaluate("document.querySelectorAll('div.cell_input pre + button.copybtn').length") > 20
        assert page.evaluate(COPIES) == []


@pytest.mark.parametrize("name", ["01-ranks", "03-point-to-point", "04-wires", "16-measuring"])
def test_tables_of_words_keep_all_columns_in_sight(on_a_phone, name):
    with on_a_phone(name) as (page, _):
        tables = "[...document.querySelectorAll('.pst-scrollable-table-container')]"
        assert page.evaluate(f"{tables}.length")
        assert (
            page.evaluate(f"{tables}.filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.innerText.slice(0, 60))") == []
        )


def test_columns_that_just_fit_one_phone_are_set_smaller_on_a_smaller_one(on_a_phone):
    rows = """[...document.querySelectorAll('.cell_output pre[style*="--letters"]:not(.scrolls)')]
        .filter(e => e.checkVisibility() && !e.querySelector('.long')).map(e =>
        Math.round((e.scrollHeight - 6.4) / parseFloat(getComputedStyle(e).lineHeight))
        - e.textContent.trimEnd().split('\\n').length)"""
    with on_a_phone("10-ring-all-reduce", width=320, height=640) as (page, _):
        more = page.evaluate(rows)
        assert len(more) > 2 and max(more) <= 0
