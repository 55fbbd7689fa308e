"""Pages as a reader sees them: no network, no errors, phone and desktop, light and dark."""

from types import SimpleNamespace

import pytest
from helpers.browser import find_chromium, launched, opened, window
from helpers.built import HTML, PAGES, name_of
from helpers.drawn import OVERLAPPING, UNREADABLE

pytestmark = [
    pytest.mark.skipif(not find_chromium(), reason="no Chromium found on this machine"),
    pytest.mark.skipif(not HTML.is_dir(), reason="no built book: run `make book`"),
]

WELCOME = HTML / "book" / "welcome.html"

# The contrast of each piece of visible text with what is painted behind it, as WCAG 2 defines it.
FAINT_TEXT = """
(() => {
  const parse = text => {
    const numbers = text.match(/[\\d.]+/g).map(Number);
    const scale = text.startsWith("color(") ? 255 : 1;
    return [...numbers.slice(0, 3).map(v => v * scale), numbers[3] ?? 1];
  };
  const over = (top, under) => [0, 1, 2].map(i => top[i] * top[3] + under[i] * (1 - top[3]));
  const luminance = c => {
    const [r, g, b] = c.slice(0, 3).map(v => (v /= 255) <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const grounds = new Map([[null, [255, 255, 255]]]);
  const behind = element => {
    if (!grounds.has(element))
      grounds.set(element, over(parse(getComputedStyle(element).backgroundColor), behind(element.parentElement)));
    return grounds.get(element);
  };
  const faint = [];
  const walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  for (let node; (node = walker.nextNode()); ) {
    const element = node.parentElement;
    if (!node.data.trim() || element.closest("svg, script, style, noscript, .headerlink, .only-light, .only-dark")) continue;
    if (!element.checkVisibility({checkOpacity: true, checkVisibilityCSS: true})) continue;
    const ground = behind(element);
    const ink = over(parse(getComputedStyle(element).color), ground);
    const [low, high] = [luminance(ink), luminance(ground)].sort((a, b) => a - b);
    const contrast = (high + .05) / (low + .05);
    if (contrast < 4.5) faint.push(`${contrast.toFixed(2)}: ${node.data.trim().slice(0, 40)} <${element.className}>`);
  }
  return [...new Set(faint)].slice(0, 10);
})()
"""

WIDER_THAN_THE_PAGE = """
width => [...document.querySelectorAll("article *")]
  .filter(e => e.getBoundingClientRect().right > width + 1 && e.checkVisibility())
  .filter(e => { for (let p = e.parentElement; p; p = p.parentElement)
                   if (getComputedStyle(p).overflowX !== "visible") return false; return true; })
  .map(e => e.outerHTML.slice(0, 120)).slice(0, 5)
"""


SCROLLING = """
[...document.querySelectorAll("article *")]
  .filter(e => e.scrollWidth > e.clientWidth + 1 && ["auto", "scroll"].includes(getComputedStyle(e).overflowX))
  .filter(e => e.checkVisibility())
  .map(e => `${e.scrollWidth} in ${e.clientWidth}: ${e.textContent.trim().slice(0, 50)}`)
"""

SMALL_TEXT = """
least => {
  const found = new Set(), walker = document.createTreeWalker(document.querySelector("article, main"), NodeFilter.SHOW_TEXT);
  for (let node; (node = walker.nextNode()); ) {
    const element = node.parentElement;
    if (!node.data.trim() || element.closest("svg, script, style, mjx-container, .rt-spoken")) continue;
    if (!element.checkVisibility()) continue;
    if (parseFloat(getComputedStyle(element).fontSize) < least) found.add(node.data.trim().slice(0, 40));
  }
  return [...found].slice(0, 10);
}
"""

# Of what is set line by line: what a cell printed or what code is, that stands on another number of lines than it has.
FOLDED = """
[...document.querySelectorAll("article div.highlight pre")].filter(e => e.checkVisibility()).filter(e => {
  const style = getComputedStyle(e), padding = parseFloat(style.paddingTop) + parseFloat(style.paddingBottom);
  const high = e.scrollHeight - padding, line = parseFloat(style.lineHeight);
  return high > line * (e.textContent.trimEnd().split("\\n").length + .6);
}).filter(e => !e.closest(".traceback, .stderr")).map(e => e.textContent.slice(0, 60))
"""

WINDOWS = {"desktop": {"width": 1400, "height": 1000}, "phone": {"width": 390, "height": 844}}
READ_BY_PEOPLE = [page for page in PAGES if page.name != "index.html"]  # index.html only leads on


@pytest.fixture(scope="module")
def browser():
    with launched() as browser:
        yield browser


@pytest.fixture(scope="module")
def windows(browser):
    """By name, the function that opens a page in this window."""
    with window(browser, **WINDOWS["desktop"]) as desktop, window(browser, **WINDOWS["phone"]) as phone:
        yield {"desktop": desktop, "phone": phone}


@pytest.fixture(
    scope="module",
    params=[(name, page) for name in WINDOWS for page in READ_BY_PEOPLE],
    ids=lambda param: f"{name_of(param[1])}-{param[0]}",
)
def shown(request, windows):
    """Each page in each window, loaded once for all tests."""
    name, file = request.param
    with windows[name](file.as_uri()) as (page, problems):
        yield SimpleNamespace(page=page, problems=problems, **WINDOWS[name])


@pytest.fixture(params=["light", "dark"])
def theme(request, shown):
    """The theme of the page that is shown, by the theme's own button."""
    for _ in range(3):  # light, dark, and what the system says
        if shown.page.evaluate("document.documentElement.dataset.mode") == request.param:
            break
        shown.page.evaluate("document.querySelector('.theme-switch-button').click()")
    assert shown.page.evaluate("document.documentElement.dataset.theme") == request.param


@pytest.fixture
def welcome(browser):
    with opened(browser, WELCOME.as_uri()) as (page, _):
        yield page


def test_a_page_has_no_errors_and_asks_nothing_of_the_network(shown):
    assert shown.problems == []


def test_a_page_is_no_wider_than_its_window(shown):
    assert shown.page.evaluate(WIDER_THAN_THE_PAGE, shown.width) == []
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= shown.width


def test_drawings_are_whole_and_can_be_read(shown):
    assert shown.page.evaluate(UNREADABLE, 8.5 if shown.width < 600 else 10) == []
    assert shown.page.evaluate(OVERLAPPING) == []


def test_no_more_than_ten_boxes_scroll_sideways(shown):
    scrolling = shown.page.evaluate(SCROLLING)
    assert shown.width > 600 or len(scrolling) <= 10, scrolling


def test_letters_are_large_enough_to_read(shown):
    assert shown.page.evaluate(SMALL_TEXT, 8.5 if shown.width < 600 else 10) == []


def test_lines_fold_on_a_phone_alone(shown):
    folded = shown.page.evaluate(FOLDED)
    long = shown.page.evaluate("[...document.querySelectorAll('pre .long')].filter(e => e.checkVisibility()).length")
    if shown.width < 600:
        assert folded or long < 4  # one that is marked as long may just fit
        assert long or not folded
    else:
        assert folded == []


def test_text_stands_out_from_its_background(shown, theme):
    assert shown.page.evaluate(FAINT_TEXT) == []


def test_mathematics_is_set(shown):
    formulas = shown.page.evaluate("document.querySelectorAll('main .math').length")
    drawn = shown.page.evaluate("document.querySelectorAll('main .math mjx-container svg').length")
    assert drawn >= formulas
    assert shown.page.evaluate("document.querySelectorAll('[data-mjx-error], mjx-merror').length") == 0


def test_figures_take_their_colour_from_the_page(shown, theme):
    inks = shown.page.evaluate(
        "[...document.querySelectorAll('figure.ringtree-picture svg')].map(e => getComputedStyle(e).color)"
    )
    assert set(inks) <= {shown.page.evaluate("getComputedStyle(document.body).color")}


def test_a_printed_page_is_light_and_the_page_alone(browser):
    with opened(browser, (HTML / "notebooks/01-ranks.html").as_uri(), theme="dark") as (page, _):
        page.emulate_media(media="print")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.evaluate("document.documentElement.dataset.theme") == "light"
        around = "[...document.querySelectorAll('.bd-sidebar-primary, .bd-sidebar-secondary, .bd-header-article, .copybtn')]"
        assert page.evaluate(f"{around}.length") > 3
        assert page.evaluate(f"{around}.filter(each => getComputedStyle(each).display !== 'none').length") == 0
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"


@pytest.mark.parametrize("family", ["Source Serif 4", "IBM Plex Sans", "JetBrains Mono"])
def test_bundled_fonts_are_used(welcome, family):
    assert welcome.evaluate(f"[...document.fonts].some(f => f.family.includes('{family}') && f.status === 'loaded')")


def test_search_finds_a_word_of_the_book(welcome):
    welcome.goto((HTML / "search.html").as_uri() + "?q=latency")
    welcome.locator("#search-results li a").first.wait_for()
